//! A connection as a protocol handler gets it.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use longsplice_core::{proxy_protocol::Malformed, route::Facts};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use crate::{
    config::Protocol,
    listener::Settings,
    proxy_header,
    tls::{self, HelloError},
};

/// Leg A, with what is known of it before its protocol is read.
#[derive(Debug)]
pub struct Client<S = Stream> {
    /// The connection.
    pub stream: S,
    /// Who it is: by the PROXY header, where one was read.
    pub peer: SocketAddr,
    /// Where it connected to, likewise.
    pub local: SocketAddr,
    /// Whether it is IPv4 on the wire, whatever the PROXY header says.
    pub ipv4: bool,
    /// Read already, and not interpreted yet: to be read, or written to the server, before what the stream gives.
    pub early: Vec<u8>,
    /// What its ClientHello says, where one was read.
    pub hello: Option<Hello>,
}

/// What a handler reads from and writes to.
#[derive(Debug)]
pub enum Stream {
    /// Bytes as they are on the wire: can be spliced.
    Plain(TcpStream),
    /// Decrypted here: stays in control mode. Its end without a close_notify is an error
    /// ([`io::ErrorKind::UnexpectedEof`], RFC 8446 section 6.1); its shutdown sends one.
    Tls(Box<TlsStream<TcpStream>>),
}

/// What a ClientHello says (RFC 8446 section 4.1.2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hello {
    /// The server's name (RFC 6066 section 3): in lower case, without a dot at its end, IDNA labels as they are on the wire.
    pub sni: Option<String>,
    /// Protocols, in the client's order (RFC 7301).
    pub alpn: Vec<Vec<u8>>,
}

impl Hello {
    /// These facts, with what a ClientHello says where one was read.
    pub fn told<'a>(hello: Option<&'a Hello>, facts: Facts<'a>) -> Facts<'a> {
        match hello {
            None => facts,
            Some(hello) => Facts {
                sni: hello.sni.as_deref(),
                alpn: &hello.alpn,
                ..facts
            },
        }
    }
}

/// Why a connection was not let in. It is closed, or reset, by then.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It ended, or broke, before it had said anything.
    #[error("it ended before it was served: {0}")]
    Gone(io::Error),
    /// Its peer is one of `accept_proxy`, and what it sent is no PROXY header.
    #[error("{0}; its address is in accept_proxy, so one is required")]
    Proxy(Malformed),
    /// Its PROXY header did not come, or not all of it.
    #[error("no PROXY header came within {}s; its address is in accept_proxy, so one is required", .0.as_secs())]
    ProxyLate(Duration),
    /// It ended within its PROXY header.
    #[error("it ended within its PROXY header")]
    ProxyCut,
    /// It has no ClientHello that can be read.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Handshake(io::Error),
    /// The handshake took too long.
    #[error("the TLS handshake was not done within {}s", .0.as_secs())]
    HandshakeLate(Duration),
}

impl Client {
    /// Reads what comes before the protocol: a PROXY header, if the peer is one of those that send it, and a ClientHello, if the
    /// listener asks for it; where it terminates TLS, the handshake is done afterwards. Takes no longer than
    /// [`proxy_header::TIMEOUT`] and [`tls::TIMEOUT`] together.
    ///
    /// # Errors
    /// What was wrong with it. Fails closed: a connection that cannot be read is never forwarded.
    pub async fn accept(stream: TcpStream, peer: SocketAddr, settings: &Settings) -> Result<Client, Unfit> {
        let listener = &settings.listener;
        let mut client = Client::new(stream, peer).map_err(Unfit::Gone)?;
        let ip = client.peer.ip();
        if listener.accept_proxy.iter().any(|network| network.contains(ip)) {
            client = Box::pin(proxy_header::read(client)).await?;
        }
        // (Each on its own: a plain connection is to have no room for them.)
        match (&settings.terminator, listener.protocol) {
            (Some(terminator), _) => Box::pin(terminator.accept(client)).await,
            (None, Protocol::Tls) => Box::pin(tls::peek(client)).await,
            (None, Protocol::Tcp | Protocol::Http) => Ok(client),
        }
    }

    /// Of a socket of which nothing was read.
    ///
    /// # Errors
    /// It is not connected any more.
    pub fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Client> {
        let local = stream.local_addr()?;
        Ok(Client::between(Stream::Plain(stream), peer, local))
    }
}

impl<S> Client<S> {
    /// Of a connection between these addresses, of which nothing was read.
    pub fn between(stream: S, peer: SocketAddr, local: SocketAddr) -> Client<S> {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        let peer = canonical(peer);
        Client {
            stream,
            ipv4: peer.is_ipv4(),
            peer,
            local: canonical(local),
            early: Vec::new(),
            hello: None,
        }
    }

    /// The same with something around its stream.
    pub fn map<T>(self, wrap: impl FnOnce(S) -> T) -> Client<T> {
        Client {
            stream: wrap(self.stream),
            peer: self.peer,
            local: self.local,
            ipv4: self.ipv4,
            early: self.early,
            hello: self.hello,
        }
    }
}

impl Stream {
    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => tls.get_ref().0,
        }
    }

    /// Whether its bytes are as they are on the wire.
    pub fn is_plain(&self) -> bool {
        matches!(self, Stream::Plain(_))
    }

    /// The socket, if it can be spliced.
    ///
    /// # Errors
    /// It cannot: itself.
    pub fn into_plain(self) -> Result<TcpStream, Stream> {
        match self {
            Stream::Plain(socket) => Ok(socket),
            tls @ Stream::Tls(_) => Err(tls),
        }
    }

    /// The same, without what is around it.
    pub fn into_socket(self) -> TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => tls.into_inner().0,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Stream::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    // Without this one only the first of the pieces would be written: a head would be a segment of its own.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, pieces),
            Stream::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(socket) => socket.is_write_vectored(),
            Stream::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn pieces_are_written_together() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, peer) = listener.accept().await.unwrap();
        let mut client = Client::new(near, peer).unwrap();
        assert!(client.ipv4 && client.stream.is_write_vectored());
        let pieces = [IoSlice::new(b"head"), IoSlice::new(b"body")];
        let written = poll_fn(|cx| Pin::new(&mut client.stream).poll_write_vectored(cx, &pieces)).await;
        assert_eq!(written.unwrap(), 8);
        let mut got = [0; 8];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"headbody");
    }
}
