//! A connection and what was read of it.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::buffer::Buffer;
use crate::client::Stream;

/// A stream that may say whether a read is worth a buffer.
pub(super) trait Readable: AsyncRead + AsyncWrite + Unpin {
    /// Ready when a read may bring something.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl Readable for TcpStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }
}

impl Readable for Stream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.poll_read_ready(cx),
            // Some of it may be decrypted already.
            Stream::Tls(_) => Poll::Ready(Ok(())),
        }
    }
}

/// A write that failed.
#[derive(Debug)]
pub(super) struct NotWritten {
    /// So many bytes went before.
    pub(super) written: usize,
}

/// A stream with what was read of it and not yet used.
#[derive(Debug)]
pub(super) struct Wire<S> {
    pub(super) stream: S,
    pub(super) buffer: Buffer,
}

impl<S: Readable> Wire<S> {
    pub(super) fn new(stream: S, early: Vec<u8>) -> Wire<S> {
        Wire {
            stream,
            buffer: Buffer::of(early),
        }
    }

    /// Reads more; 0 at the end of the stream. Dropped before it is ready, it has read nothing.
    pub(super) fn read(&mut self) -> impl Future<Output = io::Result<usize>> + Unpin {
        poll_fn(|cx| self.poll_read(cx))
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.stream.poll_readable(cx)?.is_pending() {
            self.buffer.rest();
            return Poll::Pending;
        }
        let mut into = ReadBuf::new(self.buffer.space());
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut into)?;
        if polled.is_pending() {
            self.buffer.rest();
            return Poll::Pending;
        }
        let n = into.filled().len();
        self.buffer.filled(n);
        Poll::Ready(Ok(n))
    }

    /// Writes both, one after the other, in one call where the system takes it.
    pub(super) fn write_both(
        &mut self,
        first: &[u8],
        second: &[u8],
    ) -> impl Future<Output = Result<(), NotWritten>> + Unpin {
        let mut written = 0;
        let all = first.len() + second.len();
        poll_fn(move |cx| {
            while written < all {
                let of_second = second
                    .get(written.saturating_sub(first.len())..)
                    .unwrap_or_default();
                let of_first = first.get(written..).unwrap_or_default();
                match ready!(self.poll_write_both(cx, of_first, of_second)) {
                    Ok(n) => written += n,
                    Err(_) => return Poll::Ready(Err(NotWritten { written })),
                }
            }
            let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
            Poll::Ready(flushed.map_err(|_| NotWritten { written }))
        })
    }

    fn poll_write_both(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        second: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.stream);
        let n = match (first.is_empty(), second.is_empty()) {
            (false, false) => {
                ready!(stream.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)]))?
            }
            (false, true) => ready!(stream.poll_write(cx, first))?,
            (true, _) => ready!(stream.poll_write(cx, second))?,
        };
        match n {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            n => Poll::Ready(Ok(n)),
        }
    }
}
