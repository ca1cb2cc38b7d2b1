//! Runs the side of the process that replaces another one.

use std::{
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{HandoverError, Head, Inherited, PROTOCOL, SERVES, STOPS, TIMEOUT, descriptors};
use crate::admin::client::refusal;

/// Longest time for the end of a predecessor that has closed the connection: the kernel closes it in the end of a process.
const END: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

/// Limits of an answer's head and of the list of sockets, in bytes.
const LONGEST_HEAD: usize = 16 << 10;
const LONGEST_LIST: usize = 4 << 20;

/// Connection to a predecessor that has passed its sockets and goes on until this process serves.
#[derive(Debug)]
pub(crate) struct Succession {
    stream: UnixStream,
    pid: u32,
    relays: bool,
    /// Handle of its process; `None` if this process cannot see it.
    process: Option<OwnedFd>,
}

/// Requests the sockets of the daemon behind an admin socket. Returns them, and the lock of its instance. If it fails,
/// the daemon goes on.
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
    let pid = i32::try_from(head.pid).ok().and_then(Pid::from_raw);
    Ok((
        Succession {
            stream,
            pid: head.pid,
            relays: head.relays,
            process: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
        },
        inherited,
        lock,
    ))
}

impl Succession {
    /// Returns true if the predecessor cannot splice.
    pub(crate) fn relays(&self) -> bool {
        self.relays
    }

    /// Tells the predecessor that this process serves: it stops accepting, and ends when it is done. One that was killed
    /// meanwhile needs no word: the sockets are here. Fails with [`HandoverError::GivenUp`] if it goes on, or may do
    /// so.
    pub(crate) fn serve(mut self) -> Result<(), HandoverError> {
        match self.stops() {
            Ok(()) => tracing::info!(pid = self.pid, "the running daemon is replaced"),
            Err(error) if self.has_ended() => {
                tracing::warn!(pid = self.pid, %error, "the replaced daemon has ended");
            }
            Err(error) => {
                tracing::debug!(pid = self.pid, %error, "the running daemon does not answer");
                return Err(HandoverError::GivenUp(self.pid));
            }
        }
        Ok(())
    }

    /// Waits for the predecessor's word.
    fn stops(&mut self) -> io::Result<()> {
        self.stream.write_all(&[SERVES])?;
        let mut word = [0];
        self.stream.read_exact(&mut word)?;
        match word[0] {
            STOPS => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Returns true if the predecessor's process has ended, or ends now.
    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        let mut ready = [PollFd::new(process, PollFlags::IN)];
        poll(&mut ready, Some(&END)).is_ok_and(|ready| ready > 0)
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

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Duration};

    use super::*;

    fn succession(stream: UnixStream, pid: u32) -> Succession {
        let process = Pid::from_raw(pid.try_into().unwrap()).unwrap();
        Succession {
            stream,
            pid,
            relays: false,
            process: pidfd_open(process, PidfdFlags::empty()).ok(),
        }
    }

    #[test]
    fn a_successor_serves_if_its_predecessor_stops_or_is_gone() {
        let (here, there) = UnixStream::pair().unwrap();
        (&there).write_all(&[STOPS]).unwrap();
        succession(here, std::process::id()).serve().unwrap();

        let (here, there) = UnixStream::pair().unwrap();
        let mut predecessor = Command::new("sleep").arg("60").spawn().unwrap();
        let succession = succession(here, predecessor.id());
        drop(there);
        predecessor.kill().unwrap();
        succession.serve().unwrap();
        predecessor.wait().unwrap();
    }

    #[test]
    fn a_predecessor_that_says_nothing_is_told_from_one_that_broke_off() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let read = |here: &mut UnixStream| HandoverError::from(read_until(here, b"\n", 1).unwrap_err());
        let silent = read(&mut here);
        assert!(matches!(silent, HandoverError::Silent), "{silent}");
        assert!(silent.to_string().contains("within 10 s"), "{silent}");
        drop(there);
        let gone = read(&mut here);
        assert!(matches!(gone, HandoverError::Io(_)), "{gone}");
    }

    #[test]
    fn a_successor_ends_if_its_predecessor_has_given_it_up() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(there);
        let error = succession(here, std::process::id()).serve().unwrap_err();
        assert!(matches!(error, HandoverError::GivenUp(_)), "{error}");
    }
}
