//! A connection as a protocol handler gets it.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Leg A, with what is known of it before its protocol is read.
#[derive(Debug)]
pub struct Client {
    /// The connection.
    pub stream: Stream,
    /// Who it is: by the PROXY header, where one was read.
    pub peer: SocketAddr,
    /// Where it connected to, likewise.
    pub local: SocketAddr,
    /// Read already, and not interpreted yet.
    pub early: Vec<u8>,
    /// What its ClientHello says, where one was read.
    pub hello: Option<Hello>,
}

/// What a handler reads from and writes to.
#[derive(Debug)]
pub enum Stream {
    /// Bytes as they are on the wire: can be spliced.
    Plain(TcpStream),
}

/// What a ClientHello says (RFC 8446 section 4.1.2).
#[derive(Debug, Clone, Default)]
pub struct Hello {
    /// The server's name (RFC 6066 section 3), in lower case.
    pub sni: Option<String>,
    /// Protocols, in the client's order (RFC 7301).
    pub alpn: Vec<Vec<u8>>,
}

impl Client {
    /// Of a socket of which nothing was read.
    ///
    /// # Errors
    /// It is not connected any more.
    pub fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Client> {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        let local = canonical(stream.local_addr()?);
        Ok(Client {
            stream: Stream::Plain(stream),
            peer: canonical(peer),
            local,
            early: Vec::new(),
            hello: None,
        })
    }
}

impl Stream {
    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}
