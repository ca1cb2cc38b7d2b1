//! Reads the field Connection (RFC 9110 section 7.6.1).

use super::{
    HeadError, Version,
    fields::{Fields, Known},
    text,
};

/// Limit of the options: each field of a head is compared with each option.
const MOST_OPTIONS: usize = 64;

/// State of a connection after a message: it can carry another one, or not (RFC 9112 section 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// The connection stays open.
    KeepAlive,
    /// The connection ends with this message.
    Close,
}

/// Options of all the Connection fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Options {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// True if there are others, which may name fields.
    pub(super) others: bool,
}

impl Options {
    pub(super) fn of(fields: &Fields<'_>) -> Result<Options, HeadError> {
        let mut options = Options::default();
        for (i, option) in fields.known(Known::Connection).flat_map(text::list).enumerate() {
            if i == MOST_OPTIONS {
                return Err(HeadError::TooManyOptions);
            }
            match option {
                o if o.eq_ignore_ascii_case(b"close") => options.close = true,
                o if o.eq_ignore_ascii_case(b"keep-alive") => options.keep_alive = true,
                o if o.eq_ignore_ascii_case(b"upgrade") => options.upgrade = true,
                _ => options.others = true,
            }
        }
        Ok(options)
    }

    /// Returns the persistence: HTTP/1.1 persists unless told otherwise, HTTP/1.0 only if asked to (RFC 9112 section
    /// 9.3).
    pub(super) fn persistence(self, version: Version) -> Persistence {
        match version {
            _ if self.close => Persistence::Close,
            Version::Http11 => Persistence::KeepAlive,
            Version::Http10 if self.keep_alive => Persistence::KeepAlive,
            Version::Http10 => Persistence::Close,
        }
    }
}
