//! What Connection says (RFC 9110 section 7.6.1).

use super::{
    Version,
    fields::{Fields, Known},
    text,
};

/// Whether a connection can carry another message after this one (RFC 9112 section 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// It can.
    KeepAlive,
    /// It ends with this message.
    Close,
}

/// The options of all the Connection fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Options {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// How many options there are.
    pub(super) count: usize,
}

impl Options {
    pub(super) fn of(fields: &Fields<'_>) -> Options {
        let mut options = Options::default();
        for option in fields.known(Known::Connection).flat_map(text::list) {
            options.count += 1;
            options.close |= option.eq_ignore_ascii_case(b"close");
            options.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            options.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
        options
    }

    /// RFC 9112 section 9.3: HTTP/1.1 persists unless told otherwise, HTTP/1.0 only if asked to.
    pub(super) fn persistence(self, version: Version) -> Persistence {
        match version {
            _ if self.close => Persistence::Close,
            Version::Http11 => Persistence::KeepAlive,
            Version::Http10 if self.keep_alive => Persistence::KeepAlive,
            Version::Http10 => Persistence::Close,
        }
    }
}
