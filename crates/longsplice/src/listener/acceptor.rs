//! A listening socket that leaves what it accepts alone.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::{Interest, unix::AsyncFd};

/// Accepts connections that the runtime has not heard of: who first waits for one tells it ([`Front`](crate::http::Front)).
/// tokio's own listener does so with each.
#[derive(Debug)]
pub(super) struct Acceptor(AsyncFd<TcpListener>);

impl Acceptor {
    /// Of a socket that listens.
    ///
    /// # Errors
    /// The runtime cannot take it.
    pub(super) fn new(listener: tokio::net::TcpListener) -> io::Result<Acceptor> {
        let listener = listener.into_std()?;
        // Nobody else can close it: what the deprecation is about. (Its successor is `unsafe`.)
        #[allow(deprecated)]
        let ready = AsyncFd::with_interest(listener, Interest::READABLE)?;
        Ok(Acceptor(ready))
    }

    /// The next connection, non-blocking, and who made it. Cancel-safe.
    ///
    /// # Errors
    /// Those of accept(2).
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
