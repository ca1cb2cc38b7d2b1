//! Reads and writes version 2, the binary form (section 2.2 of the specification).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{
    Addresses, Header, MAX_LENGTH, Malformed, Step, Version, begins,
    tlv::{self, Vectors},
    wide,
};

pub(super) const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of signature, version and command, family and transport, and the length of the rest.
const FIXED: usize = 16;

const VERSION: u8 = 2;
const LOCAL: u8 = 0;
const PROXY: u8 = 1;

const UNSPEC: u8 = 0;
const INET: u8 = 1;
const INET6: u8 = 2;
const UNIX: u8 = 3;
const STREAM: u8 = 1;
const DGRAM: u8 = 2;

/// Length of two paths of Unix sockets.
const UNIX_ADDRESSES: usize = 2 * 108;

pub(super) fn parse(bytes: &[u8]) -> Result<Step, Malformed> {
    if !begins(bytes, SIGNATURE).ok_or(Malformed::Signature)? {
        return Ok(Step::NeedMore);
    }
    if let Some(&byte) = bytes.get(12) {
        check(byte >> 4 == VERSION, "version", byte >> 4)?;
        check(matches!(byte & 0xf, LOCAL | PROXY), "command", byte & 0xf)?;
    }
    let Some(&[command, kind, high, low]) = bytes.get(12..FIXED).and_then(|b| b.first_chunk::<4>()) else {
        return Ok(Step::NeedMore);
    };
    let rest = usize::from(u16::from_be_bytes([high, low]));
    if rest > MAX_LENGTH {
        return Err(Malformed::TooLong(rest));
    }
    let length = FIXED + rest;
    let Some(whole) = bytes.get(..length) else {
        return Ok(Step::NeedMore);
    };
    let header = match command & 0xf {
        // The proxy made the connection for itself; the rest of the header is to be ignored.
        LOCAL => Header::new(Version::V2, None),
        _ => proxied(whole, kind)?,
    };
    Ok(Step::Done { header, length })
}

/// Reads a whole header of a proxied connection.
fn proxied(whole: &[u8], kind: u8) -> Result<Header, Malformed> {
    let (family, transport) = (kind >> 4, kind & 0xf);
    check(family <= UNIX, "family", family)?;
    check(transport <= DGRAM, "transport", transport)?;
    let rest = whole.get(FIXED..).ok_or(Malformed::Short)?;
    let (addresses, vectors) = match family {
        INET => of_ipv4(rest),
        INET6 => of_ipv6(rest),
        UNIX => rest
            .split_at_checked(UNIX_ADDRESSES)
            .map(|(_, vectors)| (None, vectors)),
        // The length of its addresses is unknown.
        _ => return Ok(Header::new(Version::V2, None)),
    }
    .ok_or(Malformed::Short)?;
    let Vectors { authority, alpn } = tlv::read(whole, vectors)?;
    Ok(Header {
        version: Version::V2,
        addresses: addresses.filter(|_| transport != UNSPEC),
        authority,
        alpn,
    })
}

fn check(defined: bool, what: &'static str, value: u8) -> Result<(), Malformed> {
    match defined {
        true => Ok(()),
        false => Err(Malformed::Undefined { what, value }),
    }
}

fn of_ipv4(bytes: &[u8]) -> Option<(Option<Addresses>, &[u8])> {
    let (source, bytes) = bytes.split_first_chunk::<4>()?;
    let (destination, bytes) = bytes.split_first_chunk::<4>()?;
    let (from, to, rest) = ports(bytes)?;
    let addresses = Addresses {
        source: SocketAddr::new(Ipv4Addr::from(*source).into(), from),
        destination: SocketAddr::new(Ipv4Addr::from(*destination).into(), to),
    };
    Some((Some(addresses), rest))
}

fn of_ipv6(bytes: &[u8]) -> Option<(Option<Addresses>, &[u8])> {
    let (source, bytes) = bytes.split_first_chunk::<16>()?;
    let (destination, bytes) = bytes.split_first_chunk::<16>()?;
    let (from, to, rest) = ports(bytes)?;
    let addresses = Addresses::new(
        SocketAddr::new(Ipv6Addr::from(*source).into(), from),
        SocketAddr::new(Ipv6Addr::from(*destination).into(), to),
    );
    Some((Some(addresses), rest))
}

fn ports(bytes: &[u8]) -> Option<(u16, u16, &[u8])> {
    let (from, bytes) = bytes.split_first_chunk::<2>()?;
    let (to, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*from), u16::from_be_bytes(*to), rest))
}

pub(super) fn write(header: &Header) -> Vec<u8> {
    let mut rest = Vec::new();
    let (command, kind) = match &header.addresses {
        None => (LOCAL, UNSPEC << 4 | UNSPEC),
        Some(of) if of.is_ipv4() => (PROXY, INET << 4 | STREAM),
        Some(_) => (PROXY, INET6 << 4 | STREAM),
    };
    if let Some(of) = &header.addresses {
        for end in [of.source, of.destination] {
            match end.ip() {
                IpAddr::V4(ip) if of.is_ipv4() => rest.extend(ip.octets()),
                _ => rest.extend(wide(end).octets()),
            }
        }
        for end in [of.source, of.destination] {
            rest.extend(end.port().to_be_bytes());
        }
        tlv::write(header, &mut rest);
    }
    let mut bytes = Vec::with_capacity(FIXED + rest.len());
    bytes.extend(SIGNATURE);
    bytes.extend([VERSION << 4 | command, kind]);
    bytes.extend(u16::try_from(rest.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.append(&mut rest);
    bytes
}
