//! Closes a connection whose other end may still be sending.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Poll, ready},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Longest time to listen to an end that does not stop sending: limit [`lingering_close`] to it.
pub const LINGERING_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes to discard; the socket's buffer holds what comes behind them.
const MOST: usize = 4 << 20;

/// Bytes to read at once. On the stack: a silent end costs nothing.
const PIECE: usize = 16 << 10;

/// Shuts down our half of a connection, and discards what the other end still sends, up to its end or 4 MiB. A close with
/// unread data would reset the connection, and the other end would lose the bytes that were written last (RFC 9112
/// section 9.6). Behind 4 MiB it reads no more, and is never ready: the other end has to stop, and has the rest of the
/// time for the bytes that are on their way to it. The caller closes the stream afterwards, and waits no longer than
/// [`LINGERING_CLOSE_TIMEOUT`].
///
/// # Errors
/// Returns those of the stream: the connection has ended then, too.
pub async fn lingering_close<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    stream.shutdown().await?;
    let mut thrown_away = 0;
    poll_fn(|cx| {
        loop {
            if thrown_away >= MOST {
                return Poll::Pending;
            }
            let mut space = [MaybeUninit::uninit(); PIECE];
            let mut piece = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut piece))?;
            match piece.filled().len() {
                0 => return Poll::Ready(Ok(())),
                n => thrown_away += n,
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    /// A stream whose other end never stops sending.
    struct Endless {
        read: usize,
    }

    impl AsyncRead for Endless {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.read += into.remaining();
            let n = into.initialize_unfilled().len();
            into.advance(n);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Endless {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn an_end_that_sends_too_much_is_not_read_and_not_reset_at_once() {
        let mut stream = Endless { read: 0 };
        let mut closing = Box::pin(lingering_close(&mut stream));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(closing.as_mut().poll(&mut cx).is_pending(), "it would be reset");
        }
        drop(closing);
        assert!((MOST..MOST + PIECE).contains(&stream.read), "{}", stream.read);
    }
}
