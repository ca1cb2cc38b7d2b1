//! HTTP/1.0 and HTTP/1.1 as an intermediary reads them: heads, where bodies end, and what is sent on.
//!
//! Nothing here waits or reads: the caller has bytes, in whatever pieces they came, and asks. [`Scan`] finds where a head
//! ends, [`RequestHead`] and [`ReplyHead`] read it, [`Chunks`] follows a chunked body, [`rewrite`] and [`Answer`] write.
//!
//! Whatever two recipients could read in two ways is refused, of clients and of servers: that is how requests are smuggled.
//! Refused are bare line feeds and carriage returns, folded lines, blanks before the colon, Content-Length beside
//! Transfer-Encoding, transfer codings other than one `chunked`, and lengths that are not plain decimal digits. The
//! connection is not to be used after that, since nobody knows where its next message begins.

pub mod answer;
mod authority;
mod chunked;
mod connection;
pub(crate) mod cookie;
mod error;
mod fields;
mod framing;
pub(crate) mod path;
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
pub use reply::ReplyHead;
pub use request::{RequestHead, RequestKind};
pub use scan::{Found, Scan, Scanned};
pub use target::Target;

/// A version of HTTP that is spoken here. Others are answered with 505 (RFC 9110 section 15.6.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl Version {
    /// As it stands in a start line.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        }
    }

    /// RFC 9112 section 2.3: the name is case-sensitive, and both numbers have one digit.
    fn parse(bytes: &[u8]) -> Result<Version, HeadError> {
        match bytes {
            b"HTTP/1.1" => Ok(Version::Http11),
            b"HTTP/1.0" => Ok(Version::Http10),
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                Err(HeadError::Version)
            }
            _ => Err(HeadError::StartLine),
        }
    }
}

/// How large a head may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the head with its empty line: 431 beyond.
    pub head: usize,
    /// Field lines: 431 beyond.
    pub fields: usize,
    /// Bytes of the first line: 414 beyond. Not more than `head` in effect.
    pub line: usize,
}

impl Default for Limits {
    /// 32 KiB, 128 fields, a first line of 16 KiB (RFC 9112 section 3 recommends 8,000 bytes at least).
    fn default() -> Self {
        Limits {
            head: 32 << 10,
            fields: 128,
            line: 16 << 10,
        }
    }
}
