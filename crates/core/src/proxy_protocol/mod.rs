//! Reads and writes the PROXY protocol, versions 1 and 2 (HAProxy's proxy-protocol.txt): a header before the first byte
//! of a connection that names the ends for which a proxy made it.
//!
//! [`parse`] reads the bytes that have come so far, in any pieces; [`Header::write`] makes the bytes of a header.

mod tlv;
mod v1;
mod v2;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Limit of the length that a header of version 2 may announce, in bytes: addresses and vectors, behind its 16 fixed
/// ones. The field could announce 65,535; no proxy needs so many, and they are kept until all of them have come.
pub const MAX_LENGTH: usize = 16 << 10;

/// Form of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Line of text.
    V1,
    /// Binary form.
    V2,
}

/// Content of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Form of the header.
    pub version: Version,
    /// Ends of the proxied connection. `None`: the ends of this one (`LOCAL`: a proxy's health check), or the proxy
    /// does not know (`UNKNOWN`), or they have no addresses of IP (`AF_UNIX`).
    pub addresses: Option<Addresses>,
    /// Name that the client requested, such as its SNI (version 2, `PP2_TYPE_AUTHORITY`).
    pub authority: Option<String>,
    /// Protocol that was chosen by ALPN (version 2, `PP2_TYPE_ALPN`).
    pub alpn: Option<Vec<u8>>,
}

/// Ends of a connection. IPv4 is never written as IPv6 here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the client.
    pub source: SocketAddr,
    /// Address to which the client connected.
    pub destination: SocketAddr,
}

/// Result of the bytes that have come so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// All of them belong to the header, and it goes on.
    NeedMore,
    /// The header is complete.
    Done {
        /// Content of the header.
        header: Header,
        /// Length of the header, in bytes. The bytes behind it are the client's.
        length: usize,
    },
}

/// Error of a text that is no header, or none that can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes begin otherwise.
    #[error("it does not begin with a PROXY header")]
    Signature,
    /// Version 1: the line has more than 107 bytes without an end.
    #[error("the line of its PROXY header is longer than 107 bytes")]
    LineLength,
    /// Version 1: the line is malformed.
    #[error("the line of its PROXY header is malformed: {0}")]
    Line(&'static str),
    /// Version 2: a version, command, family or transport is not defined.
    #[error("its PROXY header has an undefined {what}: {value:#x}")]
    Undefined {
        /// Name of the field.
        what: &'static str,
        /// Value of the field.
        value: u8,
    },
    /// Version 2: the header announces more than [`MAX_LENGTH`].
    #[error("its PROXY header announces {0} bytes, more than {MAX_LENGTH}")]
    TooLong(usize),
    /// Version 2: the header is shorter than its addresses.
    #[error("its PROXY header is shorter than its addresses")]
    Short,
    /// Version 2: a vector goes beyond the end, or has the wrong length or content.
    #[error("its PROXY header has a malformed vector of type {0:#04x}")]
    Vector(u8),
    /// Version 2: the checksum (CRC32c) is wrong.
    #[error("the checksum of its PROXY header is wrong")]
    Checksum,
}

/// Reads a header at the beginning of `bytes`.
///
/// # Errors
/// The bytes can never become a header.
pub fn parse(bytes: &[u8]) -> Result<Step, Malformed> {
    match bytes.first() {
        None => Ok(Step::NeedMore),
        Some(&first) if first == v2::SIGNATURE[0] => v2::parse(bytes),
        Some(_) => v1::parse(bytes),
    }
}

impl Header {
    /// Makes a header with these addresses; without them, one of a connection that the proxy makes for itself.
    pub fn new(version: Version, addresses: Option<Addresses>) -> Header {
        Header {
            version,
            addresses,
            authority: None,
            alpn: None,
        }
    }

    /// Returns the bytes of the header. Version 1 has no place for `authority` and `alpn`; a value that is longer than
    /// a vector can be (64 KiB together) is left out.
    pub fn write(&self) -> Vec<u8> {
        match self.version {
            Version::V1 => v1::write(self.addresses.as_ref()).into_bytes(),
            Version::V2 => v2::write(self),
        }
    }
}

impl Addresses {
    /// Makes the addresses of the ends of a connection; v4-mapped ones become IPv4.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Addresses {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        Addresses {
            source: canonical(source),
            destination: canonical(destination),
        }
    }

    /// Returns whether both are IPv4; one alone is written as v4-mapped.
    fn is_ipv4(&self) -> bool {
        self.source.is_ipv4() && self.destination.is_ipv4()
    }
}

/// Returns the address in a header of IPv6.
fn wide(address: SocketAddr) -> Ipv6Addr {
    match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Returns whether `bytes` already begin with `whole`, or may still become it; `None` if neither.
fn begins(bytes: &[u8], whole: &[u8]) -> Option<bool> {
    match bytes.len() < whole.len() {
        true => whole.starts_with(bytes).then_some(false),
        false => bytes.starts_with(whole).then_some(true),
    }
}

#[cfg(test)]
mod tests;
