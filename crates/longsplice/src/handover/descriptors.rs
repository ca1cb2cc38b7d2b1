//! Sends descriptors over a Unix socket (SCM_RIGHTS).

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Number of descriptors in a message; the kernel takes at most 253.
const MOST: usize = 64;

/// Sends descriptors, with a byte for each message.
pub(super) fn send(stream: &UnixStream, descriptors: &[OwnedFd]) -> io::Result<()> {
    for some in descriptors.chunks(MOST) {
        let some: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&some)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        sendmsg(stream, &[IoSlice::new(b"+")], &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Receives so many descriptors. Fails if the other end closes before.
pub(super) fn receive(stream: &UnixStream, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut received = Vec::new();
    while received.len() < count {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                received.extend(descriptors);
            }
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read};

    use super::*;

    #[test]
    fn descriptors_arrive_in_their_order_however_many_there_are() {
        let (here, there) = UnixStream::pair().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let sent: Vec<OwnedFd> = (0..150)
            .map(|n| {
                let path = directory.path().join(n.to_string());
                std::fs::write(&path, n.to_string()).unwrap();
                File::open(path).unwrap().into()
            })
            .collect();
        send(&here, &sent).unwrap();
        let received = receive(&there, sent.len()).unwrap();
        for (n, file) in received.into_iter().enumerate() {
            let mut text = String::new();
            File::from(file).read_to_string(&mut text).unwrap();
            assert_eq!(text, n.to_string());
        }
        drop(here);
        assert!(receive(&there, 1).is_err(), "the other end has closed");
    }
}
