//! A body on its way from one connection to the other.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use longsplice_core::http::{Body, ChunkError, Chunks};

use super::wire::{Readable, Wire};
use crate::access_log::End;

/// How much of a body has passed. Its framing passes with it, unchanged.
#[derive(Debug)]
pub(super) struct Passage {
    rest: Rest,
    /// So many bytes at the front of the sender's buffer belong to it and were looked at.
    ready: usize,
    /// The last byte was looked at.
    ended: bool,
    /// What was written may wait within the recipient's stream: TLS keeps what its socket does not take.
    unflushed: bool,
    passed: u64,
}

/// What is still to come.
#[derive(Debug)]
enum Rest {
    Length(u64),
    Chunks(Chunks),
    UntilClose,
}

/// Why a body did not pass to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The sender's connection failed.
    #[error("{0}")]
    From(io::Error),
    /// The sender's stream ended before the body did.
    #[error("the connection ended before the body did")]
    CutShort,
    /// Nobody knows where it ends.
    #[error(transparent)]
    Malformed(#[from] ChunkError),
    /// The recipient's connection failed.
    #[error("{0}")]
    To(io::Error),
}

impl Broken {
    /// How a reply ends whose body breaks so.
    pub(super) fn end(&self) -> End {
        match self {
            Broken::From(_) | Broken::CutShort => End::ServerClosed,
            Broken::Malformed(_) => End::BadReply,
            Broken::To(_) => End::ClientClosed,
        }
    }
}

impl Passage {
    pub(super) fn new(body: Body) -> Passage {
        let rest = match body {
            Body::None => Rest::Length(0),
            Body::Length(n) => Rest::Length(n),
            Body::Chunked => Rest::Chunks(Chunks::new()),
            Body::UntilClose => Rest::UntilClose,
        };
        Passage {
            ended: matches!(rest, Rest::Length(0)),
            rest,
            unflushed: false,
            ready: 0,
            passed: 0,
        }
    }

    /// Looks at bytes that stand behind those that are ready; how many are ready then.
    pub(super) fn look(&mut self, new: &[u8]) -> Result<usize, ChunkError> {
        if !self.ended {
            self.ready += match &mut self.rest {
                Rest::Length(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(new.len());
                    *left -= here as u64;
                    self.ended = *left == 0;
                    here
                }
                Rest::Chunks(chunks) => {
                    let fed = chunks.feed(new)?;
                    self.ended = fed.ended;
                    fed.length
                }
                Rest::UntilClose => new.len(),
            };
        }
        Ok(self.ready)
    }

    /// All that is ready was written and taken from the buffer.
    pub(super) fn wrote_ready(&mut self) {
        self.passed += self.ready as u64;
        self.ready = 0;
    }

    /// Whether all of it has passed.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.ready == 0 && !self.unflushed
    }

    /// Whether its last byte has been read.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes that were written, with the sizes of chunks.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Whom a reply has waited for that takes too long.
    pub(super) fn late(&self) -> End {
        match self.ready {
            0 => End::ServerTimeout,
            _ => End::ClientTimeout,
        }
    }

    /// How many bytes may pass unseen now.
    pub(super) fn unseen(&self) -> Unseen {
        match &self.rest {
            _ if self.ended || self.ready > 0 => Unseen::Bytes(0),
            Rest::Length(left) => Unseen::Bytes(*left),
            Rest::Chunks(chunks) => Unseen::Bytes(chunks.left()),
            Rest::UntilClose => Unseen::All,
        }
    }

    /// Whether it has ended where [`Passage::unseen`] has.
    pub(super) fn ends_unseen(&self) -> bool {
        !matches!(self.rest, Rest::Chunks(_))
    }

    /// So many bytes passed unseen.
    pub(super) fn went_by(&mut self, bytes: u64) -> Result<(), ChunkError> {
        self.passed += bytes;
        match &mut self.rest {
            Rest::Length(left) => {
                *left = left.saturating_sub(bytes);
                self.ended = *left == 0;
            }
            Rest::Chunks(chunks) => chunks.passed(bytes)?,
            Rest::UntilClose => {}
        }
        Ok(())
    }

    /// Writes what is ready, or reads more; ready when either has happened.
    pub(super) fn poll_pass<A: Readable, B: Readable>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Wire<A>,
        to: &mut Wire<B>,
    ) -> Poll<Result<(), Broken>> {
        if self.ready > 0 {
            let bytes = from.buffer.data().get(..self.ready).unwrap_or_default();
            let n = match ready!(Pin::new(&mut to.stream).poll_write(cx, bytes)) {
                Ok(0) => return Poll::Ready(Err(Broken::To(io::ErrorKind::WriteZero.into()))),
                written => written.map_err(Broken::To)?,
            };
            from.buffer.consume(n);
            self.ready -= n;
            self.passed += n as u64;
            let flushed = Pin::new(&mut to.stream).poll_flush(cx).map_err(Broken::To)?;
            self.unflushed = flushed.is_pending();
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut to.stream).poll_flush(cx)).map_err(Broken::To)?;
        self.unflushed = false;
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        // All that was in the buffer has been looked at and written.
        match ready!(from.poll_read(cx)).map_err(Broken::From)? {
            0 if matches!(self.rest, Rest::UntilClose) => self.ended = true,
            0 => return Poll::Ready(Err(Broken::CutShort)),
            _ => {
                self.look(from.buffer.data())?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// How much of a body the handler need not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unseen {
    /// So many bytes.
    Bytes(u64),
    /// Everything up to the end of the connection.
    All,
}
