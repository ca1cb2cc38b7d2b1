//! Tests heads as they are sent on.

use std::borrow::Cow;

use longsplice_core::http::{
    Persistence, RequestKind, Version,
    rewrite::{self, Forwarded, ForwardedFields, SetCookie, ToClient, ToServer},
};
use proptest::prelude::*;

use crate::{crlf, reply, request};

const KEEP: ToServer<'_> = ToServer {
    persistence: Persistence::KeepAlive,
    forwarded: None,
    via: None,
};
const CLOSE: ToServer<'_> = ToServer {
    persistence: Persistence::Close,
    ..KEEP
};
const TO_CLIENT: ToClient<'_> = ToClient {
    persistence: Persistence::KeepAlive,
    version: Version::Http11,
    set_cookie: None,
    date: None,
    via: None,
};

fn text(bytes: Cow<'_, [u8]>) -> String {
    String::from_utf8(bytes.into_owned())
        .expect("UTF-8")
        .replace("\r\n", "\n")
}

fn sent_on(head: &str, to: &ToServer<'_>) -> String {
    text(rewrite::request(&request(&crlf(head)).expect("a request"), to))
}

fn returned(head: &str, kind: RequestKind, to: &ToClient<'_>) -> String {
    text(rewrite::reply(&reply(&crlf(head), kind).expect("a reply"), to))
}

#[test]
fn a_request_in_which_nothing_changes_keeps_its_bytes() {
    for head in [
        "GET /%61/../b?c HTTP/1.1\nHost:h\nUser-Agent:  x\t\nAccept: */*\n\n",
        "GET / HTTP/1.1\nHost: h\nConnection: Keep-Alive\n\n",
        "POST / HTTP/1.1\nHost: h\nContent-Length: 5\nExpect: 100-continue\n\n",
        "GET / HTTP/1.1\nHost: h\nConnection: Upgrade\nUpgrade: websocket\n\n",
        "GET / HTTP/1.0\nConnection: keep-alive\n\n",
        "OPTIONS * HTTP/1.1\nHost: h\nX-Forwarded-For: a\n\n",
    ] {
        let bytes = crlf(head);
        let head = request(&bytes).unwrap();
        assert!(
            matches!(rewrite::request(&head, &KEEP), Cow::Borrowed(b) if b == bytes),
            "{head:?}"
        );
    }
}

#[test]
fn fields_of_the_clients_connection_are_left_out() {
    for (head, expected) in [
        // The fields that stay keep their order (RFC 9110 section 7.6.1).
        (
            "GET / HTTP/1.1\nA: 1\nConnection: close, X-Hop\nHost: h\nx-hop: 2\nKeep-Alive: 3\nProxy-Connection: close\nB: 4\n\n",
            "GET / HTTP/1.1\nA: 1\nHost: h\nB: 4\n\n",
        ),
        (
            "GET / HTTP/1.1\nHost: h\nTE: gzip;q=1\n\n",
            "GET / HTTP/1.1\nHost: h\n\n",
        ),
        // TE stands in Connection, too (RFC 9110 section 10.1.4).
        (
            "GET / HTTP/1.1\nHost: h\nConnection: TE\nTE: gzip, trailers\n\n",
            "GET / HTTP/1.1\nHost: h\nTE: trailers\nConnection: TE\n\n",
        ),
        (
            "GET / HTTP/1.1\nHost: h\nUpgrade: websocket\n\n",
            "GET / HTTP/1.1\nHost: h\n\n",
        ),
        (
            "GET / HTTP/1.1\nHost: h\nUpgrade: websocket\nConnection: keep-alive, Upgrade\n\n",
            "GET / HTTP/1.1\nHost: h\nUpgrade: websocket\nConnection: upgrade\n\n",
        ),
        // The authority of the target becomes Host (RFC 9112 section 3.2.2).
        (
            "GET http://b:80?c HTTP/1.1\nA: 1\nHost: h\n\n",
            "GET /?c HTTP/1.1\nHost: b:80\nA: 1\n\n",
        ),
        (
            "OPTIONS http://b HTTP/1.1\nHost: h\n\n",
            "OPTIONS * HTTP/1.1\nHost: b\n\n",
        ),
        ("GET / HTTP/1.0\n\n", "GET / HTTP/1.0\nConnection: keep-alive\n\n"),
        // A higher minor version is answered as 1.1 (RFC 9110 section 2.5).
        ("GET / HTTP/1.9\nHost: h\n\n", "GET / HTTP/1.1\nHost: h\n\n"),
        // A client repeats its expectation: the server gets it once (RFC 9110 section 10.1.1).
        (
            "PUT / HTTP/1.1\nHost: h\nExpect: 100-continue\nexpect: 100-Continue\nContent-Length: 1\n\n",
            "PUT / HTTP/1.1\nHost: h\nContent-Length: 1\nExpect: 100-continue\n\n",
        ),
        (
            "PUT / HTTP/1.1\nHost: h\nContent-Length: 1\nExpect: 100-continue, 100-continue\n\n",
            "PUT / HTTP/1.1\nHost: h\nContent-Length: 1\nExpect: 100-continue\n\n",
        ),
        // HTTP/1.0 has no expectations (RFC 9110 section 10.1.1).
        (
            "PUT / HTTP/1.0\nExpect: 100-continue\nConnection: keep-alive\nContent-Length: 1\n\n",
            "PUT / HTTP/1.0\nContent-Length: 1\nConnection: keep-alive\n\n",
        ),
        (
            "PUT / HTTP/1.1\nHost: h\nContent-Length: 1\nContent-Length: 01\n\n",
            "PUT / HTTP/1.1\nHost: h\nContent-Length: 1\n\n",
        ),
        // Servers do not agree on tabs around a value, which are blanks (RFC 9112 section 5).
        (
            "PUT / HTTP/1.1\nHost:\th\nA:\t1\nContent-Length:\t1\t \n\n",
            "PUT / HTTP/1.1\nHost: h\nA: 1\nContent-Length: 1\n\n",
        ),
        (
            "PUT / HTTP/1.1\nHost: h\ntransfer-encoding:\tchunked\t\n\n",
            "PUT / HTTP/1.1\nHost: h\ntransfer-encoding: chunked\n\n",
        ),
        ("GET / HTTP/1.1\nHost: h\t\n\n", "GET / HTTP/1.1\nHost: h\n\n"),
    ] {
        assert_eq!(sent_on(head, &KEEP), expected, "{head}");
        assert_eq!(sent_on(expected, &KEEP), expected, "what was rewritten stays");
    }
    assert_eq!(
        sent_on("GET / HTTP/1.1\nHost: h\n\n", &CLOSE),
        "GET / HTTP/1.1\nHost: h\nConnection: close\n\n"
    );
    assert_eq!(
        sent_on("GET / HTTP/1.0\n\n", &CLOSE),
        "GET / HTTP/1.0\nConnection: close\n\n"
    );
}

#[test]
fn the_server_is_told_who_asks() {
    let fields = ForwardedFields {
        x_for: true,
        x_proto: true,
        x_host: true,
        standard: true,
    };
    let to = |client: &str, https| ToServer {
        forwarded: Some(Forwarded {
            fields,
            replaces: false,
            client: client.parse().unwrap(),
            https,
        }),
        ..KEEP
    };
    assert_eq!(
        sent_on("GET / HTTP/1.1\nHost: a.example\n\n", &to("192.0.2.1", false)),
        "GET / HTTP/1.1\nHost: a.example\nX-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\n\
         X-Forwarded-Host: a.example\nForwarded: for=192.0.2.1;proto=http;host=a.example\n\n"
    );
    // Addresses are appended to the client's values; the other fields are replaced.
    assert_eq!(
        sent_on(
            "GET / HTTP/1.1\nHost: a:80\nX-Forwarded-For: 1\nx-forwarded-for: 2, 3\nX-Forwarded-Proto: x\n\
             X-Forwarded-Host: y\nForwarded: for=4\n\n",
            &to("2001:db8::1", true)
        ),
        "GET / HTTP/1.1\nHost: a:80\nX-Forwarded-For: 1, 2, 3, 2001:db8::1\nX-Forwarded-Proto: https\n\
         X-Forwarded-Host: a:80\nForwarded: for=4, for=\"[2001:db8::1]\";proto=https;host=\"a:80\"\n\n"
    );
    // The client's own fields are replaced, and nothing is appended to a quoted string of the client (RFC 7239 section
    // 4).
    let mut alone = to("192.0.2.1", false);
    alone.forwarded.as_mut().unwrap().replaces = true;
    assert_eq!(
        sent_on(
            "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1\nx-forwarded-port: 2\nX-Real-IP: 3\nForwarded: for=4\nX-For: 5\n\n",
            &alone
        ),
        "GET / HTTP/1.1\nHost: h\nX-For: 5\nX-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\nX-Forwarded-Host: h\n\
         Forwarded: for=192.0.2.1;proto=http;host=h\n\n"
    );
    alone.forwarded.as_mut().unwrap().fields = ForwardedFields::default();
    assert_eq!(
        sent_on("GET / HTTP/1.1\nHost: h\nForwarded: for=4\n\n", &alone),
        "GET / HTTP/1.1\nHost: h\n\n"
    );
    for open in [
        "for=\"evil",
        "for=\"a\\\"",
        "for=1\nForwarded: for=\"",
        "for=\"\\",
    ] {
        let head = format!("GET / HTTP/1.1\nHost: h\nForwarded: {open}\n\n");
        let sent = sent_on(&head, &to("192.0.2.1", false));
        assert!(sent.contains("\nForwarded: for=192.0.2.1;"), "{sent}");
    }
    let quoted = "GET / HTTP/1.1\nHost: h\nForwarded: for=\"[::1]\", by=\"\\\"\"\n\n";
    let sent = sent_on(quoted, &to("192.0.2.1", false));
    assert!(
        sent.contains("\nForwarded: for=\"[::1]\", by=\"\\\"\", for=192"),
        "{sent}"
    );
    // An IPv4 client of an IPv6 socket; no host; unrequested fields go on.
    let only_for = ForwardedFields {
        x_for: true,
        ..ForwardedFields::default()
    };
    let mut mapped = to("::ffff:192.0.2.1", false);
    mapped.forwarded.as_mut().unwrap().fields = only_for;
    assert_eq!(
        sent_on(
            "GET / HTTP/1.0\nConnection: keep-alive\nForwarded: for=4\n\n",
            &mapped
        ),
        "GET / HTTP/1.0\nForwarded: for=4\nX-Forwarded-For: 192.0.2.1\nConnection: keep-alive\n\n"
    );
    // An empty set of fields has no effect.
    mapped.forwarded.as_mut().unwrap().fields = ForwardedFields::default();
    let bytes = crlf("GET / HTTP/1.1\nHost: h\n\n");
    assert!(matches!(
        rewrite::request(&request(&bytes).unwrap(), &mapped),
        Cow::Borrowed(_)
    ));
}

#[test]
fn fields_with_underscores_are_as_if_they_had_not_come() {
    let bytes = crlf("GET / HTTP/1.1\nHost: h\nX_Forwarded_For: 1\nContent_Length: 7\nA-B: 2\n\n");
    let mut head = request(&bytes).unwrap();
    assert!(head.has_underscores());
    head.drop_underscores();
    assert!(!head.has_underscores());
    assert_eq!(
        text(rewrite::request(&head, &KEEP)),
        "GET / HTTP/1.1\nHost: h\nA-B: 2\n\n"
    );
    let bytes = crlf("GET /a_b HTTP/1.1\nHost: h\nA-B: c_d\n\n");
    let mut head = request(&bytes).unwrap();
    head.drop_underscores();
    assert!(matches!(rewrite::request(&head, &KEEP), Cow::Borrowed(b) if b == bytes));
}

#[test]
fn hops_are_counted_and_named() {
    let named = ToServer {
        via: Some("switch"),
        ..KEEP
    };
    assert_eq!(
        sent_on("GET / HTTP/1.0\nConnection: keep-alive\nVia: 1.1 a\n\n", &named),
        "GET / HTTP/1.0\nVia: 1.1 a\nVia: 1.0 switch\nConnection: keep-alive\n\n"
    );
    // Max-Forwards counts for these two methods only (RFC 9110 section 7.6.2).
    for (line, there, sent) in [
        ("OPTIONS /", "Max-Forwards: 5", "Max-Forwards: 4"),
        ("TRACE /", "max-forwards: 1", "Max-Forwards: 0"),
        ("GET /", "Max-Forwards: 5", "Max-Forwards: 5"),
        ("OPTIONS /", "Max-Forwards: x", "Max-Forwards: x"),
    ] {
        let head = |field: &str| format!("{line} HTTP/1.1\nHost: h\n{field}\n\n");
        assert_eq!(sent_on(&head(there), &KEEP), head(sent), "{line} {there}");
    }
    let bytes = crlf("TRACE / HTTP/1.1\nHost: h\nMax-Forwards: 0\n\n");
    assert_eq!(request(&bytes).unwrap().max_forwards(), Some(0));
}

#[test]
fn a_reply_has_a_date_and_names_its_hops() {
    let to = ToClient {
        date: Some(std::time::SystemTime::UNIX_EPOCH),
        ..TO_CLIENT
    };
    for (head, expected) in [
        (
            "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
            "HTTP/1.1 200 OK\nContent-Length: 5\nDate: Thu, 01 Jan 1970 00:00:00 GMT\n\n",
        ),
        ("HTTP/1.1 304 x\ndate: y\n\n", "HTTP/1.1 304 x\ndate: y\n\n"),
        ("HTTP/1.1 103 x\nLink: y\n\n", "HTTP/1.1 103 x\nLink: y\n\n"),
        // A higher minor version becomes 1.1 (RFC 9110 section 2.5).
        ("HTTP/1.3 304 x\nDate: y\n\n", "HTTP/1.1 304 x\nDate: y\n\n"),
    ] {
        assert_eq!(returned(head, RequestKind::USUAL, &to), expected);
    }
    let named = ToClient {
        via: Some("switch"),
        ..TO_CLIENT
    };
    assert_eq!(
        returned("HTTP/1.0 304 x\nVia: 1.1 a\n\n", RequestKind::USUAL, &named),
        "HTTP/1.1 304 x\nVia: 1.1 a\nVia: 1.0 switch\n\n"
    );
}

#[test]
fn a_reply_in_which_nothing_changes_keeps_its_bytes() {
    for head in [
        "HTTP/1.1 200 OK\nServer:x\nContent-Length: 5\n\n",
        "HTTP/1.1 200 OK\nConnection: keep-alive\nTransfer-Encoding: chunked\n\n",
        "HTTP/1.1 304 Not Modified\nContent-Length: 5\n\n",
        "HTTP/1.1 100 Continue\n\n",
    ] {
        let bytes = crlf(head);
        let head = reply(&bytes, RequestKind::USUAL).unwrap();
        assert!(
            matches!(rewrite::reply(&head, &TO_CLIENT), Cow::Borrowed(b) if b == bytes),
            "{head:?}"
        );
    }
}

#[test]
fn a_reply_says_what_is_true_of_the_clients_connection() {
    use Persistence::*;
    let upgrades = RequestKind {
        upgrades: true,
        ..RequestKind::USUAL
    };
    for (head, persistence, version, expected) in [
        (
            "HTTP/1.1 200 OK\nConnection: close\nContent-Length: 5\nKeep-Alive: x\n\n",
            KeepAlive,
            Version::Http11,
            "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
        ),
        (
            "HTTP/1.0 200 OK\nContent-Length: 5\n\n",
            KeepAlive,
            Version::Http11,
            "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
        ),
        // Clients do not agree on tabs around a value, which are blanks (RFC 9112 section 5).
        (
            "HTTP/1.1 200 OK\nContent-Length:\t5\t \n\n",
            KeepAlive,
            Version::Http11,
            "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
        ),
        (
            "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\t\n\n",
            KeepAlive,
            Version::Http11,
            "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n",
        ),
        (
            "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
            KeepAlive,
            Version::Http10,
            "HTTP/1.1 200 OK\nContent-Length: 5\nConnection: keep-alive\n\n",
        ),
        (
            "HTTP/1.1 200\nA: b\n\n",
            Close,
            Version::Http11,
            "HTTP/1.1 200 \nA: b\nConnection: close\n\n",
        ),
        (
            "HTTP/1.0 200 OK\n\n",
            Close,
            Version::Http10,
            "HTTP/1.1 200 OK\nConnection: close\n\n",
        ),
        (
            "HTTP/1.1 200 OK\nContent-Length: 5, 5\nUpgrade: h2c\n\n",
            KeepAlive,
            Version::Http11,
            "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
        ),
        // 204 has no length (RFC 9110 section 8.6).
        (
            "HTTP/1.1 204 x\nContent-Length: 5\n\n",
            KeepAlive,
            Version::Http11,
            "HTTP/1.1 204 x\n\n",
        ),
        (
            "HTTP/1.1 204 x\nTransfer-Encoding: chunked\n\n",
            Close,
            Version::Http11,
            "HTTP/1.1 204 x\nConnection: close\n\n",
        ),
        (
            "HTTP/1.1 103 x\nLink: y\n\n",
            Close,
            Version::Http11,
            "HTTP/1.1 103 x\nLink: y\n\n",
        ),
        (
            "HTTP/1.1 101 x\nConnection: Upgrade, Foo\nUpgrade: websocket\nFoo: 1\n\n",
            Close,
            Version::Http11,
            "HTTP/1.1 101 x\nUpgrade: websocket\nConnection: upgrade\n\n",
        ),
    ] {
        let to = ToClient {
            persistence,
            version,
            ..TO_CLIENT
        };
        assert_eq!(returned(head, upgrades, &to), expected, "{head}");
    }
}

#[test]
fn a_reply_can_set_the_cookie_of_the_switch() {
    let head = "HTTP/1.1 200 OK\nSet-Cookie: a=b\nContent-Length: 0\n\n";
    for (secure, end) in [(false, ""), (true, "; Secure")] {
        let set_cookie = Some(SetCookie {
            name: "server",
            value: "one",
            secure,
        });
        assert_eq!(
            returned(
                head,
                RequestKind::USUAL,
                &ToClient {
                    set_cookie,
                    ..TO_CLIENT
                }
            ),
            format!(
                "HTTP/1.1 200 OK\nSet-Cookie: a=b\nContent-Length: 0\nSet-Cookie: server=one; Path=/; HttpOnly{end}\n\n"
            )
        );
    }
}

#[test]
fn only_the_last_reply_sets_the_cookie() {
    let upgrades = RequestKind {
        upgrades: true,
        ..RequestKind::USUAL
    };
    let set_cookie = Some(SetCookie {
        name: "server",
        value: "one",
        secure: false,
    });
    let to = ToClient {
        set_cookie,
        ..TO_CLIENT
    };
    let cookie = "Set-Cookie: server=one; Path=/; HttpOnly\n";
    for (head, expected) in [
        ("HTTP/1.1 100 x\n\n", "HTTP/1.1 100 x\n\n".to_owned()),
        // This head changes for another reason.
        (
            "HTTP/1.0 103 x\nLink: y\n\n",
            "HTTP/1.1 103 x\nLink: y\n\n".to_owned(),
        ),
        (
            "HTTP/1.1 101 x\nConnection: Upgrade\nUpgrade: websocket\n\n",
            format!("HTTP/1.1 101 x\nUpgrade: websocket\n{cookie}Connection: upgrade\n\n"),
        ),
    ] {
        assert_eq!(returned(head, upgrades, &to), expected, "{head}");
    }
}

/// Yields fields with known names, and others.
fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    let name = prop_oneof![
        Just("Connection".to_owned()),
        Just("connection".to_owned()),
        Just("Keep-Alive".to_owned()),
        Just("TE".to_owned()),
        Just("Upgrade".to_owned()),
        Just("X-Forwarded-For".to_owned()),
        Just("Forwarded".to_owned()),
        Just("Content-Length".to_owned()),
        Just("Cookie".to_owned()),
        "[A-Za-z][A-Za-z0-9_-]{0,12}",
    ];
    let value = prop_oneof![
        Just("5".to_owned()),
        Just("close".to_owned()),
        Just("Upgrade, a".to_owned()),
        Just("trailers".to_owned()),
        "[ -~]{0,20}",
    ];
    prop::collection::vec((name, value), 0..8)
}

proptest! {
    /// Checks that a forwarded head is read again as the same request, and that forwarding it once more changes
    /// nothing.
    #[test]
    fn what_goes_on_is_the_same_request(fields in fields(), old in any::<bool>(), absolute in any::<bool>(), close in any::<bool>(), forward in any::<bool>()) {
        let version = if old { "1.0" } else { "1.1" };
        let target = if absolute { "http://h:80/a/%2e?b" } else { "/a/%2e?b" };
        let lines: String = fields.iter().map(|(n, v)| format!("{n}: {v}\n")).collect();
        let bytes = crlf(&format!("POST {target} HTTP/{version}\nHost: h:80\n{lines}\n"));
        let Ok(head) = request(&bytes) else { return Ok(()); };
        let forwarded = forward.then(|| Forwarded {
            fields: ForwardedFields { x_for: true, standard: true, ..ForwardedFields::default() },
            replaces: false,
            client: "2001:db8::7".parse().unwrap(),
            https: true,
        });
        let to = ToServer { persistence: if close { Persistence::Close } else { Persistence::KeepAlive }, forwarded, via: None };
        let sent = rewrite::request(&head, &to);
        let again = request(&sent).expect("what is sent can be read");
        prop_assert_eq!((again.method(), again.path(), again.query()), (head.method(), head.path(), head.query()));
        prop_assert_eq!((again.body(), again.version()), (head.body(), head.version()));
        prop_assert_eq!(again.authority().map(|a| a.as_str()), head.authority().map(|a| a.as_str()));
        prop_assert_eq!(again.upgrade(), head.upgrade());
        prop_assert_eq!(again.expects_continue(), head.expects_continue());
        prop_assert_eq!(again.cookies().collect::<Vec<_>>(), head.cookies().collect::<Vec<_>>());
        if again.upgrade().is_none() {
            prop_assert_eq!(again.persistence(), to.persistence);
        }
        let once_more = rewrite::request(&again, &ToServer { forwarded: None, ..to });
        prop_assert_eq!(&once_more[..], &sent[..]);
    }
}
