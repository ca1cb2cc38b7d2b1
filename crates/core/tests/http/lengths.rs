//! Tests where the body of a request ends (RFC 9112 section 6.3, RFC 9110 section 8.6), one row each.

use longsplice_core::http::{Body, HeadError};

use crate::{crlf, request, shown};

/// Checks rows of a rule, the fields behind `Host`, and the result.
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
