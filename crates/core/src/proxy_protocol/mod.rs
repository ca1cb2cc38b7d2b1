//! The PROXY protocol, versions 1 and 2 (HAProxy's proxy-protocol.txt): a header before the first byte of a connection
//! that says for whom a proxy made it.
//!
//! [`parse`] takes what has come so far, however it was split; [`Header::write`] is what goes out.

mod tlv;
mod v1;
mod v2;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The longest header that is read, in bytes. Version 2 could announce 65,551; nobody needs so many, and they are kept
/// until all of them have come.
pub const MAX_LENGTH: usize = 16 << 10;

/// Which form of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Its form.
    pub version: Version,
    /// Between whom the connection is that was proxied. `None`: between the ends of this one (`LOCAL`: a proxy's health
    /// check), or the proxy does not know (`UNKNOWN`), or they have no addresses of IP (`AF_UNIX`).
    pub addresses: Option<Addresses>,
    /// The name that the client asked for, such as its SNI (version 2, `PP2_TYPE_AUTHORITY`).
    pub authority: Option<String>,
    /// The protocol that was chosen by ALPN (version 2, `PP2_TYPE_ALPN`).
    pub alpn: Option<Vec<u8>>,
}

/// The ends of a connection. IPv4 is never written as IPv6 here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The client.
    pub source: SocketAddr,
    /// What it connected to.
    pub destination: SocketAddr,
}

/// What is known of a header after some of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// All of them belong to it, and it goes on.
    NeedMore,
    /// It is complete.
    Done {
        /// What it says.
        header: Header,
        /// Its length, in bytes. What follows is the client's.
        length: usize,
    },
}

/// Why it is no header, or none that can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It begins otherwise.
    #[error("it does not begin with a PROXY header")]
    Signature,
    /// Version 1: more than 107 bytes without an end.
    #[error("the line of its PROXY header is longer than 107 bytes")]
    LineLength,
    /// Version 1: not as the line must be.
    #[error("the line of its PROXY header is malformed: {0}")]
    Line(&'static str),
    /// Version 2: a version, command, family or transport that is not defined.
    #[error("its PROXY header has an undefined {what}: {value:#x}")]
    Undefined {
        /// Of what.
        what: &'static str,
        /// Which one it has.
        value: u8,
    },
    /// Version 2: longer than [`MAX_LENGTH`].
    #[error("its PROXY header announces {0} bytes, more than {MAX_LENGTH}")]
    TooLong(usize),
    /// Version 2: shorter than its addresses.
    #[error("its PROXY header is shorter than its addresses")]
    Short,
    /// Version 2: a vector that goes beyond the end, or has the wrong length or content.
    #[error("its PROXY header has a malformed vector of type {0:#04x}")]
    Vector(u8),
    /// Version 2: it has a checksum (CRC32c), which is another one.
    #[error("the checksum of its PROXY header is wrong")]
    Checksum,
}

/// Reads a header at the beginning of `bytes`.
///
/// # Errors
/// Whatever comes, it will never be one.
pub fn parse(bytes: &[u8]) -> Result<Step, Malformed> {
    match bytes.first() {
        None => Ok(Step::NeedMore),
        Some(&first) if first == v2::SIGNATURE[0] => v2::parse(bytes),
        Some(_) => v1::parse(bytes),
    }
}

impl Header {
    /// One with these addresses; without, of a connection that the proxy makes for itself.
    pub fn new(version: Version, addresses: Option<Addresses>) -> Header {
        Header {
            version,
            addresses,
            authority: None,
            alpn: None,
        }
    }

    /// The bytes of it. Version 1 has no place for `authority` and `alpn`; a value that is longer than a vector can be
    /// (64 KiB together) is left out.
    pub fn write(&self) -> Vec<u8> {
        match self.version {
            Version::V1 => v1::write(self.addresses.as_ref()).into_bytes(),
            Version::V2 => v2::write(self),
        }
    }
}

impl Addresses {
    /// Of the ends of a connection; v4-mapped ones become IPv4.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Addresses {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        Addresses {
            source: canonical(source),
            destination: canonical(destination),
        }
    }

    /// Whether both are IPv4; one alone is written as v4-mapped.
    fn is_ipv4(&self) -> bool {
        self.source.is_ipv4() && self.destination.is_ipv4()
    }
}

/// The address in a header of IPv6.
fn wide(address: SocketAddr) -> Ipv6Addr {
    match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Whether `bytes` may become `whole`, or already begin with it: `None` if neither.
fn begins(bytes: &[u8], whole: &[u8]) -> Option<bool> {
    match bytes.len() < whole.len() {
        true => whole.starts_with(bytes).then_some(false),
        false => bytes.starts_with(whole).then_some(true),
    }
}

#[cfg(test)]
mod tests;
