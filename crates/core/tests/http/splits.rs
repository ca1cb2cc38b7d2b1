//! Tests that bytes may come in any pieces.

use longsplice_core::http::{Found, HeadError, Limits, ReplyHead, RequestHead, RequestKind, Scan};

use crate::crlf;

/// Returns the result of a scan when the bytes come up to each of these places in turn.
fn scanned(mut scan: Scan, bytes: &[u8], cuts: &[usize]) -> Result<Found, HeadError> {
    let mut said = Ok(Found::NeedMore);
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        said = scan.find(&bytes[..cut], &Limits::default());
        if said != Ok(Found::NeedMore) {
            break;
        }
    }
    said
}

#[test]
fn a_head_is_found_at_every_split() {
    let head = crlf("\n\nPOST /a?b HTTP/1.1\nHost: h\nContent-Length: 9\n\n");
    let bytes = [&head[..], b"body\r\n\r\n\n"].concat();
    for a in 0..=bytes.len() {
        for b in a..=bytes.len() {
            assert_eq!(
                scanned(Scan::request(), &bytes, &[a, b]),
                Ok(Found::Head(head.len())),
                "{a} {b}"
            );
        }
    }
    let each: Vec<usize> = (0..bytes.len()).collect();
    assert_eq!(
        scanned(Scan::request(), &bytes, &each),
        Ok(Found::Head(head.len()))
    );
    // A head is not complete one byte before its end.
    assert_eq!(
        scanned(Scan::request(), &bytes[..head.len() - 1], &each[..head.len() - 1]),
        Ok(Found::NeedMore)
    );
}

#[test]
fn a_reply_is_found_at_every_split() {
    let head = crlf("HTTP/1.1 200 OK\nContent-Length: 2\n\n");
    let bytes = [&head[..], b"\n\n"].concat();
    for cut in 0..=bytes.len() {
        assert_eq!(
            scanned(Scan::reply(), &bytes, &[cut]),
            Ok(Found::Head(head.len())),
            "{cut}"
        );
    }
}

#[test]
fn what_a_scan_has_found_is_read_without_a_second_look_and_no_other_bytes_are() {
    let limits = Limits::default();
    let found = |mut scan: Scan, bytes: &[u8], cut: usize| {
        let _ = scan.find(&bytes[..cut], &limits);
        let _ = scan.find(bytes, &limits);
        scan.scanned()
    };
    let request = crlf("\n\nPOST /a?b HTTP/1.1\nHost: h\nContent-Length: 9\n\n");
    let reply = crlf("HTTP/1.1 200 OK\nContent-Length: 2\n\n");
    for cut in 0..request.len() {
        let scanned = found(Scan::request(), &request, cut).unwrap();
        assert_eq!(scanned.length(), request.len());
        let read = RequestHead::read(&request, scanned, &limits).unwrap();
        let parsed = RequestHead::parse(&request, &limits).unwrap();
        assert_eq!(format!("{read:?}"), format!("{parsed:?}"), "{cut}");
        assert_eq!(read.raw(), &request[4..]);
    }
    for cut in 0..reply.len() {
        let scanned = found(Scan::reply(), &reply, cut).unwrap();
        let read = ReplyHead::read(&reply, scanned, RequestKind::USUAL, &limits).unwrap();
        let parsed = ReplyHead::parse(&reply, RequestKind::USUAL, &limits).unwrap();
        assert_eq!(format!("{read:?}"), format!("{parsed:?}"), "{cut}");
    }
    assert_eq!(found(Scan::request(), &request[..request.len() - 1], 0), None);
    let (asked, answered) = (
        found(Scan::request(), &request, 0).unwrap(),
        found(Scan::reply(), &reply, 0).unwrap(),
    );
    let whole = [&request[..], b"x"].concat();
    for bytes in [&whole[..], &request[..request.len() - 1], &reply, b""] {
        assert!(RequestHead::read(bytes, asked, &limits).is_err());
    }
    assert!(RequestHead::read(&reply, answered, &limits).is_err());
    assert!(ReplyHead::read(&request, asked, RequestKind::USUAL, &limits).is_err());
}

#[test]
fn http2_is_recognised_at_every_split() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let bytes = [&preface[..], b"\0\0\0\x04\0"].concat();
    for a in 0..=bytes.len() {
        for b in a..=bytes.len() {
            assert_eq!(
                scanned(Scan::request(), &bytes, &[a, b]),
                Ok(Found::Http2),
                "{a} {b}"
            );
        }
    }
    let each: Vec<usize> = (0..bytes.len()).collect();
    assert_eq!(scanned(Scan::request(), &bytes, &each), Ok(Found::Http2));
    assert_eq!(scanned(Scan::request(), &preface[..23], &[]), Ok(Found::NeedMore));
    // The bytes are another request after all: its version is refused when it is read.
    let other = b"PRI * HTTP/2.0\r\n\r\nGET / HTTP/1.1\r\n\r\n";
    for a in 0..=other.len() {
        assert_eq!(scanned(Scan::request(), other, &[a]), Ok(Found::Head(18)), "{a}");
    }
}

#[test]
fn what_is_wrong_is_seen_at_every_split() {
    let bytes = b"GET / HTTP/1.1\r\nA: b\nHost: h\r\n\r\n";
    for cut in 0..=bytes.len() {
        assert_eq!(
            scanned(Scan::request(), bytes, &[cut]),
            Err(HeadError::BareLineFeed),
            "{cut}"
        );
    }
}

#[test]
fn a_request_has_begun_with_its_first_byte() {
    let mut scan = Scan::request();
    let limits = Limits::default();
    assert!(!scan.has_begun());
    assert_eq!(scan.find(b"\r\n", &limits), Ok(Found::NeedMore));
    assert!(!scan.has_begun());
    assert_eq!(scan.find(b"\r\nG", &limits), Ok(Found::NeedMore));
    assert!(scan.has_begun());
}
