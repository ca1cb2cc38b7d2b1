//! Reads and writes version 1, a line of text (section 2.1 of the specification).

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use super::{Addresses, Header, Malformed, Step, Version, begins, wide};

const SIGNATURE: &[u8] = b"PROXY ";

/// Length of the longest line, with its CRLF.
const LONGEST: usize = 107;

pub(super) fn parse(bytes: &[u8]) -> Result<Step, Malformed> {
    if !begins(bytes, SIGNATURE).ok_or(Malformed::Signature)? {
        return Ok(Step::NeedMore);
    }
    let window = bytes.get(..LONGEST).unwrap_or(bytes);
    let Some(end) = window.iter().position(|&b| b == b'\n') else {
        return match bytes.len() < LONGEST {
            true => Ok(Step::NeedMore),
            false => Err(Malformed::LineLength),
        };
    };
    let line = window
        .get(SIGNATURE.len()..end)
        .and_then(|line| line.strip_suffix(b"\r"))
        .ok_or(Malformed::Line("it ends without a carriage return"))?;
    Ok(Step::Done {
        header: Header::new(Version::V1, fields(line)?),
        length: end + 1,
    })
}

/// Reads the text between the signature and the end of the line.
fn fields(line: &[u8]) -> Result<Option<Addresses>, Malformed> {
    // The rest of such a line has no meaning, and need not even be text.
    if line == b"UNKNOWN" || line.starts_with(b"UNKNOWN ") {
        return Ok(None);
    }
    let line = std::str::from_utf8(line).map_err(|_| Malformed::Line("it is no ASCII"))?;
    let mut fields = line.split(' ');
    let ipv4 = match fields.next() {
        Some("TCP4") => true,
        Some("TCP6") => false,
        _ => return Err(Malformed::Line("its protocol is none of TCP4, TCP6 and UNKNOWN")),
    };
    let mut next = || {
        fields
            .next()
            .ok_or(Malformed::Line("an address or a port is missing"))
    };
    let (source, destination) = (address(next()?, ipv4)?, address(next()?, ipv4)?);
    let (from, to) = (port(next()?)?, port(next()?)?);
    match fields.next() {
        Some(_) => Err(Malformed::Line("something follows the ports")),
        None => Ok(Some(Addresses::new(
            SocketAddr::new(source, from),
            SocketAddr::new(destination, to),
        ))),
    }
}

fn address(text: &str, ipv4: bool) -> Result<IpAddr, Malformed> {
    IpAddr::from_str(text)
        .ok()
        .filter(|address| address.is_ipv4() == ipv4)
        .ok_or(Malformed::Line("an address is not one of its protocol"))
}

/// Reads digits without leading zeros: `u16::from_str` alone would take `+80` and `080`.
fn port(text: &str) -> Result<u16, Malformed> {
    let digits = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or(Malformed::Line("a port is no number from 0 to 65535"))
}

pub(super) fn write(addresses: Option<&Addresses>) -> String {
    let Some(of) = addresses else {
        return "PROXY UNKNOWN\r\n".to_owned();
    };
    let (from, to) = (of.source.port(), of.destination.port());
    match of.is_ipv4() {
        true => format!(
            "PROXY TCP4 {} {} {from} {to}\r\n",
            of.source.ip(),
            of.destination.ip()
        ),
        false => format!(
            "PROXY TCP6 {} {} {from} {to}\r\n",
            wide(of.source),
            wide(of.destination)
        ),
    }
}
