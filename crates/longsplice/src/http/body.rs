//! Passes a body from one connection to the other.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use longsplice_core::http::{Body, ChunkError, Chunks};

use super::{
    buffer::{Buffer, LITTLE},
    buffered_stream::{BufferedStream, Readable},
};
use crate::access_log::End;

/// Progress of a body. Its framing passes with it, unchanged.
#[derive(Debug)]
pub(super) struct Passage {
    rest: Rest,
    /// Number of bytes at the front of the sender's buffer that were examined and can be written.
    ready: usize,
    /// True once the last byte was examined.
    ended: bool,
    /// True if written bytes may wait within the recipient's stream: TLS keeps bytes that its socket does not take.
    unflushed: bool,
    /// True if the last read returned at least `FIRST` bytes: there may be more.
    filled: bool,
    passed: u64,
}

/// Smallest limit of a read of a body, in bytes, whatever room the recipient has. So many bytes are held for a
/// recipient that takes none.
const FIRST: usize = LITTLE;

/// Remaining part of a body.
#[derive(Debug)]
enum Rest {
    Length(u64),
    Chunks(Chunks),
    UntilClose,
}

/// Reason why a body did not pass completely.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The sender's connection failed.
    #[error("{0}")]
    From(io::Error),
    /// The sender's stream ended before the body did.
    #[error("the connection ended before the body did")]
    CutShort,
    /// The framing is invalid: the end of the body is unknown.
    #[error(transparent)]
    Malformed(#[from] ChunkError),
    /// The recipient's connection failed.
    #[error("{0}")]
    To(io::Error),
}

/// Error: the engine reports more bytes than were left. It is the only sign of a pair with wrong records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{passed} bytes are said to have passed, of {left} that were left: the pair is out of step")]
pub(super) struct OutOfStep {
    /// Bytes that are reported to have passed.
    passed: u64,
    /// Bytes that were left.
    left: u64,
}

impl Broken {
    /// Returns the end of a reply whose body breaks so.
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
            filled: false,
            ready: 0,
            passed: 0,
        }
    }

    /// Examines the buffer behind its first `behind` bytes, and returns how many bytes there can be written. Removes
    /// bytes that must not be forwarded. Call it only if no bytes are ready.
    pub(super) fn look(&mut self, buffer: &mut Buffer, behind: usize) -> Result<usize, ChunkError> {
        if !self.ended {
            let new = buffer.data().get(behind..).unwrap_or_default();
            self.ready = match &mut self.rest {
                Rest::Length(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(new.len());
                    *left -= here as u64;
                    self.ended = *left == 0;
                    here
                }
                Rest::Chunks(chunks) => {
                    let mut ready = 0;
                    loop {
                        let at = behind + ready;
                        let fed = chunks.feed(buffer.data().get(at..).unwrap_or_default())?;
                        ready += fed.length;
                        self.ended = fed.ended;
                        if fed.dropped == 0 {
                            break ready;
                        }
                        buffer.remove(behind + ready, fed.dropped);
                    }
                }
                Rest::UntilClose => new.len(),
            };
        }
        Ok(self.ready)
    }

    /// Notes that all ready bytes were written and taken from the buffer.
    pub(super) fn wrote_ready(&mut self) {
        self.passed += self.ready as u64;
        self.ready = 0;
    }

    /// Returns whether the whole body has passed.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.ready == 0 && !self.unflushed
    }

    /// Returns whether its last byte has been read.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the number of bytes that have passed, chunk framing included.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Returns whether the recipient has to take bytes before more are read from the sender.
    pub(super) fn waits_for_recipient(&self) -> bool {
        self.ready > 0 || self.unflushed
    }

    /// Returns the end of a reply that takes too long: by the client if it does not take the bytes, else by the server.
    pub(super) fn late(&self) -> End {
        match self.waits_for_recipient() {
            true => End::ClientTimeout,
            false => End::ServerTimeout,
        }
    }

    /// Returns how many bytes may pass now without being examined.
    pub(super) fn unseen(&self) -> Unseen {
        match &self.rest {
            _ if self.ended || self.ready > 0 => Unseen::Bytes(0),
            Rest::Length(left) => Unseen::Bytes(*left),
            Rest::Chunks(chunks) => Unseen::Bytes(chunks.left()),
            Rest::UntilClose => Unseen::All,
        }
    }

    /// Returns whether the body ends where [`Passage::unseen`] does.
    pub(super) fn ends_unseen(&self) -> bool {
        !matches!(self.rest, Rest::Chunks(_))
    }

    /// Counts bytes that passed without being examined. Fails if they are more than [`Passage::unseen`] said.
    pub(super) fn went_by(&mut self, bytes: u64) -> Result<(), OutOfStep> {
        let out_of_step = |left| OutOfStep { passed: bytes, left };
        match &mut self.rest {
            Rest::Length(left) => {
                *left = left.checked_sub(bytes).ok_or(out_of_step(*left))?;
                self.ended = *left == 0;
            }
            Rest::Chunks(chunks) => {
                let left = chunks.left();
                chunks.passed(bytes).map_err(|_| out_of_step(left))?;
            }
            Rest::UntilClose => {}
        }
        self.passed += bytes;
        Ok(())
    }

    /// Writes the ready bytes, or reads more. Ready when either has happened.
    pub(super) fn poll_pass<A: Readable, B: Readable>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut BufferedStream<A>,
        to: &mut BufferedStream<B>,
    ) -> Poll<Result<(), Broken>> {
        if self.ready > 0 {
            let bytes = from.buffer.data().get(..self.ready).unwrap_or_default();
            let polled = Pin::new(&mut to.stream).poll_write(cx, bytes);
            if polled.is_pending() {
                from.buffer.rest();
            }
            let n = match ready!(polled) {
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
        let flushed = Pin::new(&mut to.stream).poll_flush(cx).map_err(Broken::To)?;
        self.unflushed = flushed.is_pending();
        ready!(flushed);
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        // The buffer is empty by now, or holds the beginning of a trailer line.
        let most = match self.filled {
            true => to.stream.room().max(FIRST),
            false => FIRST,
        };
        match ready!(from.poll_read_up_to(most, cx)).map_err(Broken::From)? {
            0 if matches!(self.rest, Rest::UntilClose) => self.ended = true,
            0 => return Poll::Ready(Err(Broken::CutShort)),
            n => {
                self.filled = n >= FIRST;
                self.look(&mut from.buffer, 0)?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Amount of a body that may pass without being examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unseen {
    /// This many bytes.
    Bytes(u64),
    /// All bytes up to the end of the connection.
    All,
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;

    /// A stream that takes all bytes, and passes none on.
    #[derive(Debug)]
    struct Holding;

    impl Readable for Holding {
        fn poll_readable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn room(&self) -> usize {
            0
        }
    }

    impl AsyncRead for Holding {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Holding {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn the_recipient_is_late_until_its_stream_has_passed_all_on() {
        let mut from = BufferedStream::new(Holding, b"half".to_vec());
        let mut to = BufferedStream::new(Holding, Vec::new());
        let mut passage = Passage::new(Body::Length(8));
        assert_eq!(passage.late(), End::ServerTimeout);
        passage.look(&mut from.buffer, 0).unwrap();
        assert_eq!(passage.late(), End::ClientTimeout);
        let polled = passage.poll_pass(&mut Context::from_waker(Waker::noop()), &mut from, &mut to);
        assert!(matches!(polled, Poll::Ready(Ok(()))) && passage.passed() == 4);
        assert_eq!(passage.late(), End::ClientTimeout);
    }

    #[test]
    fn more_than_was_left_is_an_error() {
        let mut passage = Passage::new(Body::Length(10));
        passage.went_by(4).unwrap();
        assert_eq!(passage.went_by(7), Err(OutOfStep { passed: 7, left: 6 }));
        assert_eq!(passage.passed(), 4);
        passage.went_by(6).unwrap();
        assert!(passage.is_done());

        let mut passage = Passage::new(Body::Chunked);
        let mut begun = Buffer::of(b"a\r\n12".to_vec());
        assert_eq!(passage.look(&mut begun, 0).unwrap(), 5);
        passage.wrote_ready();
        assert_eq!(passage.unseen(), Unseen::Bytes(8));
        assert_eq!(passage.went_by(9), Err(OutOfStep { passed: 9, left: 8 }));
    }
}
