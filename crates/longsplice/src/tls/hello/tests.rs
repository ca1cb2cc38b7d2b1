use std::sync::Arc;

use rustls::{ClientConnection, ServerConfig, server::ResolvesServerCertUsingSni};

use super::*;
use crate::tls::testing;

/// Returns the hello of a client for this server and these protocols, as one record.
fn hello(name: &str, alpn: &[&str]) -> Vec<u8> {
    let config = Arc::new(testing::client(&[], alpn));
    let mut client = ClientConnection::new(config, name.to_owned().try_into().unwrap()).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// Splits the message into records of at most this size (RFC 8446 section 5.1).
fn in_records(hello: &[u8], size: usize) -> Vec<u8> {
    let mut message = Vec::new();
    let mut rest = hello;
    while let Some((head, after)) = rest.split_first_chunk::<5>() {
        let (part, after) = after.split_at(usize::from(u16::from_be_bytes([head[3], head[4]])));
        message.extend(part);
        rest = after;
    }
    let record = |part: &[u8]| {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&[0x16, 3, 1][..], &length, part].concat()
    };
    message.chunks(size).flat_map(record).collect()
}

/// Replaces a name by another one of the same length.
fn renamed(hello: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = hello
        .windows(from.len())
        .position(|w| w == from.as_bytes())
        .unwrap();
    let mut bytes = hello.to_vec();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    bytes
}

/// Reads bytes that come in these pieces; returns the hello and all bytes.
fn read_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<(Hello, Vec<u8>)> {
    let mut reader = Reader::new(Vec::new());
    for piece in pieces {
        reader.bytes.extend(piece);
        match reader.step() {
            Step::NeedMore => {}
            Step::Yes(accepted) => {
                let read = Read {
                    accepted: *accepted,
                    bytes: reader.bytes,
                    seen: reader.seen,
                };
                return Some((read.hello(), read.bytes));
            }
            Step::No { error, .. } => panic!("{error}"),
            Step::TooLong => panic!("too long"),
        }
    }
    None
}

fn meant() -> Hello {
    Hello {
        sni: Some("a.example".into()),
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    }
}

#[test]
fn a_hello_is_read_wherever_it_is_split() {
    let bytes = hello("a.example", &["h2", "http/1.1"]);
    for n in 0..bytes.len() {
        assert_eq!(read_pieces([&bytes[..n]]), None, "{n} of {} bytes", bytes.len());
        let (hello, kept) = read_pieces([&bytes[..n], &bytes[n..]]).unwrap();
        assert_eq!((hello, &kept), (meant(), &bytes), "split at {n}");
    }
    assert_eq!(read_pieces(bytes.chunks(1)).unwrap(), (meant(), bytes));
}

#[test]
fn a_hello_is_read_in_records_of_any_size() {
    let one = hello("a.example", &["h2", "http/1.1"]);
    for size in 1..one.len() - 5 {
        let bytes = in_records(&one, size);
        let whole = read_pieces([&bytes[..]]).unwrap_or_else(|| panic!("records of {size} bytes"));
        assert_eq!(whole, (meant(), bytes.clone()), "records of {size} bytes");
        let single = read_pieces(bytes.chunks(1)).unwrap();
        assert_eq!(single, (meant(), bytes), "records of {size} bytes, byte by byte");
    }
}

#[test]
fn what_follows_a_hello_is_kept() {
    let mut bytes = hello("a.example", &["h2", "http/1.1"]);
    bytes.extend([0x17, 3, 3, 0, 2, 1, 2]);
    assert_eq!(read_pieces([&bytes[..]]), Some((meant(), bytes)));
}

#[test]
fn names_as_they_are_written() {
    let plain = hello("a.example", &[]);
    for (bytes, sni) in [
        (plain.clone(), Some("a.example")),
        (renamed(&plain, "a.example", "A.ExAmPlE"), Some("a.example")),
        (renamed(&plain, "a.example", "a.exampl."), Some("a.exampl")),
        (hello("xn--bcher-kva.example", &[]), Some("xn--bcher-kva.example")),
        (hello("192.0.2.1", &[]), None),
    ] {
        let (hello, _) = read_pieces([&bytes[..]]).unwrap();
        assert_eq!((hello.sni.as_deref(), hello.alpn), (sni, Vec::new()));
    }
}

#[test]
fn a_long_hello_has_a_limit() {
    let long = |records| {
        let names: Vec<String> = (0..200).map(|n| format!("{n:0200}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        in_records(&hello("a.example", &names), records)
    };
    let bytes = long(16_000);
    assert!(bytes.len() > 40_000);
    assert_eq!(read_pieces(bytes.chunks(1460)).unwrap().0.alpn.len(), 200);
    // Send a message of 65,000 bytes in records of one byte each: the bytes on the wire cost memory.
    let mut endless = vec![0x16, 3, 1, 0, 4, 1, 0, 0xfd, 0xe8];
    while endless.len() < LONGEST {
        endless.extend([0x16, 3, 1, 0, 1, 0]);
    }
    let mut reader = Reader::new(Vec::new());
    let mut read = 0;
    let too_long = endless.chunks(1000).any(|piece| {
        reader.bytes.extend(piece);
        read += piece.len();
        matches!(reader.step(), Step::TooLong)
    });
    assert!(too_long && read >= LONGEST, "after {read} bytes");
}

#[test]
fn what_is_no_hello_is_told_so() {
    let good = hello("a.example", &[]);
    let broken = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    for (what, bytes) in [
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
        ("PROXY", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n".to_vec()),
        ("zeros", vec![0; 64]),
        (
            "a hello of SSL 2",
            vec![0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10],
        ),
        ("data", vec![0x17, 3, 3, 0, 2, 1, 2]),
        ("a hello of a server", broken(5, 2)),
        ("a record of no version", broken(1, 9)),
        ("a record that is too long", broken(3, 0xff)),
        ("a list beyond its end", broken(43, 0xff)),
    ] {
        let mut reader = Reader::new(bytes);
        match reader.step() {
            Step::No { alert, .. } => {
                assert_eq!(
                    (alert.first(), alert.get(5)),
                    (Some(&0x15), Some(&2)),
                    "{what}: fatal"
                );
            }
            Step::NeedMore => panic!("{what}: waits for more"),
            Step::Yes(_) => panic!("{what}: taken"),
            Step::TooLong => panic!("{what}: too long"),
        }
    }
}

#[test]
fn an_alert_is_not_answered() {
    let mut reader = Reader::new(vec![0x15, 3, 1, 0, 2, 2, 40]);
    assert!(matches!(reader.step(), Step::No { alert, .. } if alert.is_empty()));
}

/// Returns the hello, of one record, with only the extensions that `keep` selects; without `keep`, even their length is
/// missing.
fn with_extensions(hello: &[u8], keep: Option<fn(u16) -> bool>) -> Vec<u8> {
    let message = &hello[5..];
    let length = |at: usize, size: usize| {
        message[at..at + size]
            .iter()
            .fold(0, |n, b| n << 8 | usize::from(*b))
    };
    let suites = 39 + length(38, 1);
    let methods = suites + 2 + length(suites, 2);
    let mut at = methods + 1 + length(methods, 1);
    let mut body = message[4..at].to_vec();
    at += 2;
    let mut kept = Vec::new();
    while at < message.len() {
        let next = at + 4 + length(at + 2, 2);
        if keep.is_some_and(|keep| keep(u16::from_be_bytes([message[at], message[at + 1]]))) {
            kept.extend_from_slice(&message[at..next]);
        }
        at = next;
    }
    if keep.is_some() {
        body.extend(u16::try_from(kept.len()).unwrap().to_be_bytes());
        body.extend(kept);
    }
    let [_, a, b, c] = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1, a, b, c][..], &body].concat();
    let record = u16::try_from(message.len()).unwrap().to_be_bytes();
    [&[0x16, 3, 1][..], &record, &message].concat()
}

const ALL_BUT_SIGNATURES: Option<fn(u16) -> bool> = Some(|kind| kind != 13);

#[test]
fn a_hello_without_signature_algorithms_is_read_where_it_is_passed_on() {
    let whole = hello("a.example", &["h2", "http/1.1"]);
    assert_eq!(
        with_extensions(&whole, Some(|_| true)),
        whole,
        "the test's own parser"
    );
    let bytes = with_extensions(&whole, ALL_BUT_SIGNATURES);
    let nothing = Hello {
        sni: None,
        alpn: Vec::new(),
    };
    let read = |bytes: &[u8], records: usize| {
        let mut bytes = in_records(bytes, records);
        bytes.extend([0x17, 3, 3, 0, 1, 7]);
        let mut reader = Reader::of_any(Vec::new());
        for byte in &bytes {
            reader.bytes.push(*byte);
            match reader.step() {
                Step::NeedMore => {}
                Step::Yes(accepted) => {
                    return Read {
                        accepted: *accepted,
                        bytes: reader.bytes,
                        seen: reader.seen,
                    }
                    .hello();
                }
                Step::No { error, .. } => panic!("records of {records}: {error}"),
                Step::TooLong => panic!("records of {records}: too long"),
            }
        }
        panic!("records of {records}: it waits for more");
    };
    for records in [1, 7, 100, usize::MAX] {
        assert_eq!(read(&bytes, records), meant());
        assert_eq!(read(&with_extensions(&whole, Some(|_| false)), records), nothing);
        assert_eq!(read(&with_extensions(&whole, None), records), nothing);
    }
}

#[test]
fn a_hello_without_signature_algorithms_cannot_be_answered() {
    let bytes = with_extensions(&hello("a.example", &[]), ALL_BUT_SIGNATURES);
    assert!(matches!(Reader::new(bytes).step(), Step::No { alert, .. } if !alert.is_empty()));
}

#[test]
fn a_client_that_knows_only_older_versions_is_told_that_it_is_the_version() {
    let config = ServerConfig::builder_with_provider(crate::tls::terminator::provider());
    let config = config
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    let config = Arc::new(config.with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new())));
    for version in [[3, 1], [3, 2]] {
        let mut bytes = with_extensions(&hello("a.example", &[]), ALL_BUT_SIGNATURES);
        bytes[VERSION].copy_from_slice(&version);
        let Step::No { error, alert } = Reader::new(bytes).step() else {
            panic!("{version:?}: taken");
        };
        assert_eq!(alert, PROTOCOL_VERSION);
        assert_eq!(error.to_string(), "it speaks only TLS versions before 1.2");
        // With signature algorithms, which came with TLS 1.2, the hello reaches the configuration. Extension 43 names
        // the versions.
        let mut bytes = with_extensions(&hello("a.example", &[]), Some(|kind| kind != 43));
        bytes[VERSION].copy_from_slice(&version);
        let Step::Yes(accepted) = Reader::new(bytes).step() else {
            panic!("{version:?}: it is a hello");
        };
        let (_, mut told) = accepted.into_connection(Arc::clone(&config)).unwrap_err();
        let mut alert = Vec::new();
        told.write_all(&mut alert).unwrap();
        assert_eq!(alert.last(), Some(&70), "{version:?}: {alert:?}");
    }
}

#[test]
fn nonsense_without_signature_algorithms_is_no_hello_either() {
    let good = with_extensions(&hello("a.example", &["h2"]), ALL_BUT_SIGNATURES);
    // Check that no changed byte makes the reader panic or read beyond the end.
    for at in 0..good.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            let _ = Reader::of_any(bytes).step();
            let _ = supplement::with_signature_algorithms(&good[..at]);
        }
    }
}
