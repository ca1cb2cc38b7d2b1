//! Reads the lengths of a socket's queues, by the three requests of `tcp(7)`, in bytes, and fills its queues.
//!
//! Each answer was true when the kernel gave it, and does not count segments in the socket's backlog: a zero here does
//! not mean that a direction is drained (the far end's acknowledgement does).

use std::{io, os::fd::AsFd};

use crate::{
    options,
    repair::{Queue, Repair},
    sys::{self, Error},
};

/// Request of `<linux/sockios.h>`; not in libc for this target.
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// Returns the bytes received in order and not yet read (`SIOCINQ`). A FIN does not count.
///
/// # Errors
/// `EINVAL` for a listener.
pub fn unread(fd: impl AsFd) -> Result<u32, Error> {
    // SIOCINQ and SIOCOUTQ have the numbers of the terminals' requests.
    count(fd, libc::FIONREAD, "ioctl(SIOCINQ)")
}

/// Returns the bytes written and not yet acknowledged by the far end, sent or unsent (`SIOCOUTQ`). A FIN counts as one.
/// Zero before the handshake has ended.
///
/// # Errors
/// `EINVAL` for a listener.
pub fn unacknowledged(fd: impl AsFd) -> Result<u32, Error> {
    count(fd, libc::TIOCOUTQ, "ioctl(SIOCOUTQ)")
}

/// Returns the bytes written and not yet sent for the first time (`SIOCOUTQNSD`). An unsent FIN counts as one.
///
/// # Errors
/// `EINVAL` for a listener.
pub fn unsent(fd: impl AsFd) -> Result<u32, Error> {
    count(fd, SIOCOUTQNSD, "ioctl(SIOCOUTQNSD)")
}

/// Estimates how many bytes more the socket would take at once: more than that would have to be held elsewhere.
///
/// # Errors
/// `EINVAL` for a listener.
pub fn room(fd: impl AsFd) -> Result<usize, Error> {
    let fd = fd.as_fd();
    // The buffer is memory; headers and unused parts of pages take a share of it.
    let space = options::send_buffer(fd)? / 4 * 3;
    Ok(space.saturating_sub(unacknowledged(fd)?) as usize)
}

/// Appends bytes to the send queue as if they had been sent just now: SND.NXT moves past them, nothing is on the wire.
/// The socket then accepts acknowledgements of them, and retransmits unacknowledged ones. Unsent bytes that wait in the
/// queue count as sent, too. Returns how many bytes the send buffer took, which may be fewer, or none: some 130 kB fit
/// into the buffer of a new socket. The rest is for an ordinary write.
///
/// Retransmission depends on the measured round-trip time (Linux 6.18): a socket without one, as after a thaw, sends
/// the last segment after 1 s (a tail loss probe), and begins with the first 3 s later (0.2 s each if the kernel
/// remembers the peer: `ip tcp_metrics`). It takes one round trip if SACK is on and other bytes are written afterwards
/// and leave at once: that is, if all together fit into the congestion window, 10 segments.
///
/// # Errors
/// `EPIPE` or `ECONNRESET` if the connection has ended; `ENOMEM`.
pub fn seed_send_queue(repair: &Repair<'_>, bytes: &[u8]) -> Result<usize, Error> {
    seed(repair, Queue::Send, bytes)
}

/// Appends bytes to the receive queue as if the peer had sent them: RCV.NXT moves past them, and they can be read. Nothing is on
/// the wire. Returns how many bytes the receive buffer took, which may be fewer, or none.
///
/// # Errors
/// `ENOMEM`.
pub fn seed_receive_queue(repair: &Repair<'_>, bytes: &[u8]) -> Result<usize, Error> {
    seed(repair, Queue::Receive, bytes)
}

fn seed(repair: &Repair<'_>, queue: Queue, bytes: &[u8]) -> Result<usize, Error> {
    repair.with_queue(queue, || {
        let mut taken = 0;
        while taken < bytes.len() {
            match sys::send(repair.fd(), &bytes[taken..]) {
                Ok(n) => taken += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(taken)
    })
}

fn count(fd: impl AsFd, request: libc::Ioctl, call: &'static str) -> Result<u32, Error> {
    // The kernel computes these as differences of sequence numbers in an int; a negative one is wrong.
    Ok(u32::try_from(sys::ioctl_int(fd, request, call)?).unwrap_or(0))
}
