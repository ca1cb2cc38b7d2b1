//! Tests that requests are not smuggled: each row is refused before its hidden request could be sent on.

#[allow(unreachable_pub)] // The tests over connections have this file, too.
#[path = "smuggled.rs"]
mod smuggled;

use longsplice_core::http::{
    Body, Chunks, Found, Limits, Persistence, RequestHead, Scan,
    rewrite::{self, ToServer},
};
use smuggled::SMUGGLED;

use crate::{request, shown};

/// Returns the status of the answer to these bytes of a client, and `None` if a request is read out of them.
fn refused(bytes: &[u8]) -> Option<u16> {
    let limits = Limits::default();
    let length = match Scan::request().find(bytes, &limits) {
        Err(e) => return Some(e.status()),
        Ok(Found::Head(length)) => length,
        Ok(found) => panic!("{found:?}: {}", shown(bytes)),
    };
    let (head, rest) = bytes.split_at(length);
    match RequestHead::parse(head, &limits) {
        Err(e) => Some(e.status()),
        Ok(head) if head.body() == Body::Chunked => Chunks::new().feed(rest).is_err().then_some(400),
        Ok(_) => None,
    }
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    for (name, bytes, status) in SMUGGLED {
        assert_eq!(refused(bytes), Some(*status), "{name}: {}", shown(bytes));
    }
    // The table's macros make valid requests but for the fault: without it, the request is accepted.
    assert_eq!(
        refused(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET"),
        None
    );
}

/// Checks that a request whose reading depends on the server goes on in a form with one reading.
#[test]
fn what_goes_on_says_one_thing() {
    let onward = |fields: &str| {
        let bytes = format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let to = ToServer {
            persistence: Persistence::KeepAlive,
            forwarded: None,
            via: None,
        };
        let head = request(bytes.as_bytes()).unwrap();
        String::from_utf8(rewrite::request(&head, &to).into_owned()).unwrap()
    };
    let start = "POST / HTTP/1.1\r\nHost: h\r\n";
    for (fields, expected) in [
        // CL.0: the server gets the length of the body as one plain number.
        ("Content-Length: 05, 5\r\n", "Content-Length: 5\r\n"),
        // Connection cannot remove fields that frame or route.
        (
            "Content-Length: 5\r\nConnection: Content-Length\r\n",
            "Content-Length: 5\r\n",
        ),
        (
            "Transfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n",
            "Transfer-Encoding: chunked\r\n",
        ),
        ("Connection: host, cookie\r\nCookie: a=b\r\n", "Cookie: a=b\r\n"),
        (
            "X-Forwarded-Proto: https\r\nConnection: X-Forwarded-Proto\r\n",
            "X-Forwarded-Proto: https\r\n",
        ),
        // Connection cannot let another protocol through, either.
        (
            "Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n",
            "",
        ),
        // A name that looks like another one hides no message.
        ("Content_Length: 5\r\n", "Content_Length: 5\r\n"),
    ] {
        assert_eq!(onward(fields), format!("{start}{expected}\r\n"), "{fields}");
    }
}
