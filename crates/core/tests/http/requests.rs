//! Tests the target, host, options and cookies of a request by the rules of RFC 9112 and RFC 9110.

use longsplice_core::http::{Persistence, Target, Version};

use crate::{crlf, request, shown};

#[test]
fn a_target_has_one_of_four_forms() {
    let forms = [
        ("GET", "/a/b?c=d?e", "origin /a/b c=d?e"),
        ("GET", "/?", "origin / "),
        ("GET", "//h/a", "origin //h/a -"),
        ("GET", "http://h", "http h  -"),
        ("GET", "HTTP://h:8080/a?b", "http h:8080 /a b"),
        ("GET", "https://[::1]:443?b", "https [::1]:443  b"),
        ("OPTIONS", "*", "*"),
        ("OPTIONS", "/", "origin / -"),
    ];
    for (method, target, expected) in forms {
        let bytes = crlf(&format!("{method} {target} HTTP/1.1\nHost: other\n\n"));
        let head = request(&bytes).unwrap();
        let form = match head.target() {
            Target::Origin { path, query } => format!("origin {path} {}", query.unwrap_or("-")),
            Target::Absolute {
                https,
                authority,
                path,
                query,
            } => {
                let scheme = if https { "https" } else { "http" };
                format!("{scheme} {} {path} {}", authority.as_str(), query.unwrap_or("-"))
            }
            Target::Authority(authority) => authority.as_str().to_owned(),
            Target::Asterisk => "*".to_owned(),
        };
        assert_eq!((form.as_str(), head.raw_target()), (expected, target));
    }
}

#[test]
fn the_host_is_the_targets_or_the_fields() {
    let rows = [
        ("/", "Host: A.example:8080\n", Some(("A.example", Some(8080)))),
        ("/", "Host: a.example:\n", Some(("a.example", None))),
        ("/", "Host: [2001:DB8::1]:80\n", Some(("[2001:DB8::1]", Some(80)))),
        ("/", "Host: 192.0.2.1\n", Some(("192.0.2.1", None))),
        ("/", "Host: a_b-c.example.\n", Some(("a_b-c.example.", None))),
        ("/", "Host:\n", Some(("", None))),
        (
            "http://b.example/",
            "Host: a.example\n",
            Some(("b.example", None)),
        ),
    ];
    for (target, field, expected) in rows {
        let bytes = crlf(&format!("GET {target} HTTP/1.1\n{field}\n"));
        let authority = request(&bytes).unwrap().authority();
        assert_eq!(authority.map(|a| (a.host(), a.port())), expected, "{field}");
    }
    let old = request(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!((old.authority(), old.version()), (None, Version::Http10));
}

/// Checks rows of a version, a Connection field, and whether another request follows (RFC 9112 section 9.3).
#[test]
fn a_connection_persists_as_version_and_options_say() {
    use Persistence::*;
    for (version, options, expected) in [
        ("1.1", "", KeepAlive),
        ("1.1", "Connection: close\n", Close),
        ("1.1", "Connection: foo, CLOSE\n", Close),
        ("1.1", "Connection: keep-alive\n", KeepAlive),
        ("1.1", "Connection: keep-alive\nConnection: close\n", Close),
        ("1.1", "Connection: closed\n", KeepAlive),
        ("1.0", "", Close),
        ("1.0", "Connection: Keep-Alive\n", KeepAlive),
        ("1.0", "Connection: keep-alive, close\n", Close),
        ("1.0", "Keep-Alive: timeout=5\n", Close),
    ] {
        let bytes = crlf(&format!("GET / HTTP/{version}\nHost: h\n{options}\n"));
        assert_eq!(
            request(&bytes).unwrap().persistence(),
            expected,
            "{version} {options}"
        );
    }
}

#[test]
fn an_upgrade_is_one_only_if_it_can_be_granted() {
    let upgrade = |version: &str, fields: &str| {
        let bytes = crlf(&format!("GET /chat HTTP/{version}\nHost: h\n{fields}\n"));
        request(&bytes).unwrap().upgrade().map(str::to_owned)
    };
    let asked = "Connection: keep-alive, Upgrade\nUpgrade: websocket\n";
    assert_eq!(upgrade("1.1", asked).as_deref(), Some("websocket"));
    // An upgrade is of HTTP/1.1 only, and Connection has to name it (RFC 9110 section 7.8).
    assert_eq!(upgrade("1.0", asked), None);
    assert_eq!(upgrade("1.1", "Upgrade: websocket\n"), None);
    assert_eq!(upgrade("1.1", "Connection: upgrade\n"), None);
    // Requests inside such a protocol would not be checked.
    assert_eq!(
        upgrade(
            "1.1",
            "Connection: upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: x\n"
        ),
        None
    );
    assert_eq!(
        upgrade("1.1", "Connection: upgrade\nUpgrade: websocket, H2C\n"),
        None
    );
    // The end of the body and the beginning of the other protocol could not be told apart.
    assert_eq!(upgrade("1.1", &format!("{asked}Content-Length: 5\n")), None);
    assert_eq!(
        upgrade("1.1", &format!("{asked}Content-Length: 0\n")).as_deref(),
        Some("websocket")
    );
}

#[test]
fn a_client_waits_for_a_go_on_if_it_says_so() {
    let expects = |version: &str, field: &str| {
        let bytes = crlf(&format!(
            "PUT / HTTP/{version}\nHost: h\nContent-Length: 3\n{field}\n"
        ));
        request(&bytes).unwrap().expects_continue()
    };
    assert!(expects("1.1", "Expect: 100-Continue\n"));
    assert!(!expects("1.1", ""));
    // The field is ignored in HTTP/1.0 (RFC 9110 section 10.1.1).
    assert!(!expects("1.0", "Expect: 100-continue\n"));
}

#[test]
fn cookies_are_read_as_servers_do() {
    let bytes = crlf("GET / HTTP/1.1\nHost: h\nCookie: a=1; b = \"2 \" ;c;; a=3\nCookie: d=e=f\n\n");
    let head = request(&bytes).unwrap();
    let cookies: Vec<_> = head.cookies().map(|(n, v)| (shown(n), shown(v))).collect();
    let expected = [
        ("a", "1"),
        ("b", r#"\"2 \""#),
        ("", "c"),
        ("a", "3"),
        ("d", "e=f"),
    ];
    assert_eq!(cookies, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    assert_eq!((head.cookie("a"), head.cookie("A")), (Some(&b"1"[..]), None));
}

#[test]
fn the_parts_of_a_head_can_be_asked_for() {
    let bytes = crlf("\n\nGET /%61/../b.GIF?x=%zz HTTP/1.1\nHost: h\nX: 1\nx:2\n\n");
    let head = request(&bytes).unwrap();
    assert_eq!(
        (head.method(), head.path(), head.query()),
        ("GET", Some("/b.GIF"), Some("x=%zz"))
    );
    assert_eq!(
        (head.extension(), head.raw_target()),
        (Some("GIF"), "/%61/../b.GIF?x=%zz")
    );
    assert_eq!(head.fields().values("X").collect::<Vec<_>>(), [b"1", b"2"]);
    assert_eq!(head.fields().first("HOST"), Some(&b"h"[..]));
    assert_eq!(head.raw(), &bytes[4..]);
}
