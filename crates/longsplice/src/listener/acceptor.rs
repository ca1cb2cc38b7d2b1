//! Accepts connections without registering them.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::{Interest, unix::AsyncFd};

/// Accepts without registering the socket with tokio, unlike tokio's own listener; [`LazyStream`](crate::http::LazyStream)
/// registers it on the first wait.
#[derive(Debug)]
pub(super) struct Acceptor(AsyncFd<TcpListener>);

impl Acceptor {
    /// Creates an acceptor for a listening socket.
    pub(super) fn new(listener: tokio::net::TcpListener) -> io::Result<Acceptor> {
        let listener = listener.into_std()?;
        // The deprecation concerns sockets that other code may close; this one is owned here. (The successor is
        // `unsafe`.)
        #[allow(deprecated)]
        let ready = AsyncFd::with_interest(listener, Interest::READABLE)?;
        Ok(Acceptor(ready))
    }

    /// Returns the next connection, non-blocking, and its peer. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.async_io(Interest::READABLE, accept).await
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (socket, peer) = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
    Ok((socket.into(), SocketAddr::try_from(peer)?))
}
