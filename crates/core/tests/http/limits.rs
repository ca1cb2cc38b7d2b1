//! Tests that no head exceeds its limits, and that a too large one is noticed before it is complete.

use longsplice_core::http::{Found, HeadError, Limits, RequestHead, Scan};

use crate::request;

#[test]
fn a_head_is_refused_as_soon_as_it_is_too_large() {
    let limits = Limits {
        head: 1_000,
        fields: 10,
        line: 200,
    };
    let refused_after = |bytes: Vec<u8>| {
        let mut scan = Scan::request();
        (1..=bytes.len()).find_map(|n| scan.find(&bytes[..n], &limits).err().map(|e| (n, e)))
    };
    let endless_target = [b"GET /".to_vec(), vec![b'a'; 300]].concat();
    assert_eq!(refused_after(endless_target), Some((201, HeadError::LineTooLong)));
    let endless_field = [b"GET / HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; 1_000]].concat();
    assert_eq!(refused_after(endless_field), Some((1_001, HeadError::TooLong)));
    let many_fields = [b"GET / HTTP/1.1\r\n".to_vec(), b"A:\r\n".repeat(11)].concat();
    assert_eq!(
        refused_after(many_fields),
        Some((16 + 44, HeadError::TooManyFields))
    );
    let empty_lines = b"\r\n".repeat(300);
    assert_eq!(refused_after(empty_lines), Some((10, HeadError::StartLine)));
}

#[test]
fn a_head_may_be_as_large_as_the_limits_say() {
    let limits = Limits::default();
    let usual = "GET / HTTP/1.1\r\nHost: h\r\n";
    let fill = limits.head - usual.len() - "A: \r\n\r\n".len();
    for (more, fits) in [(0, true), (1, false)] {
        let head = format!("{usual}A: {}\r\n\r\n", "a".repeat(fill + more));
        let found = Scan::request().find(head.as_bytes(), &limits);
        assert_eq!(found == Ok(Found::Head(head.len())), fits, "{more}");
        assert_eq!(request(head.as_bytes()).is_ok(), fits, "{more}");
    }
    for (fields, fits) in [
        (0, true),
        (40, true),
        (limits.fields - 1, true),
        (limits.fields, false),
    ] {
        let head = format!("{usual}{}\r\n", "A: b\r\n".repeat(fields));
        assert_eq!(request(head.as_bytes()).is_ok(), fits, "{fields}");
    }
    for (length, fits) in [
        (limits.line - "GET / HTTP/1.1\r\n".len(), true),
        (limits.line, false),
    ] {
        let head = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(length));
        assert_eq!(request(head.as_bytes()).is_ok(), fits, "{length}");
    }
    for (options, fits) in [(64, true), (65, false)] {
        let head = format!("{usual}Connection: {}\r\n\r\n", vec!["a"; options].join(","));
        assert_eq!(request(head.as_bytes()).is_ok(), fits, "{options}");
    }
    // No limit of any size panics.
    let none = Limits {
        head: 0,
        fields: 0,
        line: 0,
    };
    assert_eq!(
        RequestHead::parse(b"GET / HTTP/1.1\r\n\r\n", &none).err(),
        Some(HeadError::LineTooLong)
    );
}
