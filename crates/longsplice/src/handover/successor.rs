//! Runs the side of the process that replaces another one.

use std::{
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::Duration,
};

use super::{HandoverError, Head, Inherited, PROTOCOL, SERVES, descriptors};
use crate::admin::client::refusal;

/// Longest time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of an answer's head and of the list of sockets, in bytes.
const LONGEST_HEAD: usize = 16 << 10;
const LONGEST_LIST: usize = 4 << 20;

/// Connection to a predecessor that has passed its sockets and goes on until this process serves.
#[derive(Debug)]
pub(crate) struct Succession {
    stream: UnixStream,
    pid: u32,
}

/// Requests the sockets of the daemon behind an admin socket. Returns them, and the lock of its instance.
///
/// # Errors
/// [`HandoverError`]; the daemon goes on then.
pub(crate) fn request(admin: &Path) -> Result<(Succession, Inherited, OwnedFd), HandoverError> {
    let mut stream = UnixStream::connect(admin)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "POST /handover HTTP/1.1\r\nHost: longsplice\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\nContent-Length: 0\r\n\r\n"
    )?;
    let head = read_until(&mut stream, b"\r\n\r\n", LONGEST_HEAD)?;
    if !head.starts_with(b"HTTP/1.1 101 ") {
        let mut rest = head;
        // The answer may end with the connection or not: its body is short.
        let mut body = vec![0; LONGEST_HEAD];
        let long = stream.read(&mut body)?;
        rest.extend_from_slice(&body[..long]);
        return Err(HandoverError::Refused(refusal(&rest)));
    }
    let list = read_until(&mut stream, b"\n", LONGEST_LIST)?;
    let head: Head = serde_json::from_slice(&list).map_err(io::Error::other)?;
    let mut sockets = descriptors::receive(&stream, head.sockets.len() + 1)?;
    let lock = sockets
        .pop()
        .ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let mut inherited = Inherited::default();
    for (described, socket) in head.sockets.into_iter().zip(sockets) {
        inherited.add(described, socket);
    }
    Ok((
        Succession {
            stream,
            pid: head.pid,
        },
        inherited,
        lock,
    ))
}

impl Succession {
    /// Tells the predecessor that this process serves: it stops accepting, and ends when it is done.
    pub(crate) fn serve(mut self) {
        match self.stream.write_all(&[SERVES]) {
            Ok(()) => tracing::info!(pid = self.pid, "the running daemon is replaced"),
            // It was killed meanwhile; the sockets are here.
            Err(error) => tracing::warn!(pid = self.pid, %error, "the replaced daemon has ended"),
        }
    }
}

/// Reads up to a mark, and no byte more: descriptors come with the next ones.
fn read_until(stream: &mut UnixStream, mark: &[u8], longest: usize) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    while !read.ends_with(mark) {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        read.push(byte[0]);
        if read.len() > longest {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(read)
}
