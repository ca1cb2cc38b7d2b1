//! The receive window: what was promised to the peer, and the buffer that has to take it.
//!
//! The kernel keeps them apart (Linux 6.18, `net/ipv4/tcp_input.c`). The *promise* is the right edge of the window: what
//! lies beyond is dropped, and the edge never goes back. The *buffer* bounds the memory, and with it the next promise. A
//! socket by itself never promises more than its buffer takes; but here others promise for it, while it is away or parked.
//! What then exceeds the buffer is still accepted as a rule, as the kernel enlarges the buffer segment by segment; but it
//! acknowledges late, keeps the next windows small (117 kB after 3 MB, where 4.6 MB would have been offered), and it drops
//! what exceeds the system's largest buffer (`net.ipv4.tcp_rmem`): the sender repeats that after a timeout.

use std::os::fd::AsFd;

use libc::c_int;

use crate::{
    options::receive_buffer,
    repair::{Repair, enter},
    sys::{self, Error, Opt, RepairWindow, opt},
};

const REPAIR_WINDOW: Opt = opt!(IPPROTO_TCP, TCP_REPAIR_WINDOW = 29);
const RCVLOWAT: Opt = opt!(SOL_SOCKET, SO_RCVLOWAT);
const RCVBUFFORCE: Opt = opt!(SOL_SOCKET, SO_RCVBUFFORCE);
const BUF_LOCK: Opt = opt!(SOL_SOCKET, SO_BUF_LOCK);
/// `uapi/linux/socket.h`.
const SOCK_RCVBUF_LOCK: u32 = 2;

/// Makes a connected socket accept at least `bytes` (0 to 2^30) beyond RCV.NXT. Never takes back what was promised
/// before. Nothing is sent: the peer learns of it with the next segment, or has been told already.
///
/// The buffer is another matter: [`fit_receive_buffer`].
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
/// of their memory, and later with those that it has seen; more memory goes to smaller ones. None is taken before data
/// comes.
///
/// How: `SO_RCVLOWAT` makes room for so many bytes (`tcp_set_rcvlowat`), and raises the clamp of the window
/// (`TCP_WINDOW_CLAMP`) with it. It is 1, its default, afterwards.
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

/// Whether the receive buffer grows by itself with what is read (`SO_BUF_LOCK`, Linux 5.14), as it does at first, and with it the
/// window. That of a fresh connection is the middle number of `net.ipv4.tcp_rmem`, of which the window is half, and later nearly all
/// where segments fill their memory. [`fit_receive_buffer`] enlarges one that does not grow, too.
///
/// # Errors
/// None is known for a TCP socket.
pub fn set_receive_growth(fd: impl AsFd, on: bool) -> Result<(), Error> {
    let fd = fd.as_fd();
    let locks = sys::get::<u32>(fd, BUF_LOCK)?.0;
    let new = match on {
        true => locks & !SOCK_RCVBUF_LOCK,
        false => locks | SOCK_RCVBUF_LOCK,
    };
    if new == locks {
        Ok(())
    } else {
        sys::set(fd, BUF_LOCK, new)
    }
}

/// Makes the receive buffer take a window of `bytes` (0 to 2^30) that was promised already, be it beyond the cap of
/// [`grow_receive_buffer`]: the promise is kept, whatever the system's limit or a fixed size. Automatic growth stays on or
/// off, as it was. The buffer stays as large: what the socket offers next goes by it.
///
/// How: `SO_RCVBUFFORCE` where the cap is too small; it fixes the buffer, and `SO_BUF_LOCK` (Linux 5.14) takes that back.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, where the cap is too small.
pub fn fit_receive_buffer(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    let fd = fd.as_fd();
    // By the kernel's reckoning, twice the payload.
    let enough = bytes.saturating_mul(2);
    if grow_receive_buffer(fd, bytes)? >= bytes || receive_buffer(fd)? >= enough {
        return Ok(());
    }
    let locks = sys::get::<u32>(fd, BUF_LOCK)?.0;
    sys::set(fd, RCVBUFFORCE, bytes)?;
    sys::set(fd, BUF_LOCK, locks)
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
    fn a_buffer_grows_with_what_is_read_unless_it_may_not() {
        use std::{
            io::{Read, Write},
            net::{TcpListener, TcpStream},
            thread,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for grows in [true, false] {
            let mut to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut from = listener.accept().unwrap().0;
            set_receive_growth(&to, false).unwrap();
            set_receive_growth(&to, grows).unwrap();
            let before = receive_buffer(&to).unwrap();
            let sender = thread::spawn(move || from.write_all(&vec![0; 16 << 20]));
            let mut piece = vec![0; 1 << 20];
            while to.read(&mut piece).unwrap() > 0 {}
            sender.join().unwrap().unwrap();
            let after = receive_buffer(&to).unwrap();
            assert_eq!(after != before, grows, "{before}, then {after}");
            // What is asked for is another matter.
            fit_receive_buffer(&to, 2 * after).unwrap();
            assert!(receive_buffer(&to).unwrap() >= 2 * after);
        }
    }

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
