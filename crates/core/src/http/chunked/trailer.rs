//! The trailer section of a chunked body (RFC 9112 section 7.1.2), byte by byte.

use super::ChunkError;
use crate::http::text::is_token_byte;

/// Bytes of all trailer lines.
const MOST: u32 = 8 << 10;
/// What no trailer may say, in lower case: how long the message is, where it goes, whether the connection stays.
const FORBIDDEN: [&[u8]; 4] = [b"content-length", b"transfer-encoding", b"host", b"connection"];
/// A byte more than the longest of these names.
const NAME: usize = 18;

/// Where in the trailer section the next byte stands.
#[derive(Debug, Clone)]
pub(super) struct Trailer {
    at: At,
    bytes: u32,
    /// The name so far, in lower case, as much of it as is compared.
    name: [u8; NAME],
    name_length: usize,
}

#[derive(Debug, Clone, Copy)]
enum At {
    LineStart,
    Name,
    Value,
    Feed,
    LastFeed,
}

impl Trailer {
    pub(super) fn new() -> Trailer {
        Trailer {
            at: At::LineStart,
            bytes: 0,
            name: [0; NAME],
            name_length: 0,
        }
    }

    /// Whether this byte is the last one.
    pub(super) fn step(&mut self, b: u8) -> Result<bool, ChunkError> {
        self.bytes += 1;
        if self.bytes > MOST {
            return Err(ChunkError::TrailerTooLong);
        }
        self.at = match (self.at, b) {
            (At::LastFeed, b'\n') => return Ok(true),
            (At::LineStart, b'\r') => At::LastFeed,
            (At::LineStart, _) if is_token_byte(b) => {
                self.name_length = 0;
                self.name_byte(b)
            }
            (At::Name, _) if is_token_byte(b) => self.name_byte(b),
            (At::Name, b':') => {
                let name = &self.name[..self.name_length];
                if FORBIDDEN.contains(&name) {
                    return Err(ChunkError::TrailerField);
                }
                At::Value
            }
            (At::Value, b'\r') => At::Feed,
            (At::Value, _) if !b.is_ascii_control() || b == b'\t' => At::Value,
            (At::Feed, b'\n') => At::LineStart,
            _ => return Err(ChunkError::Trailer),
        };
        Ok(false)
    }

    fn name_byte(&mut self, b: u8) -> At {
        if let Some(place) = self.name.get_mut(self.name_length) {
            *place = b.to_ascii_lowercase();
            self.name_length += 1;
        }
        At::Name
    }
}
