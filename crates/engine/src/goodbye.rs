//! The end of a connection whose other end may still be talking.

use std::{future::poll_fn, io, mem::MaybeUninit, pin::Pin, task::ready, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// How long it is worth to listen to an end that does not stop talking: what [`goodbye`] is to be limited to.
pub const GOODBYE: Duration = Duration::from_secs(2);

/// How much of it is thrown away.
const MOST: usize = 4 << 20;

/// What is read at once. On the stack: an end that is silent costs nothing.
const PIECE: usize = 16 << 10;

/// Ends our half of a connection, and throws away what the other end still says, up to its end or 4 MiB: closed with something
/// unread, the socket would reset the connection, and that would take what was written last out of the other end's hands (RFC
/// 9112 section 9.6). It is the caller's to close the stream then, and to wait no longer than [`GOODBYE`].
///
/// # Errors
/// Those of the stream: the connection has ended then, too.
pub async fn goodbye<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
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
