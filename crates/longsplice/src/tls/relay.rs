//! Relays between a decrypted connection and a server's, in control mode, to their end.

use std::{
    io, mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use longsplice_engine::{IdlePolicy, Side, keep_alive};
use longsplice_repair::{options, unacknowledged};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional_with_sizes},
    net::TcpStream,
    time::{Instant, sleep_until},
};
use tokio_rustls::server::TlsStream;

use crate::rate_limiter::RateLimiter;

/// Size of the buffer of each direction: one TLS record (RFC 8446 section 5.1).
const BUFFER: usize = 16 << 10;

/// Result of a relayed connection.
#[derive(Debug)]
pub(crate) struct Passed {
    /// Number of decrypted bytes that the server took.
    pub to_server: u64,
    /// Number of bytes that the server sent.
    pub to_client: u64,
    /// `Ok` if both ends finished in order. Else both are reset: a stream that was cut off must not look complete.
    pub end: io::Result<()>,
    /// True if it ended because it was idle for too long.
    pub idle: bool,
}

impl Passed {
    /// Returns the bytes of both directions.
    pub(crate) fn bytes(&self) -> u64 {
        self.to_server + self.to_client
    }
}

/// Relays until both directions end, or until `told_to_end` returns; `early` was read from the client already. The client ends
/// its direction only by a close_notify, and gets one when the server has ended (RFC 8446 section 6.1). The rate limit counts
/// decrypted bytes.
pub(crate) async fn relay(
    client: Box<TlsStream<TcpStream>>,
    server: TcpStream,
    early: &[u8],
    pace: RateLimiter,
    idle: IdlePolicy,
    told_to_end: impl Future,
) -> Passed {
    for socket in [client.get_ref().0, &server] {
        // Ignore an error: the idle limit remains.
        let _ = idle.keepalive.map(|keepalive| keep_alive(socket, &keepalive));
    }
    let activity = Arc::new(Activity::new());
    let (client, server_socket) = (Mutex::new(client), Mutex::new(server));
    let mut decrypted = Shared(&client);
    let mut server = Counted {
        activity: Arc::clone(&activity),
        inner: Shared(&server_socket),
        pace,
        read: 0,
        written: 0,
    };
    // A socket whose queue cannot be read has none.
    let queued = || {
        let client = unacknowledged(client.lock().get_ref().0);
        let server = unacknowledged(&*server_socket.lock());
        [client, server].map(Result::unwrap_or_default)
    };
    let (end, is_idle) = tokio::select! {
        end = join(&mut decrypted, &mut server, early) => (end, false),
        () = activity.is_over(idle.limit, queued) => (Err(io::ErrorKind::TimedOut.into()), true),
        _ = told_to_end => (Err(io::ErrorKind::ConnectionAborted.into()), false),
    };
    // Until here, each socket may be set to reset when the process dies.
    let (client, server_socket) = (client.lock(), server_socket.lock());
    for socket in [client.get_ref().0, &*server_socket] {
        let set = options::set_reset_on_close(socket, end.is_err());
        if let Err(error) = set {
            tracing::debug!(%error, "it was gone already");
        }
    }
    Passed {
        to_server: server.written,
        to_client: server.read,
        end,
        idle: is_idle,
    }
}

async fn join(
    client: &mut Shared<'_, Box<TlsStream<TcpStream>>>,
    server: &mut Counted<Shared<'_, TcpStream>>,
    early: &[u8],
) -> io::Result<()> {
    server.write_all(early).await?;
    copy_bidirectional_with_sizes(client, server, BUFFER, BUFFER)
        .await
        .map(drop)
}

/// Time of the last transfer.
struct Activity {
    began: Instant,
    /// Milliseconds from `began` to the last transfer.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Activity {
        Activity {
            began: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Returns when nothing has passed for so long, nor left the queues of the sockets: a slow reader may take longer than the
    /// limit before its socket takes more. An end that reads nothing is given two limits.
    async fn is_over(&self, limit: Option<Duration>, queued: impl Fn() -> [u32; 2]) {
        let Some(limit) = limit else {
            return std::future::pending().await;
        };
        let mut before = [0; 2];
        loop {
            let end = self.began + Duration::from_millis(self.last.load(Ordering::Relaxed)) + limit;
            if Instant::now() < end {
                sleep_until(end).await;
                continue;
            }
            let now = queued();
            if mem::replace(&mut before, now) == now {
                return;
            }
            self.note();
        }
    }
}

/// Socket that the limit of idle time looks at between the steps of the relay.
struct Shared<'a, S>(&'a Mutex<S>);

impl<S: AsyncRead + Unpin> AsyncRead for Shared<'_, S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Shared<'_, S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(cx)
    }
}

/// Counts the bytes that pass, even if an error ends the relay, and limits their rate.
struct Counted<S> {
    inner: S,
    activity: Arc<Activity>,
    pace: RateLimiter,
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
        if n > 0 {
            self.activity.note();
        }
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
            self.activity.note();
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
