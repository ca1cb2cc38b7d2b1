//! Tests the requests that a recipient must refuse by RFC 9112 and RFC 9110, one row each, and the status of the
//! answer.

use longsplice_core::http::HeadError;

use crate::{request, shown};

/// Checks rows of a rule, a whole head, and its error.
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
        (
            "9110 4.2.3: an encoded letter",
            b"GET / HTTP/1.1\r\nHost: %61.example\r\n\r\n",
            Host,
        ),
        (
            "9110 4.2.3: an encoded letter in the target",
            b"GET http://%61.example/ HTTP/1.1\r\nHost: b\r\n\r\n",
            Host,
        ),
        (
            "1034 3.1: two dots at the end",
            b"GET http://a.example../ HTTP/1.1\r\nHost: b\r\n\r\n",
            Host,
        ),
        (
            "1034 3.1: two dots",
            b"GET / HTTP/1.1\r\nHost: a..b\r\n\r\n",
            Host,
        ),
        (
            "1034 3.1: a first dot",
            b"GET / HTTP/1.1\r\nHost: .a\r\n\r\n",
            Host,
        ),
        ("1034 3.1: only a dot", b"GET / HTTP/1.1\r\nHost: .\r\n\r\n", Host),
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
