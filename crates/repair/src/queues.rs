//! How much a socket holds: the three questions of `tcp(7)`, in bytes.
//!
//! Each answer was true when the kernel gave it, and segments that sit in the socket's backlog are not in it: a zero
//! here does not mean that a direction is drained (the far end's acknowledgement does).

use std::os::fd::AsFd;

use crate::sys::{self, Error};

/// `<linux/sockios.h>`; not in libc for this target.
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// Bytes received in order and not yet read (`SIOCINQ`). A FIN does not count.
///
/// # Errors
/// `EINVAL` for a listener.
pub fn unread(fd: impl AsFd) -> Result<u32, Error> {
    // SIOCINQ and SIOCOUTQ have the numbers of the terminals' requests.
    count(fd, libc::FIONREAD, "ioctl(SIOCINQ)")
}

/// Bytes written and not yet acknowledged by the far end, whether sent or not (`SIOCOUTQ`). A FIN counts as one.
/// Zero before the handshake has ended.
///
/// # Errors
/// `EINVAL` for a listener.
pub fn unacknowledged(fd: impl AsFd) -> Result<u32, Error> {
    count(fd, libc::TIOCOUTQ, "ioctl(SIOCOUTQ)")
}

/// Bytes written and not yet sent for the first time (`SIOCOUTQNSD`). An unsent FIN counts as one.
///
/// # Errors
/// `EINVAL` for a listener.
pub fn unsent(fd: impl AsFd) -> Result<u32, Error> {
    count(fd, SIOCOUTQNSD, "ioctl(SIOCOUTQNSD)")
}

fn count(fd: impl AsFd, request: libc::Ioctl, call: &'static str) -> Result<u32, Error> {
    // The kernel computes these as differences of sequence numbers in an int; a negative one is not to be believed.
    Ok(u32::try_from(sys::ioctl_int(fd, request, call)?).unwrap_or(0))
}
