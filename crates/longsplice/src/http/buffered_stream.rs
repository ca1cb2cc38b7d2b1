//! Joins a connection with the buffer of its unused bytes.

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

/// A stream that can tell whether a read may succeed, before a buffer is taken for it.
pub(super) trait Readable: AsyncRead + AsyncWrite + Unpin {
    /// Ready when a read may return bytes, the end or an error.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Estimates how many bytes a write would take at once.
    fn room(&self) -> usize;
}

impl Readable for TcpStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn room(&self) -> usize {
        longsplice_repair::room(self).unwrap_or(0)
    }
}

impl Readable for Stream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.poll_read_ready(cx),
            // TLS may hold decrypted bytes already.
            Stream::Tls(_) => Poll::Ready(Ok(())),
        }
    }

    fn room(&self) -> usize {
        self.socket().room()
    }
}

/// Error: a write failed.
#[derive(Debug)]
pub(super) struct NotWritten {
    /// Number of bytes that were written before.
    pub(super) written: usize,
}

/// A stream with the bytes that were read from it and not used yet.
#[derive(Debug)]
pub(super) struct BufferedStream<S> {
    pub(super) stream: S,
    pub(super) buffer: Buffer,
}

impl<S: Readable> BufferedStream<S> {
    pub(super) fn new(stream: S, early: Vec<u8>) -> BufferedStream<S> {
        BufferedStream {
            stream,
            buffer: Buffer::of(early),
        }
    }

    /// Reads more; returns 0 at the end of the stream. Cancel-safe: a future that is dropped before it is ready has
    /// read nothing.
    pub(super) fn read(&mut self) -> impl Future<Output = io::Result<usize>> + Unpin {
        poll_fn(|cx| self.poll_read(cx))
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_read_up_to(usize::MAX, cx)
    }

    /// Reads at most `most` bytes; returns 0 at the end of the stream.
    pub(super) fn poll_read_up_to(&mut self, most: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.stream.poll_readable(cx)?.is_pending() {
            self.buffer.rest();
            return Poll::Pending;
        }
        let space = self.buffer.space();
        let most = most.min(space.len());
        let mut into = ReadBuf::new(&mut space[..most]);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut into)?;
        if polled.is_pending() {
            self.buffer.rest();
            return Poll::Pending;
        }
        let n = into.filled().len();
        self.buffer.filled(n);
        Poll::Ready(Ok(n))
    }

    /// Writes bytes of `first` and `second` behind the first `written` of them, with one system call if possible. Once all
    /// are written, ready when the stream has passed them on: then it returns true.
    pub(super) fn poll_write_behind(
        &mut self,
        cx: &mut Context<'_>,
        [first, second]: [&[u8]; 2],
        written: &mut usize,
    ) -> Poll<io::Result<bool>> {
        if *written >= first.len() + second.len() {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            return Poll::Ready(Ok(true));
        }
        let of_second = second
            .get(written.saturating_sub(first.len())..)
            .unwrap_or_default();
        let of_first = first.get(*written..).unwrap_or_default();
        *written += ready!(self.poll_write_both(cx, of_first, of_second))?;
        Poll::Ready(Ok(false))
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
