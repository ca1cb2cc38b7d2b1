//! The rules for requests of RFC 9112 and RFC 9110, one row each.

use longsplice_core::http::{Body, HeadError, Persistence, Target, Version};

use crate::{crlf, request, shown};

/// Where the body of a request ends: rule, fields behind `Host`, result.
#[test]
fn the_body_of_a_request_ends_where_the_rules_say() {
    use HeadError::*;
    const MOST: &str = "Content-Length: 9223372036854775807\n";
    const TOO_MUCH: &str = "Content-Length: 9223372036854775808\n";
    let rows: &[(&str, &str, Result<Body, HeadError>)] = &[
        ("9112 6.3.7: neither field", "", Ok(Body::None)),
        ("9112 6.3.6: a length", "Content-Length: 5\n", Ok(Body::Length(5))),
        ("9112 6.3.6: no bytes", "Content-Length: 0\n", Ok(Body::Length(0))),
        ("9110 5.1: any case", "content-LENGTH:5\n", Ok(Body::Length(5))),
        (
            "9110 5.5: blanks around the value",
            "Content-Length:\t 5 \t\n",
            Ok(Body::Length(5)),
        ),
        (
            "9110 8.6: leading zeros",
            "Content-Length: 005\n",
            Ok(Body::Length(5)),
        ),
        (
            "9110 8.6: equal numbers in a list",
            "Content-Length: 5, 5,5\n",
            Ok(Body::Length(5)),
        ),
        (
            "9110 8.6: equal numbers on lines",
            "Content-Length: 5\nContent-Length: 5\n",
            Ok(Body::Length(5)),
        ),
        (
            "9112 6.3.5: numbers that differ",
            "Content-Length: 5, 6\n",
            Err(ContentLength),
        ),
        (
            "9112 6.3.5: lines that differ",
            "Content-Length: 5\nContent-Length: 6\n",
            Err(ContentLength),
        ),
        ("9112 6.3.5: empty", "Content-Length: \n", Err(ContentLength)),
        (
            "9112 6.3.5: an empty element",
            "Content-Length: 5,\n",
            Err(ContentLength),
        ),
        ("9110 8.6: plus", "Content-Length: +5\n", Err(ContentLength)),
        ("9110 8.6: minus", "Content-Length: -5\n", Err(ContentLength)),
        (
            "9110 8.6: hexadecimal",
            "Content-Length: 0x5\n",
            Err(ContentLength),
        ),
        ("9110 8.6: letters", "Content-Length: a\n", Err(ContentLength)),
        (
            "9110 8.6: a blank inside",
            "Content-Length: 5 0\n",
            Err(ContentLength),
        ),
        (
            "9110 8.6: a fraction",
            "Content-Length: 5.0\n",
            Err(ContentLength),
        ),
        (
            "9110 8.6: an exponent",
            "Content-Length: 1e3\n",
            Err(ContentLength),
        ),
        (
            "9110 8.6: an underscore",
            "Content-Length: 1_000\n",
            Err(ContentLength),
        ),
        ("9110 8.6: quotes", "Content-Length: \"5\"\n", Err(ContentLength)),
        (
            "9110 8.6: other digits",
            "Content-Length: \u{665}\n",
            Err(ContentLength),
        ),
        ("the longest", MOST, Ok(Body::Length(i64::MAX as u64))),
        ("a sign would turn", TOO_MUCH, Err(ContentLength)),
        (
            "2^64 would wrap",
            "Content-Length: 18446744073709551621\n",
            Err(ContentLength),
        ),
        (
            "much longer",
            "Content-Length: 99999999999999999999999999999999\n",
            Err(ContentLength),
        ),
        (
            "9112 6.3.4: chunked",
            "Transfer-Encoding: chunked\n",
            Ok(Body::Chunked),
        ),
        (
            "9112 7: any case",
            "transfer-encoding: Chunked\n",
            Ok(Body::Chunked),
        ),
        (
            "9112 6.1: both fields",
            "Content-Length: 5\nTransfer-Encoding: chunked\n",
            Err(TwoLengths),
        ),
        (
            "9112 6.1: unknown alone",
            "Transfer-Encoding: gzip\n",
            Err(UnknownCoding),
        ),
        (
            "9112 6.1: unknown before chunked",
            "Transfer-Encoding: gzip, chunked\n",
            Err(UnknownCoding),
        ),
        (
            "9112 6.1: identity is gone",
            "Transfer-Encoding: identity\n",
            Err(UnknownCoding),
        ),
        (
            "9112 6.1: chunked twice",
            "Transfer-Encoding: chunked, chunked\n",
            Err(TransferEncoding),
        ),
        (
            "9112 6.3.4: chunked not last",
            "Transfer-Encoding: chunked, gzip\n",
            Err(TransferEncoding),
        ),
        (
            "9112 7: a parameter",
            "Transfer-Encoding: chunked;q=1\n",
            Err(TransferEncoding),
        ),
        ("9112 6.1: empty", "Transfer-Encoding: \n", Err(TransferEncoding)),
        (
            "9112 6.1: an empty element",
            "Transfer-Encoding: , chunked\n",
            Err(TransferEncoding),
        ),
    ];
    for (rule, fields, expected) in rows {
        let bytes = crlf(&format!("POST / HTTP/1.1\nHost: h\n{fields}\n"));
        let body = request(&bytes).map(|head| head.body());
        assert_eq!(body, *expected, "{rule}: {}", shown(&bytes));
    }
}

/// Rule, all of the head, what is wrong with it.
#[test]
fn a_head_that_breaks_a_rule_is_refused() {
    use HeadError::*;
    let rows: &[(&str, &[u8], HeadError)] = &[
        (
            "9112 2.2: LF after the first line",
            b"GET / HTTP/1.1\nHost: h\r\n\r\n",
            BareLineFeed,
        ),
        (
            "9112 2.2: LF after a field",
            b"GET / HTTP/1.1\r\nHost: h\n\r\n",
            BareLineFeed,
        ),
        (
            "9112 2.2: LF as the empty line",
            b"GET / HTTP/1.1\r\nHost: h\r\n\n",
            BareLineFeed,
        ),
        (
            "9112 2.2: CR in a value",
            b"GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n",
            FieldValue,
        ),
        (
            "9112 2.2: CR before CR LF",
            b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\r\n\r\n",
            FieldValue,
        ),
        (
            "9112 2.2: CR in a name",
            b"GET / HTTP/1.1\r\nHost: h\r\nA\rB: c\r\n\r\n",
            FieldName,
        ),
        (
            "9112 2.2: CR in the first line",
            b"GET /\r HTTP/1.1\r\nHost: h\r\n\r\n",
            BareCarriageReturn,
        ),
        (
            "9112 2.2: CR after the version",
            b"GET / HTTP/1.1\r\r\nHost: h\r\n\r\n",
            BareCarriageReturn,
        ),
        (
            "9112 2.2: CR before the first line",
            b"\r\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
            BareCarriageReturn,
        ),
        (
            "9112 2.2: CR at a line's start",
            b"GET / HTTP/1.1\r\n\rHost: h\r\n\r\n",
            BareCarriageReturn,
        ),
        (
            "9112 2.2: a blank before the first field",
            b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
            FieldName,
        ),
        (
            "9112 3: two spaces",
            b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
            StartLine,
        ),
        ("9112 3: a tab", b"GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", StartLine),
        (
            "9112 3: a space at the end",
            b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n",
            StartLine,
        ),
        (
            "9112 3: a space in the target",
            b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
            StartLine,
        ),
        (
            "9112 3: a space before the method",
            b" GET / HTTP/1.1\r\nHost: h\r\n\r\n",
            StartLine,
        ),
        ("HTTP/0.9", b"GET /\r\n\r\n", StartLine),
        (
            "9112 2.3: lower case",
            b"GET / http/1.1\r\nHost: h\r\n\r\n",
            StartLine,
        ),
        (
            "9112 2.3: no number",
            b"GET / HTTP/1\r\nHost: h\r\n\r\n",
            StartLine,
        ),
        (
            "9112 2.3: two digits",
            b"GET / HTTP/1.10\r\nHost: h\r\n\r\n",
            StartLine,
        ),
        (
            "9110 15.6.6: a higher one",
            b"GET / HTTP/1.2\r\nHost: h\r\n\r\n",
            Version,
        ),
        ("9110 15.6.6: 2.0", b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", Version),
        ("9110 15.6.6: 0.9", b"GET / HTTP/0.9\r\nHost: h\r\n\r\n", Version),
        ("9110 9.1: no token", b"G(T / HTTP/1.1\r\nHost: h\r\n\r\n", Method),
        (
            "another protocol is seen with its first line",
            b"EHLO client.example\r\n",
            StartLine,
        ),
        ("what is TLS is seen at once", b"\x16\x03\x01\x02", StartLine),
        ("9112 3.2: no form", b"GET a HTTP/1.1\r\nHost: h\r\n\r\n", Target),
        ("9112 3.2: empty", b"GET  HTTP/1.1\r\nHost: h\r\n\r\n", Target),
        (
            "9112 3.2.4: * of another method",
            b"GET * HTTP/1.1\r\nHost: h\r\n\r\n",
            Target,
        ),
        (
            "9112 3.2.3: an authority of another method",
            b"GET h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
            Target,
        ),
        (
            "9112 3.2.3: CONNECT to a path",
            b"CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n",
            Target,
        ),
        (
            "9110 9.3.6: CONNECT",
            b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n",
            Connect,
        ),
        (
            "9112 3.2: a fragment",
            b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
            Target,
        ),
        ("9112 3.2: NUL", b"GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", Target),
        (
            "9112 3.2: beyond ASCII",
            b"GET /\xc3\xbc HTTP/1.1\r\nHost: h\r\n\r\n",
            Target,
        ),
        (
            "9112 3.2: no UTF-8",
            b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
            Target,
        ),
        (
            "9110 4.2: another scheme",
            b"GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n",
            Target,
        ),
        (
            "9110 4.2.1: no host",
            b"GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n",
            Host,
        ),
        (
            "9110 4.2.4: userinfo",
            b"GET http://me@h/ HTTP/1.1\r\nHost: h\r\n\r\n",
            Host,
        ),
        (
            "3986 2.1: half a triplet",
            b"GET /%4 HTTP/1.1\r\nHost: h\r\n\r\n",
            PercentTriplet,
        ),
        (
            "3986 2.1: no hexadecimal",
            b"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n",
            PercentTriplet,
        ),
        ("9112 3.2: no Host", b"GET / HTTP/1.1\r\n\r\n", NoHost),
        (
            "9112 3.2: no Host beside an absolute form",
            b"GET http://h/ HTTP/1.1\r\n\r\n",
            NoHost,
        ),
        (
            "9112 3.2: two of them",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            SeveralHosts,
        ),
        (
            "9112 3.2: two in HTTP/1.0",
            b"GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
            SeveralHosts,
        ),
        ("9112 3.2: a list", b"GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", Host),
        ("9110 7.2: a blank", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Host),
        ("9110 7.2: a path", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Host),
        (
            "9110 7.2: userinfo",
            b"GET / HTTP/1.1\r\nHost: me@a\r\n\r\n",
            Host,
        ),
        (
            "9110 7.2: a port of letters",
            b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
            Host,
        ),
        (
            "9110 7.2: a port beyond all",
            b"GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n",
            Host,
        ),
        (
            "9110 7.2: two ports",
            b"GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n",
            Host,
        ),
        (
            "9110 7.2: an open bracket",
            b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
            Host,
        ),
        (
            "9110 7.2: no address in brackets",
            b"GET / HTTP/1.1\r\nHost: [a]\r\n\r\n",
            Host,
        ),
        (
            "9110 7.2: text behind a bracket",
            b"GET / HTTP/1.1\r\nHost: [::1]a\r\n\r\n",
            Host,
        ),
        (
            "9110 7.2: an IPv6 address without",
            b"GET / HTTP/1.1\r\nHost: ::1\r\n\r\n",
            Host,
        ),
        (
            "9112 5.1: a blank before the colon",
            b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
            FieldName,
        ),
        (
            "9112 5.1: a tab before the colon",
            b"GET / HTTP/1.1\r\nHost\t: h\r\n\r\n",
            FieldName,
        ),
        (
            "9112 5.2: a folded line",
            b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",
            FieldName,
        ),
        (
            "9112 5.2: folded with a tab",
            b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n\tc\r\n\r\n",
            FieldName,
        ),
        (
            "9110 5.1: no name",
            b"GET / HTTP/1.1\r\nHost: h\r\n: b\r\n\r\n",
            FieldName,
        ),
        (
            "9110 5.1: no colon",
            b"GET / HTTP/1.1\r\nHost: h\r\nab\r\n\r\n",
            FieldName,
        ),
        (
            "9110 5.1: beyond ASCII",
            b"GET / HTTP/1.1\r\nHost: h\r\n\xc3\xa4: b\r\n\r\n",
            FieldName,
        ),
        (
            "9110 5.5: NUL",
            b"GET / HTTP/1.1\r\nHost: h\r\nA: \0\r\n\r\n",
            FieldValue,
        ),
        (
            "9110 5.5: a vertical tab",
            b"GET / HTTP/1.1\r\nHost: h\r\nA: \x0bb\r\n\r\n",
            FieldValue,
        ),
        (
            "9110 5.5: DEL",
            b"GET / HTTP/1.1\r\nHost: h\r\nA: b\x7f\r\n\r\n",
            FieldValue,
        ),
        (
            "9110 10.1.1: an unknown one",
            b"GET / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n",
            Expectation,
        ),
        (
            "9110 10.1.1: hidden",
            b"GET / HTTP/1.1\r\nHost: h\r\nExpect: y 100-continue\r\n\r\n",
            Expectation,
        ),
        (
            "9112 6.1: chunks of HTTP/1.0",
            b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            CodingInOldVersion,
        ),
        (
            "9112 2.2: many empty lines",
            b"\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
            StartLine,
        ),
    ];
    for (rule, bytes, expected) in rows {
        let refused = request(bytes).err();
        assert_eq!(refused, Some(*expected), "{rule}: {}", shown(bytes));
    }
}

#[test]
fn each_refusal_has_its_status_and_a_remedy() {
    use HeadError::*;
    for (error, status) in [
        (BareLineFeed, 400),
        (TooLong, 431),
        (TooManyFields, 431),
        (TooManyOptions, 431),
        (LineTooLong, 414),
        (Version, 505),
        (UnknownCoding, 501),
        (Connect, 501),
        (Expectation, 417),
        (TwoLengths, 400),
    ] {
        assert_eq!(error.status(), status, "{error}");
    }
}

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

/// RFC 9112 section 9.3: version, Connection, whether another request follows.
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
    // RFC 9110 section 7.8: of HTTP/1.1 only, and Connection has to name it.
    assert_eq!(upgrade("1.0", asked), None);
    assert_eq!(upgrade("1.1", "Upgrade: websocket\n"), None);
    assert_eq!(upgrade("1.1", "Connection: upgrade\n"), None);
    // Requests in it would not be looked at.
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
    // Where the body ends and the other protocol begins is not for us to guess.
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
    // RFC 9110 section 10.1.1: ignored in HTTP/1.0.
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
