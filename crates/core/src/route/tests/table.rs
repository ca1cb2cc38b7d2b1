//! Tests several routes: which one wins, why, and which ones never do.

use super::*;
use crate::http::Limits;

/// Returns the paper's table: images, pages, CGI and cookies to three servers.
fn paper() -> Table {
    Table::new(vec![
        route("cgi", vec![Condition::Cgi(true)]),
        route("cookie", vec![cookie("", Want::Present)]),
        route("images", vec![Condition::Extension(list(&["gif", "jpg"]))]),
        route(
            "pages",
            vec![Condition::Extension(list(&["html"])), host(&["*.example"])],
        ),
    ])
}

#[test]
fn the_first_route_that_matches_wins() {
    let table = paper();
    for (request, winner) in [
        (get("a.example/x.gif"), Some("images")),
        (get("a.example/x.gif?y"), Some("cgi")),
        (get("a.example/x.gif").header("cookie", "a=b"), Some("cookie")),
        (get("a.example/x.html"), Some("pages")),
        (get("a.test/x.html"), None),
        (get("a.example/"), None),
        (get("a.example/x.html").method("PUT"), Some("cgi")),
    ] {
        let decided = table.decide(&request.facts());
        assert_eq!(decided.map(|(_, route)| route.name.as_str()), winner);
        let explained = table.explain(&request.facts());
        assert_eq!(explained.winner, decided.map(|(n, _)| n));
        let wins = explained.routes.iter().filter(|r| r.outcome == Outcome::Wins);
        assert_eq!(wins.map(|r| r.name.as_str()).next(), winner);
    }
}

#[test]
fn what_a_route_refuses_is_refused_in_each_reading() {
    let refuse = |path: &str| Route {
        action: Action::Status(403),
        ..route("no", vec![Condition::PathPrefix(list(&[path]))])
    };
    let deny = Table::new(vec![refuse("/admin"), route("all", Vec::new())]);
    let allow = Table::new(vec![
        route("public", vec![Condition::PathPrefix(list(&["/public/"]))]),
        Route {
            action: Action::Status(404),
            ..route("no", Vec::new())
        },
    ]);
    for (path, denied, allowed) in [
        ("//admin", true, false),
        ("/.//admin", true, false),
        ("/x/..;/admin", true, false),
        ("/x/..%2fadmin", true, false),
        ("/x\\..\\admin", true, false),
        ("/admin/../public/x", true, false),
        ("/public/..;/admin", true, false),
        ("/%2561dmin", true, false),
        ("//public//a", false, false),
        ("/public//a", false, true),
        ("/public/a;b=c", false, true),
        ("/public/a%2Fb", false, true),
    ] {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let head = crate::http::RequestHead::parse(bytes.as_bytes(), &Limits::default()).unwrap();
        let others = head.other_paths().unwrap();
        let facts = Facts {
            other_paths: &others,
            ..Facts::of_request("198.18.0.1".parse().unwrap(), &head)
        };
        for (table, is_refused) in [(&deny, denied), (&allow, !allowed)] {
            let decided = table.decide(&facts).map(|(n, route)| (n, route.name.as_str()));
            assert_eq!(
                decided.is_some_and(|(_, name)| name == "no"),
                is_refused,
                "{path}: {decided:?}"
            );
            let explained = table.explain(&facts);
            assert_eq!(explained.winner, decided.map(|(n, _)| n), "{path}");
        }
    }
    assert!(deny.refuses_by_path() && allow.refuses_by_path() && !paper().refuses_by_path());
    let by_client = vec![Condition::Client(list(&["198.18.0.0/15"]))];
    let other = Table::new(vec![Route {
        conditions: by_client,
        ..refuse("/")
    }]);
    assert!(!other.refuses_by_path());
}

#[test]
fn an_explanation_says_what_failed_and_with_what_values() {
    let request = get("b.test/x.html?").header("Cookie", "id=7; lang=\"de\"");
    let explained = paper().explain(&request.facts());
    let told: Vec<_> = explained
        .routes
        .iter()
        .flat_map(|r| r.checks.iter().map(|c| (r.name.as_str(), r.outcome, c)))
        .map(|(name, outcome, c)| format!("{name} {outcome:?}: {} {}; {}", c.condition, c.holds, c.seen))
        .collect();
    assert_eq!(
        told,
        [
            "cgi Fails: is CGI-like false; method is \"GET\", path is \"/x.html\", there is no query",
            "cookie Wins: any cookie is there true; cookie is \"7\", \"\\\"de\\\"\"",
            "images Fails: extension gif or jpg false; path is \"/x.html\"",
            "pages Fails: extension html true; path is \"/x.html\"",
            "pages Fails: host *.example false; host is \"b.test\"",
        ]
    );
    let late = paper().explain(&get("a.example/x.gif?y").facts());
    assert_eq!(late.routes[2].outcome, Outcome::TooLate);
}

#[test]
fn routes_that_never_win_are_found() {
    let prefix = |texts: &[&str]| Condition::PathPrefix(list(texts));
    let path = |texts: &[&str]| Condition::Path(list(texts));
    let extension = |texts: &[&str]| Condition::Extension(list(texts));
    let method = |texts: &[&str]| Condition::Method(list(texts));
    let client = |texts: &[&str]| Condition::Client(list(texts));
    for (earlier, later, hidden) in [
        (vec![], vec![path(&["/a"])], true),
        (vec![path(&["/a"])], vec![], false),
        (vec![prefix(&["/a"])], vec![path(&["/ab"])], true),
        (vec![prefix(&["/a"])], vec![path(&["/ab", "/b"])], false),
        (vec![prefix(&["/a", "/b"])], vec![prefix(&["/ab", "/b/"])], true),
        (
            vec![prefix(&["/a"]), method(&["GET"])],
            vec![prefix(&["/a"])],
            false,
        ),
        (
            vec![prefix(&["/a"])],
            vec![prefix(&["/a"]), method(&["GET"])],
            true,
        ),
        (vec![host(&["*.a.b"])], vec![host(&["c.a.b", "*.d.a.b"])], true),
        (vec![host(&["*.a.b"])], vec![host(&["a.b"])], false),
        (vec![host(&["*.a.b"])], vec![host(&["*.a.b"])], true),
        (vec![host(&["c.a.b"])], vec![host(&["*.a.b"])], false),
        (
            vec![client(&["10.0.0.0/8"])],
            vec![client(&["10.1.0.0/16", "10.2.3.4"])],
            true,
        ),
        (
            vec![client(&["10.1.0.0/16"])],
            vec![client(&["10.0.0.0/8"])],
            false,
        ),
        (vec![extension(&["gz"])], vec![extension(&["tar.gz"])], true),
        (vec![extension(&["gz"])], vec![path(&["/a.GZ"])], true),
        (vec![Condition::Cgi(true)], vec![Condition::Query(true)], true),
        (vec![Condition::Query(true)], vec![Condition::Cgi(true)], false),
        (vec![Condition::Cgi(true)], vec![method(&["POST"])], true),
        (vec![Condition::Cgi(true)], vec![method(&["POST", "GET"])], false),
        (vec![cookie("", Want::Present)], vec![cookie("a", is("1"))], true),
        (
            vec![cookie("a", Want::Present)],
            vec![cookie("", Want::Present)],
            false,
        ),
        (
            vec![cookie("", Want::Absent)],
            vec![cookie("a", Want::Absent)],
            false,
        ),
        (
            vec![cookie("a", Want::Absent)],
            vec![cookie("", Want::Absent)],
            true,
        ),
        (vec![header("x", Want::Present)], vec![header("X", is("1"))], true),
        (vec![header("x", is("1"))], vec![header("x", is("2"))], false),
        (vec![header("x", Want::Absent)], vec![header("x", is("2"))], false),
    ] {
        let table = Table::new(vec![route("earlier", earlier), route("later", later)]);
        let found = table.hidden().next();
        assert_eq!(found, hidden.then_some((1, 0)), "{table:?}");
    }
}

#[test]
fn contradictions_are_found() {
    for (conditions, impossible) in [
        (
            vec![
                Condition::Path(list(&["/a"])),
                Condition::PathPrefix(list(&["/b"])),
            ],
            true,
        ),
        (
            vec![
                Condition::Path(list(&["/a", "/b"])),
                Condition::PathPrefix(list(&["/b"])),
            ],
            false,
        ),
        (vec![Condition::Query(true), Condition::Cgi(false)], true),
        (
            vec![Condition::Method(list(&["PUT"])), Condition::Cgi(false)],
            true,
        ),
        (vec![cookie("", Want::Absent), cookie("a", Want::Present)], true),
        (vec![cookie("b", Want::Absent), cookie("a", Want::Present)], false),
        (vec![header("x", Want::Absent), header("X", is("1"))], true),
    ] {
        let route = route("one", conditions);
        assert_eq!(route.contradiction().is_some(), impossible, "{route:?}");
    }
}

#[test]
fn redirects() {
    let to: Redirect = "https://www.example/base/".parse().unwrap();
    for (target, location) in [
        ("/a?b", "https://www.example/base/a?b"),
        ("/%61/../?", "https://www.example/base/%61/../?"),
        ("http://a.test/x", "https://www.example/base/x"),
        ("http://a.test", "https://www.example/base"),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let head = RequestHead::parse(head.as_bytes(), &Limits::default()).unwrap();
        assert_eq!(to.location(&head.target()), location);
    }
    for (bad, says) in [
        ("www.example", "http:// or https://"),
        ("ftp://www.example", "http:// or https://"),
        ("https://", "names no host"),
        ("https:///a", "names no host"),
        ("https://:80", "names no host"),
        ("https://a?b", "appended"),
        ("https://a b", "percent-encoded"),
        ("https://a\r\nSet-Cookie: x", "percent-encoded"),
    ] {
        let error = bad.parse::<Redirect>().unwrap_err().to_string();
        assert!(error.contains(says), "{bad}: {error}");
    }
}

#[test]
fn facts_of_a_head_that_was_read() {
    let head = b"GET http://IMG.test:80/%61/../b.gif?c HTTP/1.1\r\nHost: other.test\r\nX-A:  1 \r\nCookie: a=b\r\n\r\n";
    let head = RequestHead::parse(head, &Limits::default()).unwrap();
    let facts = Facts::of_request("127.0.0.1".parse().unwrap(), &head);
    for condition in [
        host(&["img.test"]),
        Condition::Path(list(&["/b.gif"])),
        Condition::Query(true),
        header("x-a", is("1")),
        cookie("a", is("b")),
        Condition::Method(list(&["GET"])),
    ] {
        assert!(condition.holds(&facts), "{condition}");
    }
}
