//! Tests the rules of chunked bodies (RFC 9112 section 7.1), with any split of the bytes.

use longsplice_core::http::{ChunkError, Chunks, Fed};
use proptest::prelude::*;

use crate::shown;

/// Checks rows of a rule, a body, and its result: how many bytes belong to it, or its error.
#[test]
fn a_chunked_body_ends_where_the_rules_say() {
    use ChunkError::*;
    let rows: &[(&str, &[u8], Result<usize, ChunkError>)] = &[
        ("no data", b"0\r\n\r\nGET", Ok(5)),
        ("a chunk", b"5\r\nhello\r\n0\r\n\r\nGET", Ok(15)),
        (
            "upper and lower case",
            b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n",
            Ok(35),
        ),
        ("several zeros", b"05\r\nhello\r\n000\r\n\r\n", Ok(18)),
        ("sixteen digits", b"0000000000000001\r\na\r\n0\r\n\r\n", Ok(26)),
        ("data of CR LF", b"4\r\n\r\n\r\n\r\n0\r\n\r\n", Ok(14)),
        ("an extension", b"0;a\r\n\r\n", Ok(7)),
        ("a value", b"0;a=b\r\n\r\n", Ok(9)),
        ("two of them", b"0;a=b;c\r\n\r\n", Ok(11)),
        ("blanks", b"0 ;\ta = b ; c\r\n\r\n", Ok(17)),
        ("a quoted value", b"0;a=\"b;\\\"\xc3\xa4 \"\r\n\r\n", Ok(17)),
        ("trailers", b"0\r\nA: b\r\nC:\r\n\r\nGET", Ok(15)),
        (
            "a trailer that begins like a name of a head",
            b"0\r\nHostess: b\r\nContent-Length-Of: x\r\n\r\n",
            Ok(39),
        ),
        ("empty", b"\r\n", Err(Size)),
        ("no hexadecimal", b"g\r\n", Err(Size)),
        ("a sign", b"-1\r\n", Err(Size)),
        ("blanks without an extension", b"5 \r\n", Err(Blanks)),
        ("a tab without an extension", b"5\t\r\n", Err(Blanks)),
        ("blanks behind a value", b"5;a=b \r\n", Err(Blanks)),
        ("text behind blanks", b"5 a\r\n", Err(Extension)),
        ("a bare LF", b"5\nhello", Err(Size)),
        ("a bare CR", b"5\rhello", Err(Size)),
        ("beyond 2^63", b"8000000000000000\r\n", Err(TooLarge)),
        ("beyond 2^64", b"10000000000000005\r\n", Err(TooLarge)),
        ("seventeen digits", b"00000000000000005\r\n", Err(TooLarge)),
        ("no name", b"5;\r\n", Err(Extension)),
        ("no value", b"5;a=\r\n", Err(Extension)),
        ("a blank at the end", b"5;a \r\n", Err(Blanks)),
        ("an open quote", b"5;a=\"b\r\n", Err(Extension)),
        ("text behind a quote", b"5;a=\"b\"c\r\n", Err(Extension)),
        ("NUL", b"5;a\0\r\n", Err(Extension)),
        ("a bare LF in an extension", b"5;a\n", Err(Extension)),
        ("a bare CR behind an extension", b"5;a\rb", Err(Size)),
        ("data that is longer", b"1\r\nab\r\n", Err(DataEnd)),
        ("data that ends with LF", b"1\r\na\n", Err(DataEnd)),
        ("data that ends with CR", b"1\r\na\ra", Err(DataEnd)),
        ("a trailer without a colon", b"0\r\nA\r\n\r\n", Err(Trailer)),
        ("a trailer without a name", b"0\r\n: b\r\n\r\n", Err(Trailer)),
        ("a blank before the colon", b"0\r\nA : b\r\n\r\n", Err(Trailer)),
        ("a folded trailer", b"0\r\nA: b\r\n c\r\n\r\n", Err(Trailer)),
        ("NUL in a trailer", b"0\r\nA: \0\r\n\r\n", Err(Trailer)),
        ("a bare LF in a trailer", b"0\r\nA: b\n", Err(Trailer)),
        ("a bare CR in a trailer", b"0\r\nA: b\rc", Err(Trailer)),
        ("a bare LF as the end", b"0\r\n\n", Err(Trailer)),
        ("a bare CR as the end", b"0\r\n\ra", Err(Trailer)),
        (
            "9110 6.5.1: a length",
            b"0\r\ncontent-length: 5\r\n",
            Err(TrailerField),
        ),
        (
            "9110 6.5.1: a coding",
            b"0\r\nTransfer-Encoding: chunked\r\n",
            Err(TrailerField),
        ),
        ("9110 6.5.1: a host", b"0\r\nHost: h\r\n", Err(TrailerField)),
    ];
    for (rule, bytes, expected) in rows {
        assert_eq!(followed(bytes, &[]), *expected, "{rule}: {}", shown(bytes));
        for cut in 0..=bytes.len() {
            assert_eq!(
                followed(bytes, &[cut]),
                *expected,
                "{rule}, at {cut}: {}",
                shown(bytes)
            );
        }
        let each: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(
            followed(bytes, &each),
            *expected,
            "{rule}, each byte: {}",
            shown(bytes)
        );
    }
}

/// Returns the length of the body, given in pieces.
fn followed(bytes: &[u8], cuts: &[usize]) -> Result<usize, ChunkError> {
    sent(bytes, cuts).map(|(length, _)| length)
}

/// Returns the length of the body, given in pieces, and the bytes of it that go on.
fn sent(bytes: &[u8], cuts: &[usize]) -> Result<(usize, Vec<u8>), ChunkError> {
    let mut chunks = Chunks::new();
    let mut sent = Vec::new();
    let mut start = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        loop {
            let fed = chunks.feed(&bytes[start..end])?;
            sent.extend(&bytes[start..start + fed.length]);
            start += fed.length + fed.dropped;
            if fed.ended {
                return Ok((start, sent));
            }
            if fed.dropped == 0 {
                break;
            }
        }
    }
    panic!("it has no end: {}", shown(bytes));
}

#[test]
fn trailers_that_servers_merge_are_not_sent_on() {
    for (trailers, expected) in [
        ("Authorization: Basic x\r\n", ""),
        ("A: 1\r\nX-Forwarded-For: ::1\r\nB: 2\r\n", "A: 1\r\nB: 2\r\n"),
        (
            "cookie: a=b\r\nTE: gzip\r\nX_Y: 1\r\nProxy-Authorization: 2\r\nC:\r\n",
            "C:\r\n",
        ),
        (
            "Grpc-Status: 0\r\nCookies: 1\r\nTea: 2\r\n",
            "Grpc-Status: 0\r\nCookies: 1\r\nTea: 2\r\n",
        ),
    ] {
        let bytes = format!("1\r\na\r\n0\r\n{trailers}\r\n");
        let left = format!("1\r\na\r\n0\r\n{expected}\r\n");
        for cut in 0..=bytes.len() {
            let (length, sent) = sent(bytes.as_bytes(), &[cut]).unwrap();
            assert_eq!(length, bytes.len(), "{trailers}, at {cut}");
            assert_eq!(String::from_utf8(sent).unwrap(), left, "{trailers}, at {cut}");
        }
        let each: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(
            sent(bytes.as_bytes(), &each),
            Ok((bytes.len(), left.into_bytes()))
        );
    }
}

#[test]
fn extensions_and_trailers_are_limited() {
    let long = |n: usize| format!("0;{}\r\n\r\n", "a".repeat(n));
    assert!(followed(long(254).as_bytes(), &[]).is_ok());
    assert_eq!(
        followed(long(256).as_bytes(), &[]),
        Err(ChunkError::ExtensionTooLong)
    );
    // Each of them is short enough, but all together are not.
    let many = "1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n".repeat(1_000);
    assert_eq!(
        Chunks::new().feed(many.as_bytes()),
        Err(ChunkError::ExtensionTooLong)
    );
    let trailer = |n: usize| format!("0\r\nA: {}\r\n\r\n", "a".repeat(n));
    assert!(followed(trailer(8 * 1024 - 7).as_bytes(), &[]).is_ok());
    assert_eq!(
        followed(trailer(8 * 1024 - 6).as_bytes(), &[]),
        Err(ChunkError::TrailerTooLong)
    );
}

#[test]
fn a_long_chunk_passes_unseen() {
    let mut chunks = Chunks::new();
    assert_eq!(chunks.left(), 0);
    assert_eq!(
        chunks.feed(b"40000000\r\nab"),
        Ok(Fed {
            length: 12,
            dropped: 0,
            ended: false
        })
    );
    assert_eq!((chunks.left(), chunks.data()), ((1 << 30) - 2, 2));
    assert_eq!(chunks.passed((1 << 30) - 3), Ok(()));
    assert_eq!(
        chunks.feed(b"c\r\n"),
        Ok(Fed {
            length: 3,
            dropped: 0,
            ended: false
        })
    );
    assert_eq!(
        (chunks.left(), chunks.passed(0), chunks.data()),
        (0, Ok(()), 1 << 30)
    );
    assert_eq!(
        chunks.feed(b"0\r\n\r\n0"),
        Ok(Fed {
            length: 5,
            dropped: 0,
            ended: true
        })
    );
    assert!(chunks.ended());
    assert_eq!(
        chunks.feed(b"more"),
        Ok(Fed {
            length: 0,
            dropped: 0,
            ended: true
        })
    );

    let mut chunks = Chunks::new();
    assert!(chunks.feed(b"2\r\n").is_ok());
    assert_eq!(chunks.passed(3), Err(ChunkError::PassedTooMuch));
    assert_eq!(chunks.feed(b"ab\r\n0\r\n\r\n"), Err(ChunkError::PassedTooMuch));
}

#[test]
fn an_error_stays() {
    let mut chunks = Chunks::new();
    assert_eq!(chunks.feed(b"x"), Err(ChunkError::Size));
    assert_eq!(chunks.feed(b"0\r\n\r\n"), Err(ChunkError::Size));
    assert!(!chunks.ended());
}

/// Yields chunks with valid extensions and trailers.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let extension = prop_oneof![Just(""), Just(";a"), Just(" ; a=b;c"), Just(";q=\"\\\"x y\"")];
    let chunk = (prop::collection::vec(any::<u8>(), 1..300), extension).prop_map(|(data, extension)| {
        let size = format!("{:x}{extension}\r\n", data.len());
        [size.as_bytes(), &data, b"\r\n"].concat()
    });
    let trailer = prop_oneof![
        Just(""),
        Just("A: b\r\n"),
        Just("A:\r\nLong-Name-Of-A-Trailer: c\td\r\n")
    ];
    (prop::collection::vec(chunk, 0..6), trailer).prop_map(|(chunks, trailer)| {
        [
            chunks.concat(),
            b"0\r\n".to_vec(),
            trailer.as_bytes().to_vec(),
            b"\r\n".to_vec(),
        ]
        .concat()
    })
}

proptest! {
    #[test]
    fn any_split_gives_the_same(body in body(), next in prop::collection::vec(any::<u8>(), 0..20), mut cuts in prop::collection::vec(0_usize..2_500, 0..12)) {
        let bytes = [&body[..], &next[..]].concat();
        cuts.retain(|cut| *cut <= bytes.len());
        cuts.sort_unstable();
        prop_assert_eq!(followed(&bytes, &cuts), Ok(body.len()));
    }

    /// Checks that pieces of any bytes give the same result as the whole, in errors, too.
    #[test]
    fn any_bytes_in_any_split_give_the_same(bytes in "[0-3a;=\" \r\n:x]{0,60}", cut in 0_usize..60) {
        let bytes = bytes.as_bytes();
        let cut = cut.min(bytes.len());
        let whole = Chunks::new().feed(bytes);
        let mut chunks = Chunks::new();
        let pieces = chunks.feed(&bytes[..cut]).and_then(|first| {
            let second = chunks.feed(&bytes[first.length..])?;
            Ok(Fed { length: first.length + second.length, ..second })
        });
        prop_assert_eq!(whole, pieces);
    }

    /// Checks that skipped bytes count like those that are read.
    #[test]
    fn what_passes_unseen_counts_as_seen(body in body(), skip in 0_u64..300) {
        let mut chunks = Chunks::new();
        let mut rest = &body[..];
        let mut more = 1;
        while !rest.is_empty() {
            let unseen = chunks.left().min(skip);
            if unseen > 0 {
                chunks.passed(unseen).unwrap();
                rest = &rest[usize::try_from(unseen).unwrap()..];
            } else {
                // A trailer line goes on when it is complete.
                let fed = chunks.feed(&rest[..more]).unwrap();
                rest = &rest[fed.length..];
                more = if fed.length > 0 { 1 } else { more + 1 };
            }
        }
        prop_assert!(chunks.ended());
    }
}
