//! The receive window: what we have promised, and the buffer that has to take it.
//!
//! Two numbers of the kernel (Linux 6.18) are in play. The *promise* is the right edge of the window: what lies beyond is
//! dropped, and it is never taken back. The *buffer* is memory: a segment that does not fit is dropped although it was
//! promised. The buffer grows by itself while a program reads, so that a promise beyond the buffer is what only comes
//! about where a window was promised on the socket's behalf: in the time without it, or by the other end of a splice.

use std::os::fd::AsFd;

use libc::c_int;

use crate::{
    repair::{Repair, enter},
    sys::{self, Error, Opt, RepairWindow, opt},
};

const REPAIR_WINDOW: Opt = opt!(IPPROTO_TCP, TCP_REPAIR_WINDOW = 29);
const RCVLOWAT: Opt = opt!(SOL_SOCKET, SO_RCVLOWAT);

/// Makes a connected socket accept at least `bytes` (0 to 2^30) beyond RCV.NXT. Never takes back what was promised
/// before. Nothing is sent: the peer learns of it with the next segment, or has been told already.
///
/// That there is memory for it is another matter: [`grow_receive_buffer`].
///
/// The socket should be idle: an ACK that arrives in the middle of this has its window update undone, until the peer's next
/// segment.
///
/// # Errors
/// As [`enter`].
pub fn set_receive_window<Fd: AsFd + ?Sized>(fd: &Fd, bytes: u32) -> Result<(), Error> {
    let repair = enter(fd)?;
    let next = repair.receive_sequence()?;
    let window = get(&repair)?;
    if promised(&window, next) < bytes {
        set(
            repair.fd(),
            RepairWindow {
                rcv_wnd: bytes,
                rcv_wup: next,
                ..window
            },
        )?;
    }
    repair.leave_silently()
}

/// Raises the receive buffer so that a window of `bytes` fits, unless it is large enough. Returns how many bytes fit, up
/// to `bytes`. Unlike [`set_receive_buffer`](crate::options::set_receive_buffer) it leaves the automatic growth on, and is
/// not bounded by `net.core.rmem_max`.
///
/// The cap is half of the largest buffer, the third number of `net.ipv4.tcp_rmem`; for a socket whose buffer was fixed
/// by `set_receive_buffer`, half of that buffer, which stays as it is. The kernel reckons with segments that fill half
/// of their memory (later: with what it has seen); very small ones may fit less well. No memory is taken before data
/// comes.
///
/// How: `SO_RCVLOWAT` makes room for so many bytes (`tcp_set_rcvlowat`), and raises the clamp of the window
/// (`TCP_WINDOW_CLAMP`) to them. It is 1, its default, afterwards.
///
/// # Errors
/// None is known for a TCP socket.
pub fn grow_receive_buffer(fd: impl AsFd, bytes: u32) -> Result<u32, Error> {
    let fd = fd.as_fd();
    raise(fd, bytes)?;
    let fits = sys::get::<u32>(fd, RCVLOWAT);
    // In any case, or nobody would be told of data that is shorter.
    sys::set(fd, RCVLOWAT, 1)?;
    Ok(fits?.0)
}

/// As [`grow_receive_buffer`], one system call less.
pub(crate) fn fit_receive_buffer(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    let fd = fd.as_fd();
    raise(fd, bytes)?;
    sys::set(fd, RCVLOWAT, 1)
}

fn raise(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    sys::set(fd, RCVLOWAT, c_int::try_from(bytes).unwrap_or(c_int::MAX))
}

/// The windows of both ends.
pub(crate) fn get(repair: &Repair<'_>) -> Result<RepairWindow, Error> {
    Ok(sys::get::<RepairWindow>(repair.fd(), REPAIR_WINDOW)?.0)
}

/// Sets the windows of both ends, of a socket in repair mode.
pub(crate) fn set(fd: impl AsFd, window: RepairWindow) -> Result<(), Error> {
    sys::set(fd, REPAIR_WINDOW, window)
}

/// How many bytes beyond `next`, which is RCV.NXT, were promised: none if the promise is used up.
pub(crate) fn promised(window: &RepairWindow, next: u32) -> u32 {
    let edge = window.rcv_wup.wrapping_add(window.rcv_wnd);
    edge.wrapping_sub(next).cast_signed().max(0).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_since_is_no_longer_promised() {
        let window = RepairWindow {
            rcv_wnd: 1000,
            rcv_wup: u32::MAX - 99,
            ..RepairWindow::default()
        };
        for (next, left) in [(u32::MAX - 99, 1000), (0, 900), (900, 0), (901, 0)] {
            assert_eq!(promised(&window, next), left, "RCV.NXT {next}");
        }
    }
}
