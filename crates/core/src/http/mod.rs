//! Reads HTTP/1.0 and HTTP/1.1 as an intermediary does: heads, ends of bodies, and the forwarded form of both.
//!
//! No function here waits or reads: the caller passes bytes, in any pieces in which they came. [`Scan`] finds the end
//! of a head, [`RequestHead`] and [`ReplyHead`] read it, [`Chunks`] follows a chunked body, [`rewrite`] and [`Answer`]
//! write.
//!
//! Every form that two recipients could read in two ways is refused, of clients and of servers, because it allows
//! request smuggling. Refused are bare line feeds and carriage returns, folded lines, blanks before the colon,
//! Content-Length beside Transfer-Encoding, transfer codings other than one `chunked`, and lengths that are not plain
//! decimal digits. The connection must not be used after that, since the beginning of its next message is unknown.

pub mod answer;
mod authority;
mod chunked;
mod connection;
mod connection_auth;
pub(crate) mod cookie;
mod error;
mod fields;
mod framing;
pub(crate) mod path;
mod readings;
mod reply;
mod request;
pub mod rewrite;
mod scan;
mod target;
pub(crate) mod text;

pub use answer::{Answer, AnswerTo};
pub use authority::Authority;
pub use chunked::{ChunkError, Chunks, Fed};
pub use connection::Persistence;
pub use error::HeadError;
pub use fields::{Field, Fields};
pub use framing::Body;
pub use readings::PathDoubt;
pub use reply::ReplyHead;
pub use request::{RequestHead, RequestKind};
pub use scan::{Found, Scan, Scanned};
pub use target::Target;

/// Version of HTTP that is spoken here; HTTP/1.2 to 1.9 are served as 1.1. Others are answered with 505 (RFC 9110
/// section 15.6.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl Version {
    /// Returns the version as it stands in a start line.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        }
    }

    /// Reads a version: the name is case-sensitive, and both numbers have one digit (RFC 9112 section 2.3). A higher
    /// minor version is served as 1.1, the highest that is spoken here (RFC 9110 section 2.5).
    fn parse(bytes: &[u8]) -> Result<Version, HeadError> {
        match bytes {
            b"HTTP/1.0" => Ok(Version::Http10),
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor] if minor.is_ascii_digit() => {
                Ok(Version::Http11)
            }
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                Err(HeadError::Version)
            }
            _ => Err(HeadError::StartLine),
        }
    }
}

/// Limits of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the head with its empty line; beyond, the answer is 431.
    pub head: usize,
    /// Field lines; beyond, the answer is 431.
    pub fields: usize,
    /// Bytes of the first line; beyond, the answer is 414. Effectively not more than `head`.
    pub line: usize,
}

impl Default for Limits {
    /// Returns 32 KiB, 128 fields, a first line of 16 KiB (RFC 9112 section 3 recommends 8,000 bytes at least).
    fn default() -> Self {
        Limits {
            head: 32 << 10,
            fields: 128,
            line: 16 << 10,
        }
    }
}
