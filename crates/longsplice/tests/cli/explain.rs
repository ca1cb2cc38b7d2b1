//! Tests `check --explain`: which route a request takes, and why.

use std::path::Path;

use serde_json::Value;

use crate::common::ask;

fn example(name: &str) -> String {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    examples.join(name).to_str().unwrap().to_owned()
}

/// Returns the winning route and the destination from the output of `--json`.
fn decided(file: &str, args: &[&str]) -> (String, Value) {
    let (code, out, err) = ask(&[&["check", file, "--json", "--explain"], args].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    let explained: Value = serde_json::from_str(&out).unwrap();
    let route = explained["route"].as_str().unwrap_or("-").to_owned();
    (route, explained["destination"].clone())
}

#[test]
fn the_switch_of_the_paper() {
    let file = example("switch.toml");
    for (args, route, server) in [
        (&["GET http://127.0.0.1:8081/a.gif"][..], "images", 9001),
        (&["http://127.0.0.1:8081/a/b.JPG"], "images", 9001),
        (&["http://127.0.0.1:8081/a.html"], "pages", 9002),
        (&["http://127.0.0.1:8081/x/%2e%2e/a.HTML"], "pages", 9002),
        (&["http://127.0.0.1:8081/a.gif?x=y"], "CGI", 9003),
        (&["http://127.0.0.1:8081/cgi-bin/a.gif"], "CGI", 9003),
        (&["POST http://127.0.0.1:8081/a.html"], "CGI", 9003),
        (
            &["http://127.0.0.1:8081/a.html", "--header", "cookie: a=b"],
            "cookies",
            9003,
        ),
        (&["http://127.0.0.1:8081/"], "-", 9001),
        (&["http://127.0.0.1:8081/a.css"], "-", 9001),
        (&["HEAD /a.html"], "pages", 9002),
    ] {
        let (won, destination) = decided(&file, args);
        let server = format!("127.0.0.1:{server}");
        let place = serde_json::json!([{ "address": server, "name": null, "backup": false }]);
        assert_eq!(won, route, "{args:?}");
        assert_eq!(destination["upstream"]["servers"], place, "{args:?}");
    }
}

#[test]
fn it_is_said_why() {
    let file = example("switch.toml");
    let request = "GET http://127.0.0.1:8081/chart.gif?year=2001";
    let (code, out, err) = ask(&["check", &file, "--explain", request]);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().map(str::trim).collect();
    for line in [
        "listener      switch (http)",
        "sees          client 127.0.0.1, method GET, host 127.0.0.1, path /chart.gif, query year=2001",
        "route         CGI: wins",
        "route         cookies: does not match",
        "no   any cookie is there; there is no cookie",
        "route         images: would take it, but an earlier route does",
        "no   extension html; path is \"/chart.gif\"",
        "decided by    route CGI",
        "goes to       upstream programs: 127.0.0.1:9003",
    ] {
        assert!(lines.contains(&line), "{line}\n{out}");
    }
}

/// Three listeners, one for each protocol.
const THREE: &str = r#"
[[upstream]]
name = "a"

[[upstream.server]]
name = "one"
address = "192.0.2.1:80"

[[upstream.server]]
address = "192.0.2.2:80"
backup = true

[[listener]]
name = "plain"
listen = "127.0.0.1:8081"
to = ["192.0.2.9:80", "192.0.2.8:80"]

[[listener.route]]
client = "198.18.0.0/15"
upstream = "a"

[[listener]]
name = "names"
listen = "0.0.0.0:8443"
protocol = "tls"
to = "192.0.2.9:443"

[[listener.route]]
sni = "*.example"
alpn = "h2"
upstream = "a"

[[listener]]
name = "web"
listen = "127.0.0.2:8081"
protocol = "http"
intercept = { interface = "eth0", ports = "80" }

[[listener.route]]
name = "gone"
path = "/gone"
status = 410

[[listener.route]]
name = "moved"
path_prefix = "/old/"
redirect = "https://new.example/"

[[listener.route]]
name = "origin"
cookie = { name = "session" }
original = true
"#;

#[test]
fn the_listener_is_the_one_that_the_url_leads_to() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    std::fs::write(&file, THREE).unwrap();
    let file = file.to_str().unwrap();
    let upstream = serde_json::json!({ "upstream": {
        "name": "a",
        "balance": "round_robin",
        "servers": [
            { "address": "192.0.2.1:80", "name": "one", "backup": false },
            { "address": "192.0.2.2:80", "name": null, "backup": true },
        ],
    } });
    for (args, route, destination) in [
        (
            &["http://127.0.0.1:8081/", "--client", "198.18.0.1"][..],
            "route 1",
            upstream.clone(),
        ),
        (
            &["http://127.0.0.1:8081/"],
            "-",
            serde_json::json!({ "targets": ["192.0.2.9:80", "192.0.2.8:80"] }),
        ),
        (
            &["https://a.example:8443/", "--alpn", "h2"],
            "route 1",
            upstream.clone(),
        ),
        (
            &["x", "--listener", "names", "--sni", "a.example", "--alpn", "h2"],
            "route 1",
            upstream,
        ),
        (
            &["https://a.example:8443/"],
            "-",
            serde_json::json!({ "targets": ["192.0.2.9:443"] }),
        ),
        (
            &["http://127.0.0.2:8081/gone"],
            "gone",
            serde_json::json!({ "status": 410 }),
        ),
        // Port 80 is intercepted.
        (
            &["http://a.test/old/x?y"],
            "moved",
            serde_json::json!({ "redirect": "https://new.example/old/x?y" }),
        ),
        (
            &["http://a.test/", "--header", "Cookie: session=1"],
            "origin",
            serde_json::json!("original"),
        ),
        (&["http://a.test/"], "-", serde_json::json!("original")),
    ] {
        assert_eq!(decided(file, args), (route.to_owned(), destination), "{args:?}");
    }
    let (_, out, _) = ask(&[
        "check",
        file,
        "--explain",
        "http://127.0.0.1:8081/",
        "--client",
        "198.18.0.1",
    ]);
    let goes = "goes to       upstream a, by round_robin: one (192.0.2.1:80), 192.0.2.2:80 as a backup";
    assert!(out.contains(goes), "{out}");
    for (args, says) in [
        (&["http://a.test:8081/"][..], "--listener plain or web"),
        (&["http://a.test:1/"], "no listener has the port"),
        (
            &["http://a.test/", "--listener", "wen"],
            "there are: plain, names, web",
        ),
        (&["http://a.test/", "--sni", "a"], "reads no TLS"),
        (&["GET http://a.test/ HTTP/1.1"], "is no request"),
        (&["http://a.test/%"], "answered with 400"),
    ] {
        let (code, out, err) = ask(&[&["check", file, "--explain"], args].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
    let (code, _, err) = ask(&["check", file, "--json"]);
    assert!(code == 2 && err.contains("--explain"), "{err}");
    let (code, _, err) = ask(&["check", file, file, "--explain", "/"]);
    assert!(code == 2 && err.contains("asks one file"), "{err}");
}

#[test]
fn an_odd_path_is_decided_as_the_listener_would() {
    let file = example("switch.toml");
    let text = std::fs::read_to_string(&file).unwrap()
        + "[[listener.route]]\npath_prefix = \"/admin\"\nstatus = 403\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("strict.toml");
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap().to_owned();
    for (path, read_as, status) in [
        ("//admin", Some("/admin"), 403),
        ("/;/admin", None, 400),
        ("/admin", None, 403),
    ] {
        let url = format!("http://127.0.0.1:8081{path}");
        let (code, out, err) = ask(&["check", &file, "--explain", &url, "--json"]);
        assert_eq!((code, err.as_str()), (0, ""));
        let explained: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(explained["destination"]["status"], status, "{path}: {out}");
        assert_eq!(explained["read_as"].as_str(), read_as, "{path}: {out}");
        assert_eq!(explained["refused"].is_string(), status == 400, "{path}: {out}");
    }
    let (_, out, _) = ask(&["check", &file, "--explain", "http://127.0.0.1:8081//admin"]);
    assert!(out.contains("read as       path /admin"), "{out}");
    let fields = ["--header", "Max-Forwards: 0"];
    let request = [
        "check",
        &file,
        "--json",
        "--explain",
        "OPTIONS http://127.0.0.1:8081/a.gif",
    ];
    let (_, out, _) = ask(&[&request[..], &fields[..]].concat());
    let explained: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(explained["destination"]["status"], 200, "{out}");
}
