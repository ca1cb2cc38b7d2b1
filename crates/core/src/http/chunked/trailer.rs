//! Reads the trailer section of a chunked body, line by line (RFC 9112 section 7.1.2).

use super::ChunkError;
use crate::http::text::is_token_byte;

/// Limit of the bytes of all trailer lines.
const MOST: usize = 8 << 10;
/// Names that no trailer may have, in lower case: they tell the length of the message, its destination, or the fate of
/// the connection.
const FORBIDDEN: [&[u8]; 4] = [b"content-length", b"transfer-encoding", b"host", b"connection"];
/// Names that a recipient would believe that merges trailers into the head, in lower case: they tell which user asks, how the
/// body is to be read, how the request is to be treated (RFC 9110 section 6.5.1). Such a line is not sent on.
const DROPPED: [&[u8]; 36] = [
    b"age",
    b"authorization",
    b"cache-control",
    b"content-encoding",
    b"content-range",
    b"content-type",
    b"cookie",
    b"cookie2",
    b"date",
    b"expect",
    b"expires",
    b"forwarded",
    b"http2-settings",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"keep-alive",
    b"location",
    b"max-forwards",
    b"origin",
    b"pragma",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"range",
    b"referer",
    b"retry-after",
    b"set-cookie",
    b"te",
    b"upgrade",
    b"vary",
    b"via",
    b"www-authenticate",
    b"x-real-ip",
];
/// Length of the longest of these names, plus one.
const NAME: usize = 20;

/// State of the trailer section before the next byte.
#[derive(Debug, Clone)]
pub(super) struct Trailer {
    at: At,
    /// Bytes of the complete lines.
    before: usize,
    /// Bytes of the next line that were read already.
    seen: usize,
    /// Name so far, in lower case, as far as it is compared.
    name: [u8; NAME],
    name_length: usize,
    is_dropped: bool,
}

#[derive(Debug, Clone, Copy)]
enum At {
    LineStart,
    Name,
    Value,
    Feed,
    LastFeed,
}

/// Kind of the next line, with its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// The line is not complete yet.
    Partial,
    /// The line goes on unchanged.
    Kept(usize),
    /// The line is not sent on.
    Dropped(usize),
    /// The line is the empty one at the end.
    Last(usize),
}

impl Trailer {
    pub(super) fn new() -> Trailer {
        Trailer {
            at: At::LineStart,
            before: 0,
            seen: 0,
            name: [0; NAME],
            name_length: 0,
            is_dropped: false,
        }
    }

    /// Reads the next line, at the beginning of `rest`. A partial line is given again, with more behind it.
    pub(super) fn line(&mut self, rest: &[u8]) -> Result<Line, ChunkError> {
        for b in rest.get(self.seen..).unwrap_or_default() {
            self.seen += 1;
            if self.before + self.seen > MOST {
                return Err(ChunkError::TrailerTooLong);
            }
            if let (At::Feed | At::LastFeed, b'\n') = (self.at, *b) {
                let length = self.seen;
                let line = match self.at {
                    At::LastFeed => Line::Last(length),
                    _ if self.is_dropped => Line::Dropped(length),
                    _ => Line::Kept(length),
                };
                *self = Trailer {
                    before: self.before + length,
                    ..Trailer::new()
                };
                return Ok(line);
            }
            self.step(*b)?;
        }
        Ok(Line::Partial)
    }

    fn step(&mut self, b: u8) -> Result<(), ChunkError> {
        self.at = match (self.at, b) {
            (At::LineStart, b'\r') => At::LastFeed,
            (At::LineStart | At::Name, _) if is_token_byte(b) => {
                if let Some(place) = self.name.get_mut(self.name_length) {
                    *place = b.to_ascii_lowercase();
                    self.name_length += 1;
                }
                self.is_dropped |= b == b'_';
                At::Name
            }
            (At::Name, b':') => {
                let name = &self.name[..self.name_length];
                if FORBIDDEN.contains(&name) {
                    return Err(ChunkError::TrailerField);
                }
                self.is_dropped |= DROPPED.contains(&name) || name.starts_with(b"x-forwarded-");
                At::Value
            }
            (At::Value, b'\r') => At::Feed,
            (At::Value, _) if !b.is_ascii_control() || b == b'\t' => At::Value,
            _ => return Err(ChunkError::Trailer),
        };
        Ok(())
    }
}
