use proptest::prelude::*;

use super::*;

fn addresses(source: &str, destination: &str) -> Option<Addresses> {
    Some(Addresses {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    })
}

/// Returns the content of all the bytes; every beginning of them must ask for more.
fn whole(bytes: &[u8]) -> Result<Header, Malformed> {
    for n in 0..bytes.len() {
        match parse(&bytes[..n]) {
            Ok(Step::NeedMore) => {}
            Ok(done) => panic!("done after {n} of {} bytes: {done:?}", bytes.len()),
            Err(error) => return Err(error),
        }
    }
    // The bytes behind it are the client's, even if they look like another header.
    let mut more = bytes.to_vec();
    more.extend(b"PROXY UNKNOWN\r\n");
    for given in [bytes, &more] {
        match parse(given)? {
            Step::Done { length, .. } => assert_eq!(length, bytes.len()),
            Step::NeedMore => panic!("not done after {} bytes", given.len()),
        }
    }
    match parse(bytes)? {
        Step::Done { header, .. } => Ok(header),
        Step::NeedMore => unreachable!(),
    }
}

/// Makes a header of version 2 from its parts.
fn v2(command: u8, kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    bytes.extend([command, kind]);
    bytes.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
    bytes.extend(rest);
    bytes
}

const IPV4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb];

#[test]
fn lines_of_version_1() {
    let longest = "PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535 and whatever else a proxy may have to say to us\r\n";
    assert_eq!(longest.len(), 107);
    for (line, means) in [
        (
            "PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n",
            addresses("192.0.2.1:56324", "198.51.100.2:443"),
        ),
        (
            "PROXY TCP4 255.255.255.255 0.0.0.0 0 65535\r\n",
            addresses("255.255.255.255:0", "0.0.0.0:65535"),
        ),
        (
            "PROXY TCP6 2001:db8::1 ::1 1 2\r\n",
            addresses("[2001:db8::1]:1", "[::1]:2"),
        ),
        (
            "PROXY TCP6 ::ffff:192.0.2.1 ::ffff:192.0.2.2 1 2\r\n",
            addresses("192.0.2.1:1", "192.0.2.2:2"),
        ),
        ("PROXY UNKNOWN\r\n", None),
        ("PROXY UNKNOWN \r\n", None),
        (longest, None),
    ] {
        let header = whole(line.as_bytes()).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        assert_eq!(header, Header::new(Version::V1, means), "{line:?}");
    }
}

#[test]
fn what_is_no_line_of_version_1() {
    let protocol = "its protocol is none";
    let address = "an address is not one";
    let port = "a port is no number";
    for (line, says) in [
        ("GET / HTTP/1.1\r\n", "does not begin with a PROXY header"),
        ("PROXYTCP4 1.1.1.1 2.2.2.2 1 2\r\n", "does not begin"),
        ("proxy TCP4 1.1.1.1 2.2.2.2 1 2\r\n", "does not begin"),
        ("PROXY \r\n", protocol),
        ("PROXY tcp4 1.1.1.1 2.2.2.2 1 2\r\n", protocol),
        ("PROXY UNKNOWNX\r\n", protocol),
        ("PROXY  TCP4 1.1.1.1 2.2.2.2 1 2\r\n", protocol),
        ("PROXY TCP4 1.1.1.1\r\n", "is missing"),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n", "is missing"),
        ("PROXY TCP4  1.1.1.1 2.2.2.2 1 2\r\n", address),
        ("PROXY TCP4 1.1.1 2.2.2.2 1 2\r\n", address),
        ("PROXY TCP4 01.1.1.1 2.2.2.2 1 2\r\n", address),
        ("PROXY TCP4 ::1 ::2 1 2\r\n", address),
        ("PROXY TCP6 1.1.1.1 2.2.2.2 1 2\r\n", address),
        ("PROXY TCP6 fe80::1%2 ::1 1 2\r\n", address),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 1 65536\r\n", port),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 01 2\r\n", port),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n", port),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 1 \r\n", port),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 1 2 \r\n", "something follows"),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n", "carriage return"),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\r\n", port),
        ("PROXY TCP4 1.1.1.1 2.2.2.2 1 \u{663}\r\n", port),
    ] {
        let error = whole(line.as_bytes()).expect_err(line).to_string();
        assert!(error.contains(says), "{line:?}: {error}");
    }
    let endless = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 200]].concat();
    assert_eq!(whole(&endless), Err(Malformed::LineLength));
    let late = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 92], b"\r\n"].concat();
    assert_eq!((late.len(), whole(&late)), (108, Err(Malformed::LineLength)));
}

#[test]
fn headers_of_version_2() {
    let ipv6 = [
        &[0x20, 1, 0xd, 0xb8][..],
        &[0; 11],
        &[1],
        &[0; 15],
        &[1, 0, 1, 0, 2],
    ]
    .concat();
    let mapped = [
        &[0; 10][..],
        &[0xff, 0xff, 1, 2, 3, 4],
        &[0; 10],
        &[0xff, 0xff, 5, 6, 7, 8, 0, 1, 0, 2],
    ]
    .concat();
    let unix = [&[0; 216][..], &[2, 0, 1, b'x']].concat();
    let ipv4 = addresses("192.0.2.1:56324", "198.51.100.2:443");
    for (what, bytes, means) in [
        ("TCP over IPv4", v2(0x21, 0x11, &IPV4), ipv4),
        ("UDP over IPv4", v2(0x21, 0x12, &IPV4), ipv4),
        ("unspecified over IPv4", v2(0x21, 0x10, &IPV4), None),
        (
            "IPv6",
            v2(0x21, 0x21, &ipv6),
            addresses("[2001:db8::1]:1", "[::1]:2"),
        ),
        (
            "v4-mapped",
            v2(0x21, 0x21, &mapped),
            addresses("1.2.3.4:1", "5.6.7.8:2"),
        ),
        ("unspecified", v2(0x21, 0x00, &[1, 2, 3]), None),
        ("local", v2(0x20, 0x00, &[]), None),
        ("local, with what is to be ignored", v2(0x20, 0xff, &IPV4), None),
    ] {
        let header = whole(&bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(header, Header::new(Version::V2, means), "{what}");
    }
    let header = whole(&v2(0x21, 0x31, &unix)).unwrap();
    assert_eq!((header.addresses, header.authority.as_deref()), (None, Some("x")));
}

#[test]
fn what_is_no_header_of_version_2() {
    let undefined = |what, value| Malformed::Undefined { what, value };
    for (bytes, error) in [
        (b"\r\n\r\n\0\r\nQUIT\r".to_vec(), Malformed::Signature),
        (b"\r\n\r\nGET / HTTP/1.1".to_vec(), Malformed::Signature),
        (v2(0x11, 0x11, &IPV4), undefined("version", 1)),
        (v2(0x22, 0x11, &IPV4), undefined("command", 2)),
        (v2(0x21, 0x41, &IPV4), undefined("family", 4)),
        (v2(0x21, 0x13, &IPV4), undefined("transport", 3)),
        (v2(0x21, 0x11, &IPV4[..11]), Malformed::Short),
        (v2(0x21, 0x21, &[0; 35]), Malformed::Short),
        (v2(0x21, 0x31, &[0; 215]), Malformed::Short),
        (
            v2(0x21, 0x11, &[0; MAX_LENGTH + 1]),
            Malformed::TooLong(MAX_LENGTH + 1),
        ),
    ] {
        assert_eq!(whole(&bytes), Err(error), "{bytes:x?}");
    }
}

#[test]
fn the_longest_header_announces_as_much_as_is_documented() {
    let padding = MAX_LENGTH - IPV4.len() - 3;
    let [high, low] = u16::try_from(padding).unwrap().to_be_bytes();
    let longest = [&IPV4[..], &[4, high, low], &vec![0; padding]].concat();
    assert_eq!(longest.len(), MAX_LENGTH);
    assert!(whole(&v2(0x21, 0x11, &longest)).unwrap().addresses.is_some());
}

#[test]
fn vectors_that_are_read_and_skipped() {
    let with = |vectors: &[u8]| whole(&v2(0x21, 0x11, &[&IPV4, vectors].concat()));
    // Two vectors are unknown, one is only padding, and the others count.
    let header = with(b"\xee\0\x02ab\x04\0\0\x01\0\x02h2\x20\0\x01\x01\x02\0\x09a.example").unwrap();
    assert_eq!(header.alpn.as_deref(), Some(&b"h2"[..]));
    assert_eq!(header.authority.as_deref(), Some("a.example"));
    for (vectors, kind) in [
        (&b"\x04"[..], 4),
        (b"\x04\0", 4),
        (b"\x04\0\x01", 4),
        (b"\x02\0\x01\xff", 2),
        (b"\x03\0\x03abc", 3),
        (b"\x03\0\x05abcde", 3),
        (b"\x04\0\0\x05\xff\xff", 5),
    ] {
        assert_eq!(with(vectors), Err(Malformed::Vector(kind)), "{vectors:x?}");
    }
}

#[test]
fn a_checksum_counts_where_there_is_one() {
    // The polynomial of iSCSI's appendix: 32 bytes of zeros give 8a9136aa (RFC 3720 section B.4).
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    assert_eq!(crc.checksum(&[0; 32]), 0x8a91_36aa);
    let zeroed = v2(
        0x21,
        0x11,
        &[&IPV4[..], b"\x03\0\x04\0\0\0\0", b"\x02\0\x01x"].concat(),
    );
    let mut good = zeroed.clone();
    good[31..35].copy_from_slice(&crc.checksum(&zeroed).to_be_bytes());
    assert_eq!(whole(&good).unwrap().authority.as_deref(), Some("x"));
    for n in 16..good.len() {
        let mut bad = good.clone();
        bad[n] ^= 1;
        whole(&bad).expect_err("a byte is another");
    }
}

#[test]
fn what_is_written() {
    let v4 = addresses("192.0.2.1:56324", "198.51.100.2:443");
    let mixed = addresses("192.0.2.1:1", "[2001:db8::1]:2");
    let line = |addresses| String::from_utf8(Header::new(Version::V1, addresses).write()).unwrap();
    assert_eq!(line(v4), "PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n");
    assert_eq!(line(mixed), "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::1 1 2\r\n");
    assert_eq!(line(None), "PROXY UNKNOWN\r\n");
    assert_eq!(Header::new(Version::V2, v4).write(), v2(0x21, 0x11, &IPV4));
    assert_eq!(Header::new(Version::V2, None).write(), v2(0x20, 0, &[]));
    let mut header = Header::new(Version::V2, v4);
    header.alpn = Some(b"h2".to_vec());
    header.authority = Some("x".repeat(70_000));
    let written = whole(&header.write()).unwrap();
    assert_eq!((written.alpn, written.authority), (Some(b"h2".to_vec()), None));
}

proptest! {
    #[test]
    fn what_is_written_reads_back(
        source: SocketAddr, destination: SocketAddr, v1: bool,
        authority in proptest::option::of("[a-z.]{0,40}"), alpn in proptest::option::of(any::<[u8; 3]>()),
    ) {
        // Neither version has a place for the scope and the flow label.
        let plain = |a: SocketAddr| SocketAddr::new(a.ip(), a.port());
        let ends = Some(Addresses::new(plain(source), plain(destination)));
        let version = if v1 { Version::V1 } else { Version::V2 };
        let mut header = Header::new(version, ends);
        if !v1 {
            header.authority = authority;
            header.alpn = alpn.map(Vec::from);
        }
        prop_assert_eq!(whole(&header.write()), Ok(header));
    }

    #[test]
    fn nothing_that_comes_is_a_panic(mut bytes: Vec<u8>, form in 0..3, kind: u8) {
        match form {
            0 => {}
            1 => bytes.splice(..0, b"PROXY TCP6 ".iter().copied()).for_each(drop),
            _ => bytes = v2(0x21, kind & 0x33, &bytes),
        }
        // An error stays one, whatever follows.
        let first_error = (0..=bytes.len()).find(|n| parse(&bytes[..*n]).is_err());
        if let Some(n) = first_error {
            for more in n..=bytes.len() {
                prop_assert!(parse(&bytes[..more]).is_err());
            }
        }
    }
}
