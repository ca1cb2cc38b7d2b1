//! Types of a request whose head was read.

use std::{ops::Range, sync::Arc};

use longsplice_core::http::{Body, Persistence, RequestKind};

use crate::upstream::Upstream;

/// Properties of a request, known once its head is read.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) kind: RequestKind,
    pub(super) body: Body,
    pub(super) persistence: Persistence,
    /// True if it may be sent a second time (RFC 9110 section 9.2.2).
    pub(super) is_idempotent: bool,
    /// True if the client may wait for a 100 before it sends the body.
    pub(super) expects_continue: bool,
    /// True if its credentials authenticate the server's connection.
    pub(super) authenticates: bool,
    /// Length of the head in the client's buffer, in bytes.
    pub(super) length: usize,
    /// Length with the body, if the buffer holds all of it.
    pub(super) whole: Option<usize>,
    /// Head to be sent to the server.
    pub(super) head: Head,
}

/// Head of a message as it is sent on.
#[derive(Debug)]
pub(super) enum Head {
    /// Unchanged: this range of the buffer, up to the end of the head that was read.
    Same(Range<usize>),
    /// Changed.
    New(Vec<u8>),
}

/// Destination of a request.
#[derive(Debug)]
pub(super) enum Target {
    /// A server of this upstream.
    Upstream {
        upstream: Arc<Upstream>,
        /// Bytes to hash.
        key: Option<Vec<u8>>,
        /// Value of its sticky cookie.
        sticky: Option<String>,
    },
    /// Original destination of the client's connection.
    Original,
}

impl Head {
    /// Returns its bytes; `buffer` still begins with the head that was read.
    pub(super) fn bytes<'b>(&'b self, buffer: &'b [u8]) -> &'b [u8] {
        match self {
            Head::Same(range) => buffer.get(range.clone()).unwrap_or_default(),
            Head::New(bytes) => bytes,
        }
    }

    /// Returns its bytes, and the first `ready` bytes of the body, as pieces to be written. It is one piece if both are
    /// adjacent in the buffer.
    pub(super) fn and_body<'b>(
        &'b self,
        buffer: &'b [u8],
        length: usize,
        ready: usize,
    ) -> (&'b [u8], &'b [u8]) {
        let end = length.saturating_add(ready);
        match self {
            Head::Same(range) => (buffer.get(range.start..end).unwrap_or_default(), &[]),
            Head::New(bytes) => (bytes, buffer.get(length..end).unwrap_or_default()),
        }
    }
}
