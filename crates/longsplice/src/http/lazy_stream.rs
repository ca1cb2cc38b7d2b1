//! Wraps a client's connection; registers it with tokio only at the first wait.
//!
//! A session does not wait for the client's socket if the request is there at accept(2) and the socket takes the reply
//! at once. Without its registration in epoll(7) such a connection costs a twentieth less.

use std::{
    future::pending,
    io::{self, IoSlice, Read, Write},
    mem,
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::buffered_stream::Readable;
use crate::client::{self, Stream};

/// Client stream of a session.
#[derive(Debug)]
pub(crate) enum LazyStream {
    /// Not registered with tokio: a non-blocking socket without TLS.
    Fresh(TcpStream),
    /// Registered with tokio.
    Known(Stream),
    /// Closed, because tokio could not register it.
    Lost,
}

impl LazyStream {
    /// Returns whether it is not registered with tokio.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(self, LazyStream::Fresh(_))
    }

    /// Returns whether it carries plain TCP, without TLS.
    pub(super) fn is_plain(&self) -> bool {
        match self {
            LazyStream::Fresh(_) => true,
            LazyStream::Known(stream) => stream.is_plain(),
            LazyStream::Lost => false,
        }
    }

    /// Returns the socket, if there still is one.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            LazyStream::Fresh(socket) => Some(socket.as_fd()),
            LazyStream::Known(stream) => Some(stream.socket().as_fd()),
            LazyStream::Lost => None,
        }
    }

    /// Registers it with tokio, if it is not yet registered. If that fails, the connection is lost.
    pub(super) fn make_known(&mut self) -> io::Result<&mut Stream> {
        if self.is_fresh() {
            *self = LazyStream::Known(mem::replace(self, LazyStream::Lost).into_known()?);
        }
        match self {
            LazyStream::Known(stream) => Ok(stream),
            LazyStream::Fresh(_) | LazyStream::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Converts it into a stream that is registered with tokio.
    pub(super) fn into_known(self) -> io::Result<Stream> {
        match self {
            LazyStream::Fresh(socket) => Ok(Stream::Plain(tokio::net::TcpStream::from_std(socket)?)),
            LazyStream::Known(stream) => Ok(stream),
            LazyStream::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns when the client is gone, as [`client::gone`] does. Cancel-safe.
    pub(super) async fn gone(&self, at_its_end: bool) {
        match self {
            LazyStream::Known(stream) => client::gone(stream.socket(), at_its_end).await,
            // Watch a duplicate of the descriptor for as long as this lasts. Without a free descriptor the client is
            // not watched.
            LazyStream::Fresh(socket) => match socket.try_clone().and_then(tokio::net::TcpStream::from_std) {
                Ok(watched) => client::gone(&watched, at_its_end).await,
                Err(_) => pending().await,
            },
            LazyStream::Lost => pending().await,
        }
    }

    /// Performs an operation on an unregistered socket at once. Otherwise returns the registered stream, for the caller
    /// to poll.
    fn at_once<T>(
        &mut self,
        io: impl FnOnce(&mut TcpStream) -> io::Result<T>,
    ) -> io::Result<Result<T, Pin<&mut Stream>>> {
        if let LazyStream::Fresh(socket) = self {
            match io(socket) {
                Err(error) if is_later(&error) => {}
                done => return done.map(Ok),
            }
        }
        self.make_known().map(|stream| Err(Pin::new(stream)))
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

impl Readable for LazyStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            LazyStream::Known(stream) => stream.poll_readable(cx),
            // A read tells.
            LazyStream::Fresh(_) | LazyStream::Lost => Poll::Ready(Ok(())),
        }
    }

    fn room(&self) -> usize {
        let room = |socket| longsplice_repair::room(socket).ok();
        self.socket().and_then(room).unwrap_or(0)
    }
}

impl AsyncRead for LazyStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self
            .get_mut()
            .at_once(|socket| socket.read(buf.initialize_unfilled()))?
        {
            Ok(n) => {
                buf.advance(n);
                Poll::Ready(Ok(()))
            }
            Err(stream) => stream.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for LazyStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut().at_once(|socket| socket.write(buf))? {
            Ok(n) => Poll::Ready(Ok(n)),
            Err(stream) => stream.poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut().at_once(|socket| socket.write_vectored(pieces))? {
            Ok(n) => Poll::Ready(Ok(n)),
            Err(stream) => stream.poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            LazyStream::Known(stream) => stream.is_write_vectored(),
            LazyStream::Fresh(_) | LazyStream::Lost => true,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            LazyStream::Known(stream) => Pin::new(stream).poll_flush(cx),
            LazyStream::Fresh(_) | LazyStream::Lost => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self
            .get_mut()
            .at_once(|socket| socket.shutdown(Shutdown::Write))?
        {
            Ok(()) => Poll::Ready(Ok(())),
            Err(stream) => stream.poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (LazyStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        (LazyStream::Fresh(near), far)
    }

    #[tokio::test]
    async fn what_need_not_wait_stays_unheard_of() {
        let (mut front, mut far) = pair();
        far.write_all(b"request").unwrap();
        let mut got = [0; 7];
        front.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"request");
        let pieces = [IoSlice::new(b"re"), IoSlice::new(b"ply")];
        assert_eq!(front.write_vectored(&pieces).await.unwrap(), 5);
        front.write_all(b".").await.unwrap();
        front.shutdown().await.unwrap();
        assert!(front.is_fresh() && front.is_plain() && front.socket().is_some());
        let mut reply = String::new();
        far.read_to_string(&mut reply).unwrap();
        assert_eq!(reply, "reply.");
    }

    #[tokio::test]
    async fn a_wait_makes_it_known_and_loses_nothing() {
        let (mut front, mut far) = pair();
        let mut got = [0; 4];
        {
            let mut read = std::pin::pin!(front.read_exact(&mut got));
            tokio::select! {
                biased;
                _ = &mut read => panic!("nothing came"),
                () = tokio::task::yield_now() => {}
            }
            far.write_all(b"late").unwrap();
            read.await.unwrap();
        }
        assert_eq!(&got, b"late");
        assert!(!front.is_fresh());
        // Write more than both sockets hold, so that the rest has to wait.
        let (mut front, mut far) = pair();
        let much: Vec<u8> = (0..32 << 20_u32).map(|i| (i % 251) as u8).collect();
        {
            let mut write = std::pin::pin!(front.write_all(&much));
            tokio::select! {
                biased;
                _ = &mut write => panic!("the peer has not read"),
                () = tokio::task::yield_now() => {}
            }
            let reader = tokio::task::spawn_blocking(move || {
                let mut read = vec![0; 32 << 20];
                far.read_exact(&mut read).unwrap();
                read
            });
            write.await.unwrap();
            assert!(reader.await.unwrap() == much);
        }
        assert!(!front.is_fresh());
    }
}
