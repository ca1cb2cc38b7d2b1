//! Sets the receive window that was promised to the peer, and the buffers that have to take it, or what is outstanding.
//!
//! The kernel keeps them apart (Linux 6.18, `net/ipv4/tcp_input.c`). The *promise* is the right edge of the window: the
//! socket drops bytes beyond it, and the edge never goes back. The *buffer* bounds the memory, and with it the next
//! promise. A socket by itself never promises more than its buffer takes; but here another end promises for it, while
//! it is absent or parked. As a rule the socket still accepts bytes that exceed the buffer, because the kernel enlarges
//! the buffer segment by segment. But the socket acknowledges late, keeps the next windows small (117 kB after 3 MB,
//! where 4.6 MB would have been offered), and drops bytes that exceed the system's largest buffer
//! (`net.ipv4.tcp_rmem`): the sender retransmits those after a timeout.

use std::os::fd::{AsFd, BorrowedFd};

use libc::c_int;
use longsplice_core::seq::Seq;

use crate::{
    options::{RCVBUF_FORCE, receive_buffer, send_buffer},
    queues::unacknowledged,
    repair::{Repair, enter},
    sys::{self, Error, Opt, RepairWindow, opt},
};

const REPAIR_WINDOW: Opt = opt!(IPPROTO_TCP, TCP_REPAIR_WINDOW = 29);
const RCVLOWAT: Opt = opt!(SOL_SOCKET, SO_RCVLOWAT);
const SNDBUF_FORCE: Opt = opt!(SOL_SOCKET, SO_SNDBUFFORCE);
const BUF_LOCK: Opt = opt!(SOL_SOCKET, SO_BUF_LOCK);
/// Value of `uapi/linux/socket.h`.
const SOCK_RCVBUF_LOCK: u32 = 2;

/// Makes a connected socket accept at least `bytes` (0 to 2^30) beyond RCV.NXT. Never takes an earlier promise back.
/// Sends nothing: the peer learns of it with the next segment, or has been told already.
///
/// The buffer is set separately, by [`fit_receive_buffer`].
///
/// The socket should be idle: the call undoes the window update of an ACK that arrives meanwhile, until the peer's next
/// segment.
///
/// # Errors
/// Those of [`enter`].
pub fn set_receive_window<Fd: AsFd + ?Sized>(fd: &Fd, bytes: u32) -> Result<(), Error> {
    let repair = enter(fd)?;
    let next = repair.receive_sequence()?;
    let window = get(&repair)?;
    if promised(&window, next) < bytes {
        set(
            repair.fd(),
            RepairWindow {
                rcv_wnd: bytes,
                rcv_wup: next.raw(),
                ..window
            },
        )?;
    }
    repair.leave_silently()
}

/// Raises the receive buffer so that a window of `bytes` fits, unless it is large enough. Returns how many bytes fit,
/// up to `bytes`. Unlike `SO_RCVBUF` it leaves the automatic growth on, and is not bounded by `net.core.rmem_max`.
///
/// The cap is half of the largest buffer, the third number of `net.ipv4.tcp_rmem`; for a socket whose buffer was fixed
/// by `SO_RCVBUF`, half of that buffer, which stays as it is. The kernel assumes segments that fill half of
/// their memory, and later uses the ratio of received ones; smaller segments take more memory. No memory is taken
/// before data comes.
///
/// The kernel makes room for `SO_RCVLOWAT` bytes (`tcp_set_rcvlowat`), and raises the clamp of the window
/// (`TCP_WINDOW_CLAMP`) with it. `SO_RCVLOWAT` is 1, its default, afterwards.
///
/// # Errors
/// None is known for a TCP socket.
pub fn grow_receive_buffer(fd: impl AsFd, bytes: u32) -> Result<u32, Error> {
    let fd = fd.as_fd();
    raise(fd, bytes)?;
    let fits = sys::get::<u32>(fd, RCVLOWAT);
    // Restore this also on error, or a reader would not be woken for shorter data.
    sys::set(fd, RCVLOWAT, 1)?;
    Ok(fits?.0)
}

/// Switches the automatic growth of the receive buffer, and with it of the window, with the bytes that are read
/// (`SO_BUF_LOCK`, Linux 5.14). It is on at first. The buffer of a fresh connection is the middle number of
/// `net.ipv4.tcp_rmem`; the window is half of it, and later nearly all if segments fill their memory.
/// [`fit_receive_buffer`] enlarges a buffer that does not grow, too.
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

/// Makes the receive buffer take a window of `bytes` (0 to 2^30) that was promised already, even beyond the cap of
/// [`grow_receive_buffer`], the system's limit or a fixed size. Automatic growth stays on or off, as it was. The buffer
/// stays as large: the socket's next offers depend on it.
///
/// Uses `SO_RCVBUFFORCE` if the cap is too small; it fixes the buffer, and `SO_BUF_LOCK` (Linux 5.14) takes that back.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, where the cap is too small.
pub fn fit_receive_buffer(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    let fd = fd.as_fd();
    // The kernel counts twice the payload.
    let enough = bytes.saturating_mul(2);
    if grow_receive_buffer(fd, bytes)? >= bytes || receive_buffer(fd)? >= enough {
        return Ok(());
    }
    force(fd, RCVBUF_FORCE, bytes)
}

/// Makes the send buffer take `bytes` (0 to 2^28) more, even beyond `net.core.wmem_max`. Automatic growth stays on or off,
/// as it was.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`.
pub fn fit_send_buffer(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    let fd = fd.as_fd();
    // The kernel counts twice the payload; small segments take more.
    let enough = bytes
        .saturating_add(unacknowledged(fd)?)
        .saturating_mul(4)
        .min(i32::MAX as u32);
    if send_buffer(fd)? >= enough {
        return Ok(());
    }
    force(fd, SNDBUF_FORCE, enough / 2)
}

/// Sets a buffer beyond the system's limit; the kernel doubles the number. Undoes that this fixes its size.
fn force(fd: BorrowedFd<'_>, buffer: Opt, bytes: u32) -> Result<(), Error> {
    let locks = sys::get::<u32>(fd, BUF_LOCK)?.0;
    sys::set(fd, buffer, bytes)?;
    sys::set(fd, BUF_LOCK, locks)
}

fn raise(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    sys::set(fd, RCVLOWAT, c_int::try_from(bytes).unwrap_or(c_int::MAX))
}

/// Reads the windows of both ends.
pub(crate) fn get(repair: &Repair<'_>) -> Result<RepairWindow, Error> {
    Ok(sys::get::<RepairWindow>(repair.fd(), REPAIR_WINDOW)?.0)
}

/// Sets the windows of both ends, of a socket in repair mode.
pub(crate) fn set(fd: impl AsFd, window: RepairWindow) -> Result<(), Error> {
    sys::set(fd, REPAIR_WINDOW, window)
}

/// Returns how many bytes beyond `next`, which is RCV.NXT, were promised: 0 if the promise is used up.
pub(crate) fn promised(window: &RepairWindow, next: Seq) -> u32 {
    (Seq::new(window.rcv_wup) + window.rcv_wnd).bytes_since(next)
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
            // A requested size does not depend on the growth.
            fit_receive_buffer(&to, 2 * after).unwrap();
            assert!(receive_buffer(&to).unwrap() >= 2 * after);
        }
    }

    #[test]
    fn the_window_follows_a_forced_buffer() {
        use std::{
            io::{Read, Write},
            net::{TcpListener, TcpStream},
            thread,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut from = listener.accept().unwrap().0;
        // A window that is smaller than a segment may be filled by the persist timer only, each 0.2 s: let few of them be.
        let (few, many): (usize, usize) = (1 << 20, 16 << 20);
        let sender = thread::spawn(move || from.write_all(&vec![0; few + many]));
        let mut offered = |buffer, mut left: usize| {
            crate::options::force_receive_buffer(&to, buffer).unwrap();
            let mut piece = vec![0; 1 << 20];
            while left > 0 {
                let most = left.min(piece.len());
                left -= to.read(&mut piece[..most]).unwrap();
            }
            crate::tcp_info(&to).unwrap().rcv_wnd().unwrap_or(u32::MAX)
        };
        let (small, large) = (offered(32 << 10, few), offered(4 << 20, many));
        sender.join().unwrap().unwrap();
        assert!(small <= 64 << 10 || small == u32::MAX, "{small}");
        assert!(large > 1 << 20, "{small}, then {large}");
    }

    #[test]
    fn what_was_received_since_is_no_longer_promised() {
        let window = RepairWindow {
            rcv_wnd: 1000,
            rcv_wup: u32::MAX - 99,
            ..RepairWindow::default()
        };
        for (next, left) in [(u32::MAX - 99, 1000), (0, 900), (900, 0), (901, 0)] {
            assert_eq!(promised(&window, Seq::new(next)), left, "RCV.NXT {next}");
        }
    }
}
