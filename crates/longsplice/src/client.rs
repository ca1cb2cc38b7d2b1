//! Types of a client's connection, as its protocol handler gets it.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use longsplice_core::{proxy_protocol::Malformed, route::Facts};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use crate::tls::{LONGEST, TIMEOUT};

/// A client's connection, leg A, with its properties before its protocol is read.
#[derive(Debug)]
pub(crate) struct Client<S = Stream> {
    /// Connection.
    pub stream: S,
    /// Address of the client; from the PROXY header, if one was read.
    pub peer: SocketAddr,
    /// Address that the client connected to; from the PROXY header, if one was read.
    pub local: SocketAddr,
    /// True if the connection is IPv4 on the wire, whatever the PROXY header says.
    pub ipv4: bool,
    /// Bytes that were read and not interpreted yet. The handler uses or forwards them before bytes of the stream.
    pub early: Vec<u8>,
    /// Contents of the ClientHello, if one was read.
    pub hello: Option<Hello>,
}

/// Stream that a handler reads and writes.
#[derive(Debug)]
pub(crate) enum Stream {
    /// Carries bytes as they are on the wire: can be spliced.
    Plain(TcpStream),
    /// Carries decrypted bytes: stays in control mode. Its end without a close_notify is an error
    /// ([`io::ErrorKind::UnexpectedEof`]); its shutdown sends one (RFC 8446 section 6.1).
    Tls(Box<TlsStream<TcpStream>>),
}

/// Contents of a ClientHello (RFC 8446 section 4.1.2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Name of the server, in lower case and without a dot at its end; IDNA labels are as on the wire (RFC 6066 section
    /// 3).
    pub sni: Option<String>,
    /// Protocols, in the client's order (RFC 7301).
    pub alpn: Vec<Vec<u8>>,
}

impl Hello {
    /// Adds the contents of a ClientHello to the facts, if one was read.
    pub(crate) fn told<'a>(hello: Option<&'a Hello>, facts: Facts<'a>) -> Facts<'a> {
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

/// Reason why a connection has no ClientHello that can be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelloError {
    /// The bytes are no ClientHello, or a malformed one.
    #[error("no TLS ClientHello: {0}")]
    No(rustls::Error),
    /// The client speaks only TLS 1.1 or older, or SSL 3.0.
    #[error("it speaks only TLS versions before 1.2")]
    OldVersion,
    /// The ClientHello is too long.
    #[error("its TLS ClientHello is longer than {LONGEST} bytes")]
    TooLong,
    /// The ClientHello did not come completely in time.
    #[error("no TLS ClientHello came within {}s", TIMEOUT.as_secs())]
    TooLate,
    /// The connection ended within the ClientHello.
    #[error("it ended within its TLS ClientHello")]
    Cut,
}

/// Reason why a connection was rejected. It is closed or reset already.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RejectReason {
    /// The connection ended or failed before its first byte.
    #[error("it ended before it was served: {0}")]
    Gone(io::Error),
    /// The peer is in `accept_proxy`, but sent no PROXY header.
    #[error("{0}; its address is in accept_proxy, so one is required")]
    Proxy(Malformed),
    /// The PROXY header did not come completely in time.
    #[error("no PROXY header came within {}s; its address is in accept_proxy, so one is required", .0.as_secs())]
    ProxyLate(Duration),
    /// The connection ended within the PROXY header.
    #[error("it ended within its PROXY header")]
    ProxyCut,
    /// The connection has no ClientHello that can be read.
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
    /// Creates a client from a socket of which nothing was read. Fails if the socket is not connected any more.
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Client> {
        let local = stream.local_addr()?;
        Ok(Client::between(Stream::Plain(stream), peer, local))
    }
}

impl<S> Client<S> {
    /// Creates a client from a connection between these addresses, of which nothing was read.
    pub(crate) fn between(stream: S, peer: SocketAddr, local: SocketAddr) -> Client<S> {
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

    /// Converts the stream.
    pub(crate) fn map<T>(self, wrap: impl FnOnce(S) -> T) -> Client<T> {
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
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => tls.get_ref().0,
        }
    }

    /// Returns whether it carries bytes as they are on the wire.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Stream::Plain(_))
    }

    /// Returns the socket if it can be spliced, otherwise the stream itself.
    pub(crate) fn into_plain(self) -> Result<TcpStream, Stream> {
        match self {
            Stream::Plain(socket) => Ok(socket),
            tls @ Stream::Tls(_) => Err(tls),
        }
    }

    /// Returns the socket, without TLS around it.
    pub(crate) fn into_socket(self) -> TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => tls.into_inner().0,
        }
    }
}

/// Returns once the peer of a socket has reset its connection, or, with `at_its_end`, has sent a FIN, even if bytes are
/// still unread. Cancel-safe.
pub(crate) async fn gone(socket: &TcpStream, at_its_end: bool) {
    let interest = match at_its_end {
        // PRIORITY reports the end of the stream, even behind unread bytes. (Urgent data is not subscribed to.)
        true => Interest::ERROR.add(Interest::PRIORITY),
        false => Interest::ERROR,
    };
    // Ignore the result: after any end of the wait there is nothing more to wait for.
    drop(socket.ready(interest).await);
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

    // Without this method only the first piece would be written: a head would become a segment of its own.
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
