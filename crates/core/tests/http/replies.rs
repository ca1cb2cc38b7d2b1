//! Tests the rules for replies of RFC 9112 and RFC 9110, one row each.

use longsplice_core::http::{Body, HeadError, Persistence, RequestKind, Version};

use crate::{crlf, reply, shown};

const GET: RequestKind = RequestKind::USUAL;
const HEAD: RequestKind = RequestKind { is_head: true, ..GET };
const UPGRADE: RequestKind = RequestKind {
    upgrades: true,
    ..GET
};
const OLD: RequestKind = RequestKind {
    version: Version::Http10,
    ..GET
};

/// Checks where the body of a reply ends, in rows of a rule, a request, the head behind `HTTP/1.`, and the result.
#[test]
fn the_body_of_a_reply_ends_where_the_rules_say() {
    use HeadError::*;
    const CHUNKED: &str = "Transfer-Encoding: chunked\n";
    let rows: &[(&str, RequestKind, String, Result<Body, HeadError>)] = &[
        (
            "9112 6.3.8: neither field",
            GET,
            "1 200 OK\n".into(),
            Ok(Body::UntilClose),
        ),
        (
            "9112 6.3.8: HTTP/1.0",
            GET,
            "0 200 OK\n".into(),
            Ok(Body::UntilClose),
        ),
        (
            "9112 6.3.6: a length",
            GET,
            "1 200 OK\nContent-Length: 7\n".into(),
            Ok(Body::Length(7)),
        ),
        (
            "9112 6.3.6: in HTTP/1.0",
            GET,
            "0 200 OK\nContent-Length: 7\n".into(),
            Ok(Body::Length(7)),
        ),
        (
            "9112 6.3.4: chunked",
            GET,
            format!("1 200 OK\n{CHUNKED}"),
            Ok(Body::Chunked),
        ),
        (
            "9112 6.1: chunked in HTTP/1.0",
            GET,
            format!("0 200 OK\n{CHUNKED}"),
            Err(CodingInOldVersion),
        ),
        (
            "9112 6.1: chunked for HTTP/1.0",
            OLD,
            format!("1 200 OK\n{CHUNKED}"),
            Err(CodingInOldVersion),
        ),
        (
            "9112 6.3.1: HEAD",
            HEAD,
            "1 200 OK\nContent-Length: 7\n".into(),
            Ok(Body::None),
        ),
        (
            "9112 6.3.1: HEAD, chunked",
            HEAD,
            format!("1 200 OK\n{CHUNKED}"),
            Ok(Body::None),
        ),
        (
            "9112 6.3.1: HEAD, neither",
            HEAD,
            "1 200 OK\n".into(),
            Ok(Body::None),
        ),
        (
            "9112 6.3.1: HEAD of HTTP/1.0, chunked",
            RequestKind { is_head: true, ..OLD },
            format!("1 200 OK\n{CHUNKED}"),
            Ok(Body::None),
        ),
        (
            "9112 6.3.1: 204",
            GET,
            "1 204 No Content\n".into(),
            Ok(Body::None),
        ),
        (
            "9112 6.3.1: 204 with a length",
            GET,
            "1 204 No Content\nContent-Length: 7\n".into(),
            Ok(Body::None),
        ),
        (
            "9112 6.3.1: 304 with a length",
            GET,
            "1 304 Not Modified\nContent-Length: 7\n".into(),
            Ok(Body::None),
        ),
        ("9112 6.3.1: 100", GET, "1 100 Continue\n".into(), Ok(Body::None)),
        (
            "9112 6.3.1: 103",
            GET,
            "1 103 Early Hints\nLink: </a>\n".into(),
            Ok(Body::None),
        ),
        ("9112 6.3.1: 199", GET, "1 199 \n".into(), Ok(Body::None)),
        (
            "9110 15.2.2: 101",
            UPGRADE,
            "1 101 Switching Protocols\n".into(),
            Ok(Body::None),
        ),
        (
            "9110 15.2.2: 101 that was not asked for",
            GET,
            "1 101 Switching Protocols\n".into(),
            Err(UnaskedSwitch),
        ),
        (
            "9110 15.3.6: 205 is framed as others",
            GET,
            "1 205 Reset Content\nContent-Length: 0\n".into(),
            Ok(Body::Length(0)),
        ),
        (
            "an error has a body",
            GET,
            "1 404 Not Found\nContent-Length: 3\n".into(),
            Ok(Body::Length(3)),
        ),
        (
            "9112 6.1: both fields",
            GET,
            format!("1 200 OK\nContent-Length: 7\n{CHUNKED}"),
            Err(TwoLengths),
        ),
        (
            "9112 6.1: both fields, HEAD",
            HEAD,
            format!("1 200 OK\nContent-Length: 7\n{CHUNKED}"),
            Err(TwoLengths),
        ),
        (
            "9112 6.3.5: lengths differ",
            GET,
            "1 200 OK\nContent-Length: 7\nContent-Length: 8\n".into(),
            Err(ContentLength),
        ),
        (
            "9112 6.3.5: a sign",
            GET,
            "1 200 OK\nContent-Length: -1\n".into(),
            Err(ContentLength),
        ),
        (
            "9112 6.1: unknown",
            GET,
            "1 200 OK\nTransfer-Encoding: gzip, chunked\n".into(),
            Err(UnknownCoding),
        ),
        (
            "9112 6.1: chunked twice",
            GET,
            format!("1 200 OK\n{CHUNKED}{CHUNKED}"),
            Err(TransferEncoding),
        ),
    ];
    for (rule, to, head, expected) in rows {
        let bytes = crlf(&format!("HTTP/1.{head}\n"));
        let body = reply(&bytes, *to).map(|head| head.body());
        assert_eq!(body, *expected, "{rule}: {}", shown(&bytes));
    }
}

#[test]
fn a_head_that_breaks_a_rule_is_refused() {
    use HeadError::*;
    let rows: &[(&str, &[u8], HeadError)] = &[
        ("9112 4: two spaces", b"HTTP/1.1  200 OK\r\n\r\n", StartLine),
        ("9112 4: two digits", b"HTTP/1.1 20 OK\r\n\r\n", StartLine),
        ("9112 4: four digits", b"HTTP/1.1 2000 OK\r\n\r\n", StartLine),
        ("9112 4: letters", b"HTTP/1.1 2x0 OK\r\n\r\n", StartLine),
        ("9110 15: below all", b"HTTP/1.1 099 OK\r\n\r\n", StartLine),
        ("9112 4: no status", b"HTTP/1.1\r\n\r\n", StartLine),
        ("9112 4: a tab", b"HTTP/1.1\t200 OK\r\n\r\n", StartLine),
        (
            "9112 4: NUL in the reason",
            b"HTTP/1.1 200 O\0K\r\n\r\n",
            StartLine,
        ),
        (
            "9112 4: CR in the reason",
            b"HTTP/1.1 200 O\rK\r\n\r\n",
            BareCarriageReturn,
        ),
        ("9112 2.3: another version", b"HTTP/2.0 200 OK\r\n\r\n", Version),
        ("another protocol", b"ICY 200 OK\r\n\r\n", StartLine),
        (
            "another protocol, seen with its first line",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            StartLine,
        ),
        ("another protocol, seen at once", b"\x15\x03\x03", StartLine),
        (
            "9112 2.2: an empty line before",
            b"\r\nHTTP/1.1 200 OK\r\n\r\n",
            StartLine,
        ),
        (
            "9112 2.2: LF alone",
            b"HTTP/1.1 200 OK\nA: b\r\n\r\n",
            BareLineFeed,
        ),
        (
            "9112 5.1: a blank before the colon",
            b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n",
            FieldName,
        ),
        (
            "9112 5.2: a folded line",
            b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            FieldName,
        ),
        ("9110 5.5: NUL", b"HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n", FieldValue),
    ];
    for (rule, bytes, expected) in rows {
        assert_eq!(
            reply(bytes, GET).err(),
            Some(*expected),
            "{rule}: {}",
            shown(bytes)
        );
    }
}

#[test]
fn a_status_line_has_three_parts_the_last_one_often_empty() {
    for (line, status, reason) in [
        ("HTTP/1.1 200 All is well", 200, "All is well"),
        ("HTTP/1.1 404 ", 404, ""),
        ("HTTP/1.1 404", 404, ""),
        ("HTTP/1.0 999 \u{e9}\t", 999, "\\xc3\\xa9\\t"),
    ] {
        let bytes = crlf(&format!("{line}\nContent-Length: 0\n\n"));
        let head = reply(&bytes, GET).unwrap();
        assert_eq!((head.status(), shown(head.reason()).as_str()), (status, reason));
    }
}

/// Checks the persistence of a server's connection (RFC 9112 section 9.3).
#[test]
fn a_servers_connection_persists_where_the_end_of_the_reply_is_known() {
    use Persistence::*;
    for (head, expected) in [
        ("1.1 200 OK\nContent-Length: 1\n", KeepAlive),
        ("1.1 200 OK\nTransfer-Encoding: chunked\n", KeepAlive),
        ("1.1 200 OK\nContent-Length: 1\nConnection: close\n", Close),
        ("1.1 200 OK\nConnection: keep-alive\n", Close),
        ("1.0 200 OK\nContent-Length: 1\n", Close),
        (
            "1.0 200 OK\nContent-Length: 1\nConnection: keep-alive\n",
            KeepAlive,
        ),
        ("1.1 304 Not Modified\nContent-Length: 5\n", KeepAlive),
        ("1.1 204 No Content\n", KeepAlive),
        // Five bytes that may follow would be the next reply.
        ("1.1 204 No Content\nContent-Length: 5\n", Close),
        ("1.1 204 No Content\nTransfer-Encoding: chunked\n", Close),
        ("1.1 204 No Content\nContent-Length: 0\n", KeepAlive),
    ] {
        let bytes = crlf(&format!("HTTP/{head}\n"));
        assert_eq!(reply(&bytes, GET).unwrap().persistence(), expected, "{head}");
    }
}

#[test]
fn what_follows_an_interim_reply_is_another_one() {
    for (status, request, interim, switches) in [
        (100, GET, true, false),
        (102, GET, true, false),
        (103, GET, true, false),
        (101, UPGRADE, false, true),
        (200, GET, false, false),
    ] {
        let bytes = crlf(&format!("HTTP/1.1 {status} x\n\n"));
        let head = reply(&bytes, request).unwrap();
        assert_eq!(
            (head.is_interim(), head.switches()),
            (interim, switches),
            "{status}"
        );
    }
}
