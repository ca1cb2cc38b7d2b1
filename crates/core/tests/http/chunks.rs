//! Chunked bodies (RFC 9112 section 7.1): the rules, and any split of the bytes.

use longsplice_core::http::{ChunkError, Chunks, Fed};
use proptest::prelude::*;

use crate::shown;

/// Rule, body, its result: how many bytes of it, or what is wrong.
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
        ("blanks without an extension", b"5 \r\n", Err(Extension)),
        ("a bare LF", b"5\nhello", Err(Size)),
        ("a bare CR", b"5\rhello", Err(Size)),
        ("beyond 2^63", b"8000000000000000\r\n", Err(TooLarge)),
        ("beyond 2^64", b"10000000000000005\r\n", Err(TooLarge)),
        ("seventeen digits", b"00000000000000005\r\n", Err(TooLarge)),
        ("no name", b"5;\r\n", Err(Extension)),
        ("no value", b"5;a=\r\n", Err(Extension)),
        ("a blank at the end", b"5;a \r\n", Err(Extension)),
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

/// How long the body is, given in pieces.
fn followed(bytes: &[u8], cuts: &[usize]) -> Result<usize, ChunkError> {
    let mut chunks = Chunks::new();
    let mut start = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        let fed = chunks.feed(&bytes[start..end])?;
        if fed.ended {
            return Ok(start + fed.length);
        }
        assert_eq!(
            fed.length,
            end - start,
            "all belongs to a body that has not ended"
        );
        start = end;
    }
    panic!("it has no end: {}", shown(bytes));
}

#[test]
fn extensions_and_trailers_are_limited() {
    let long = |n: usize| format!("0;{}\r\n\r\n", "a".repeat(n));
    assert!(followed(long(254).as_bytes(), &[]).is_ok());
    assert_eq!(
        followed(long(256).as_bytes(), &[]),
        Err(ChunkError::ExtensionTooLong)
    );
    // Each is short enough, all of them are not.
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
            ended: false
        })
    );
    assert_eq!((chunks.left(), chunks.data()), ((1 << 30) - 2, 2));
    assert_eq!(chunks.passed((1 << 30) - 3), Ok(()));
    assert_eq!(
        chunks.feed(b"c\r\n"),
        Ok(Fed {
            length: 3,
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
            ended: true
        })
    );
    assert!(chunks.ended());
    assert_eq!(
        chunks.feed(b"more"),
        Ok(Fed {
            length: 0,
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

/// Chunks with extensions and trailers, all right.
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

    /// Whatever the bytes are: pieces say what the whole says, and it is an error in both or in none.
    #[test]
    fn any_bytes_in_any_split_give_the_same(bytes in "[0-3a;=\" \r\n:x]{0,60}", cut in 0_usize..60) {
        let bytes = bytes.as_bytes();
        let cut = cut.min(bytes.len());
        let whole = Chunks::new().feed(bytes);
        let mut chunks = Chunks::new();
        let pieces = chunks.feed(&bytes[..cut]).and_then(|first| {
            let second = chunks.feed(&bytes[cut..])?;
            Ok(Fed { length: first.length + second.length, ended: second.ended })
        });
        prop_assert_eq!(whole, pieces);
    }

    /// What is skipped counts as what is seen.
    #[test]
    fn what_passes_unseen_counts_as_seen(body in body(), skip in 0_u64..300) {
        let mut chunks = Chunks::new();
        let mut rest = &body[..];
        while let [_, tail @ ..] = rest {
            let unseen = chunks.left().min(skip);
            if unseen > 0 {
                chunks.passed(unseen).unwrap();
                rest = &rest[usize::try_from(unseen).unwrap()..];
            } else {
                chunks.feed(&rest[..1]).unwrap();
                rest = tail;
            }
        }
        prop_assert!(chunks.ended());
    }
}
