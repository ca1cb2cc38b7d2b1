//! A decrypted connection and a server's, joined in control mode to their end.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use longsplice_engine::Side;
use longsplice_repair::options;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional_with_sizes},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use crate::pace::Pace;

/// Of each direction: what one record of TLS can hold (RFC 8446 section 5.1).
const BUFFER: usize = 16 << 10;

/// What a relayed connection carried, and how it ended.
#[derive(Debug)]
pub struct Passed {
    /// Decrypted bytes that the server took.
    pub to_server: u64,
    /// Bytes that the server sent.
    pub to_client: u64,
    /// Both ends finished in order. Else both were reset: a stream that was cut off must not look finished.
    pub end: io::Result<()>,
}

impl Passed {
    /// All of them.
    pub fn bytes(&self) -> u64 {
        self.to_server + self.to_client
    }
}

/// Relays to the end, each direction until its own; `early` was read from the client already. The client's end counts only with its
/// close_notify (RFC 8446 section 6.1), and gets one when the server has ended. Decrypted bytes count for the rate limit.
pub async fn relay(
    mut client: Box<TlsStream<TcpStream>>,
    server: TcpStream,
    early: &[u8],
    pace: Pace,
) -> Passed {
    let mut server = Counted {
        inner: server,
        pace,
        read: 0,
        written: 0,
    };
    let end = join(&mut client, &mut server, early).await;
    // Until here, each may have been set to reset when the process dies.
    for socket in [client.get_ref().0, &server.inner] {
        let set = options::set_reset_on_close(socket, end.is_err());
        if let Err(error) = set {
            tracing::debug!(%error, "it was gone already");
        }
    }
    Passed {
        to_server: server.written,
        to_client: server.read,
        end,
    }
}

async fn join(
    client: &mut TlsStream<TcpStream>,
    server: &mut Counted<TcpStream>,
    early: &[u8],
) -> io::Result<()> {
    server.write_all(early).await?;
    copy_bidirectional_with_sizes(client, server, BUFFER, BUFFER)
        .await
        .map(drop)
}

/// Counts what passes, which is wanted even where an error ends it, and holds it to its rate.
struct Counted<S> {
    inner: S,
    pace: Pace,
    read: u64,
    written: u64,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.pace.poll_may(Side::Server, cx));
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        let n = (buf.filled().len() - before) as u64;
        self.read += n;
        self.pace.charge(Side::Server, n);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.pace.poll_may(Side::Client, cx));
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        if let Poll::Ready(Ok(n)) = written {
            self.written += n as u64;
            self.pace.charge(Side::Client, n as u64);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
