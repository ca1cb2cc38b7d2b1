use std::path::Path;

use super::{
    super::{Diagnostic, parse},
    *,
};

fn errors(upstream: &str) -> String {
    let text = format!("{upstream}\n[[listener]]\nlisten = \":1\"\nto = \"192.0.2.9:1\"\n");
    match parse(Path::new("x.toml"), &text) {
        Ok(config) => panic!("taken: {:?}", config.upstreams),
        Err(wrong) => wrong
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

const FULL: &str = r#"
[[upstream]]
name = "images"
servers = ["127.0.0.1:9001", "img.example:80", "srv:_http._tcp.example"]
balance = "hash=header:X-Tenant"
sticky = "SERVERID"
connect_timeout = "3s"
congestion = "bbr"
retries = 1
max_connections = 1000
queue = 50
queue_timeout = "2s"
max_idle = 8
idle_timeout = "15s"
send_proxy = "v1"
health = { http = "/health", host = "x", status = "200-299,401", interval = "1s", timeout = "500ms", rise = 1, fall = 5 }
outlier_detection = { failures = 2, period = "5s", ejection_time = "1m", status = true }
slow_start = "20s"

[[upstream.server]]
address = "192.0.2.1:80"
name = "one"
weight = 3
max_connections = 100
backup = true

[[listener]]
listen = ":1"
upstream = "images"
"#;

#[test]
fn a_full_upstream_is_understood() {
    let config = parse(Path::new("x.toml"), FULL).unwrap();
    let s = Duration::from_secs;
    let entry = |place: &str| ServerConfig {
        max_connections: Some(1000),
        ..ServerConfig::new(place.parse().unwrap())
    };
    let expected = UpstreamConfig {
        name: "images".into(),
        servers: vec![
            entry("127.0.0.1:9001"),
            entry("img.example:80"),
            entry("srv:_http._tcp.example"),
            ServerConfig {
                name: Some("one".into()),
                weight: 3,
                max_connections: Some(100),
                backup: true,
                ..entry("192.0.2.1:80")
            },
        ],
        balance: "hash=header:x-tenant".parse().unwrap(),
        sticky: Some("SERVERID".into()),
        connect_timeout: s(3),
        congestion: Some("bbr".into()),
        retries: Some(1),
        queue: 50,
        queue_timeout: s(2),
        max_idle: 8,
        idle_timeout: s(15),
        send_proxy: Some(Version::V1),
        health: Some(HealthConfig {
            probe: Probe::Http {
                path: "/health".into(),
                host: Some("x".into()),
                status: "200-299,401".parse().unwrap(),
            },
            interval: s(1),
            timeout: Duration::from_millis(500),
            rise: 1,
            fall: 5,
        }),
        outlier_detection: PassiveRules {
            failures: 2,
            period: s(5),
            ejection_time: s(60),
        },
        outlier_status: true,
        slow_start: s(20),
    };
    assert_eq!(config.upstreams, [expected]);
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_place_and_the_remedy() {
    const ONE: &str = "servers = \"192.0.2.1:80\"";
    for (keys, says) in [
        (String::new(), "the upstream has no server"),
        ("servers = []".into(), "add servers = "),
        (
            format!("{ONE}\ncongestion = \"no such\""),
            "tcp_available_congestion_control",
        ),
        (
            "servers = [\"a.example\"]".into(),
            "has no port: write a.example:PORT",
        ),
        (
            "servers = [\"srv:http.example\"]".into(),
            "srv:_http._tcp.example",
        ),
        (
            "servers = [\"a:1\", \"a:1\"]".into(),
            "`a:1` is twice in this upstream",
        ),
        (
            format!("{ONE}\nbalance = \"hash\""),
            "does not say what is hashed",
        ),
        (format!("{ONE}\nbalance = \"hash=header:\""), "hash=header:NAME"),
        (format!("{ONE}\nbalance = \"best\""), "is no way to balance"),
        (
            format!("{ONE}\nsticky = \"a b\""),
            "cannot be the name of a cookie",
        ),
        (format!("{ONE}\nsticky = \"\""), "cannot be the name of a cookie"),
        (format!("{ONE}\nretries = -1"), "use 0 to 1000"),
        (
            format!("{ONE}\nmax_connections = 0"),
            "max_connections is out of range",
        ),
        (format!("{ONE}\nqueue = 5"), "no server has a limit"),
        (format!("{ONE}\nqueue_timeout = \"5s\""), "no server has a limit"),
        (format!("{ONE}\nsend_proxy = \"v3\""), "use v1 or v2"),
        (format!("{ONE}\nslow_start = \"2h\""), "use 0s to 1h"),
        (format!("{ONE}\nhealth = {{ }}"), "health does not say how"),
        (format!("{ONE}\nhealth = {{ tcp = false }}"), "add tcp = true"),
        (
            format!("{ONE}\nhealth = {{ tcp = true, http = \"/\" }}"),
            "leave one out",
        ),
        (
            format!("{ONE}\nhealth = {{ tcp = true, host = \"x\" }}"),
            "only a check by `http`",
        ),
        (
            format!("{ONE}\nhealth = {{ http = \"health\" }}"),
            "begins with a slash",
        ),
        (
            format!("{ONE}\nhealth = {{ http = \"/\", host = \"a\\r\\nb\" }}"),
            "cannot be a host",
        ),
        (
            format!("{ONE}\nhealth = {{ http = \"/ HTTP/1.1\" }}"),
            "cannot be a path",
        ),
        (
            format!("{ONE}\nhealth = {{ http = \"/\", status = \"ok\" }}"),
            "no set of status codes",
        ),
        (
            format!("{ONE}\nhealth = {{ tcp = true, rise = 0 }}"),
            "rise is out of range",
        ),
        (
            format!("{ONE}\noutlier_detection = {{ failures = -1 }}"),
            "use 0 to 1000",
        ),
        (
            format!("{ONE}\nserver = [{{ address = \"a:1\", weight = 0 }}]"),
            "use 1 to 1000",
        ),
        (
            format!("{ONE}\nserver = [{{ address = \"a:1\", weight = 1001 }}]"),
            "use 1 to 1000",
        ),
        (
            format!("{ONE}\nserver = [{{ address = \"a:1\", name = \"x/y\" }}]"),
            "cannot be a name",
        ),
        (
            format!("{ONE}\nserver = [{{ address = \"192.0.2.1:80\" }}]"),
            "is twice in this upstream",
        ),
        (
            "server = [{ address = \"a:1\", name = \"x\" }, { address = \"b:1\", name = \"x\" }]".into(),
            "another server of this upstream is called `x`",
        ),
        (
            "server = [{ address = \"a:1\", backup = true }]".into(),
            "all servers of the upstream are backups",
        ),
    ] {
        let e = errors(&format!("[[upstream]]\nname = \"u\"\n{keys}"));
        assert!(e.contains(says), "{keys}: {e}");
        assert!(e.starts_with("x.toml:"), "{e}");
    }
    let twice = errors(&format!(
        "[[upstream]]\nname = \"u\"\n{ONE}\n[[upstream]]\nname = \"u\"\n{ONE}"
    ));
    assert!(
        twice.contains("x.toml:5:8: another upstream is named `u`"),
        "{twice}"
    );
    let both = errors(&format!(
        "[[listener]]\nname = \"u\"\nlisten = \"127.0.0.1:80\"\nto = \"192.0.2.1:80\"\n[[upstream]]\nname = \"u\"\n{ONE}"
    ));
    assert!(
        both.contains("x.toml:2:8: an upstream is named `u`, too"),
        "{both}"
    );
    let e = errors(&format!("[[upstream]]\nname = \"a/b\"\n{ONE}"));
    assert!(e.contains("cannot be a name"), "{e}");
}

#[test]
fn what_a_request_says_chooses_no_server_where_none_is_read() {
    let warned = |keys: &str, protocols: &[&str]| {
        let mut text = format!("[[upstream]]\nname = \"u\"\nservers = \"192.0.2.1:80\"\n{keys}\n");
        for (n, protocol) in protocols.iter().enumerate() {
            let listener = format!(
                "listen = \":{}\"\nprotocol = \"{protocol}\"\nupstream = \"u\"\n",
                n + 1
            );
            text = format!("{text}[[listener]]\n{listener}");
        }
        if protocols.is_empty() {
            text += "[[listener]]\nlisten = \":1\"\nto = \"192.0.2.9:1\"\n";
        }
        let config = parse(Path::new("x.toml"), &text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        config.warnings.iter().map(Diagnostic::brief).collect::<Vec<_>>()
    };
    let both = "sticky = \"x\"\nbalance = \"hash=header:host\"";
    let told = warned(both, &["tcp", "tls"]);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("x.toml:4: `sticky` has no effect"),
        "{told:?}"
    );
    assert!(
        told[1].starts_with("x.toml:5: `balance` has no effect"),
        "{told:?}"
    );
    assert_eq!(warned("balance = \"hash=cookie:a\"", &["tcp"]).len(), 1);
    for (keys, protocols) in [
        (both, &["tcp", "http"][..]),
        (both, &[]),
        ("balance = \"hash=client\"", &["tcp"]),
        ("", &["tcp"]),
    ] {
        assert_eq!(warned(keys, protocols), [""; 0], "{keys} {protocols:?}");
    }
}
