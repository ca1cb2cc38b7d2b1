//! Closes a connection whose other end may still be sending.

use std::{future::poll_fn, io, mem::MaybeUninit, pin::Pin, task::ready, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Longest time to listen to an end that does not stop sending: limit [`lingering_close`] to it.
pub const LINGERING_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes to discard.
const MOST: usize = 4 << 20;

/// Bytes to read at once. On the stack: a silent end costs nothing.
const PIECE: usize = 16 << 10;

/// Shuts down our half of a connection, and discards what the other end still sends, up to its end or 4 MiB. A close with
/// unread data would reset the connection, and the other end would lose the bytes that were written last (RFC 9112
/// section 9.6). The caller closes the stream afterwards, and waits no longer than [`LINGERING_CLOSE_TIMEOUT`].
///
/// # Errors
/// Returns those of the stream: the connection has ended then, too.
pub async fn lingering_close<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    stream.shutdown().await?;
    let mut thrown_away = 0;
    poll_fn(|cx| {
        while thrown_away < MOST {
            let mut space = [MaybeUninit::uninit(); PIECE];
            let mut piece = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut piece))?;
            match piece.filled().len() {
                0 => break,
                n => thrown_away += n,
            }
        }
        io::Result::Ok(()).into()
    })
    .await
}
