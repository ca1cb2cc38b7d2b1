//! Repair mode: `TCP_REPAIR` of Linux, in which a socket can be taken apart without its peer noticing.
//!
//! What the kernel does (Linux 6.18, `net/ipv4/tcp.c`), and what follows from it:
//! - Entering needs `CAP_NET_ADMIN` in the user namespace that owns the network namespace, and is refused on a listener:
//!   `EPERM` in both cases.
//! - Entering forces `SO_REUSEADDR`, and leaving clears it. A listener that is restarted on the port of an accepted
//!   connection could not be bound then; so [`Repair`] remembers the option and restores it.
//! - The socket goes on receiving and acknowledging in repair mode: nothing is frozen. What it must not acknowledge
//!   has to be kept from it by eBPF first.
//! - Closing in repair mode frees the socket at once: no FIN, no RST even if bytes are unread, no TIME-WAIT. Its port
//!   is free again, too; whoever still needs it must keep it from others by other means.
//! - A sequence number is read after its queue was selected, and can be set only before `connect`; the options of the
//!   handshake (`TCP_REPAIR_OPTIONS`) only after it: `EPERM` otherwise. `TCP_QUEUE_SEQ` of the receive queue is
//!   RCV.NXT: bytes that nobody has read yet lie before it.
//! - Entering selects no queue. Which one was selected when repair mode was left does not matter any more.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libc::c_int;

use crate::{
    options,
    sys::{self, Error, Opt, opt},
};

const REPAIR: Opt = opt!(IPPROTO_TCP, TCP_REPAIR);
const REPAIR_QUEUE: Opt = opt!(IPPROTO_TCP, TCP_REPAIR_QUEUE);
const QUEUE_SEQ: Opt = opt!(IPPROTO_TCP, TCP_QUEUE_SEQ);

// `<linux/tcp.h>`; not in libc.
const TCP_REPAIR_ON: c_int = 1;
const TCP_REPAIR_OFF_NO_WP: c_int = -1;

/// What a sequence number belongs to, and where bytes go that are written in repair mode (`TCP_REPAIR_QUEUE`).
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
pub(crate) enum Queue {
    None = 0,
    Receive = 1,
    Send = 2,
}

/// Whether this process may use repair mode on this kernel: tries it on a fresh socket.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `ENOPROTOOPT` where the kernel lacks it; or no socket could be made.
pub fn probe_repair() -> Result<(), Error> {
    enter(&sys::tcp_socket(libc::AF_INET)?)?.leave_silently()
}

/// Puts a socket into repair mode, until the returned guard is used up or dropped.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, or for a listener. The socket is unchanged then.
pub fn enter<Fd: AsFd + ?Sized>(fd: &Fd) -> Result<Repair<'_>, Error> {
    let fd = fd.as_fd();
    // Read first: in repair mode the kernel answers 2 ("forced").
    let reuse = options::reuse_address(fd)?;
    switch_on(fd)?;
    Ok(Repair {
        fd,
        reuse,
        left: false,
    })
}

/// Closes a socket without a segment on the wire: no FIN, no RST, no TIME-WAIT. The far end notices nothing.
///
/// What the socket had not sent, and what nobody had read, is lost. If the descriptor was duplicated, the socket stays,
/// in repair mode, until the last duplicate is closed.
///
/// # Errors
/// Repair mode was refused; nothing has happened to the connection, and the descriptor is in the error, because to
/// drop it would tell the peer. The closing itself cannot fail.
pub fn close_silently(fd: OwnedFd) -> Result<(), CloseError> {
    match switch_on(&fd) {
        Ok(()) => {
            // `close` frees the descriptor whatever it returns (`close(2)`).
            drop(fd);
            Ok(())
        }
        Err(source) => Err(CloseError { fd, source }),
    }
}

/// A socket could not be closed in silence, and is given back, open.
#[derive(Debug, thiserror::Error)]
#[error("the socket was left open: {source}")]
pub struct CloseError {
    /// The open socket. To drop it ends the connection with a FIN or RST.
    pub fd: OwnedFd,
    /// Why repair mode was refused.
    pub source: Error,
}

/// A socket in repair mode; proof that it is.
///
/// It must be left by [`Repair::leave_silently`], which reports errors. Dropped, it leaves in silence, too.
#[must_use = "dropping it leaves repair mode at once"]
pub struct Repair<'fd> {
    fd: BorrowedFd<'fd>,
    reuse: bool,
    left: bool,
}

impl Repair<'_> {
    /// The sequence number of the next byte to be written to the socket (the kernel's `write_seq`; SND.NXT when
    /// nothing waits unsent).
    ///
    /// # Errors
    /// None is known for a socket in repair mode.
    pub fn send_sequence(&self) -> Result<u32, Error> {
        self.sequence(Queue::Send)
    }

    /// The sequence number of the next byte expected from the peer (RCV.NXT). Bytes not yet read lie before it, and
    /// a received FIN counts.
    ///
    /// # Errors
    /// None is known for a socket in repair mode.
    pub fn receive_sequence(&self) -> Result<u32, Error> {
        self.sequence(Queue::Receive)
    }

    fn sequence(&self, queue: Queue) -> Result<u32, Error> {
        self.with_queue(queue, || Ok(sys::get::<u32>(self.fd, QUEUE_SEQ)?.0))
    }

    /// Does something while a queue is selected.
    pub(crate) fn with_queue<T>(
        &self,
        queue: Queue,
        what: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        select(self.fd, queue)?;
        let answer = what();
        // With a queue selected, `send` would write into that queue and `recv` be refused.
        select(self.fd, Queue::None)?;
        answer
    }

    /// The socket.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd
    }

    /// Leaves repair mode without a segment, and restores `SO_REUSEADDR`.
    ///
    /// # Errors
    /// `EPERM` if the privilege was given up meanwhile.
    pub fn leave_silently(mut self) -> Result<(), Error> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.left = true;
        switch_off(self.fd)?;
        options::set_reuse_address(self.fd, self.reuse)
    }
}

/// Chooses the sequence number of the SYN of a socket that is not connected yet (its ISS, RFC 9293 section 3.4.1); the first
/// byte has the next one. 0 leaves the choice to the kernel. (Linux `tcp_v4_connect`, `tcp_v6_connect`: a `write_seq` that is
/// set already stays.)
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, or if it is connected.
pub fn set_initial_sequence<Fd: AsFd + ?Sized>(fd: &Fd, iss: u32) -> Result<(), Error> {
    let repair = enter(fd)?;
    repair.with_queue(Queue::Send, || sys::set(repair.fd(), QUEUE_SEQ, iss))?;
    repair.leave_silently()
}

/// Enters repair mode, and forces `SO_REUSEADDR`.
pub(crate) fn switch_on(fd: impl AsFd) -> Result<(), Error> {
    sys::set(fd, REPAIR, TCP_REPAIR_ON)
}

/// Leaves repair mode without a segment, and clears `SO_REUSEADDR`.
pub(crate) fn switch_off(fd: impl AsFd) -> Result<(), Error> {
    sys::set(fd, REPAIR, TCP_REPAIR_OFF_NO_WP)
}

/// Sets the sequence number of the next byte of a queue, of a socket in repair mode that is not connected yet. Leaves
/// the queue selected.
pub(crate) fn set_sequence(fd: impl AsFd, queue: Queue, next: u32) -> Result<(), Error> {
    let fd = fd.as_fd();
    select(fd, queue)?;
    sys::set(fd, QUEUE_SEQ, next)
}

fn select(fd: impl AsFd, queue: Queue) -> Result<(), Error> {
    sys::set(fd, REPAIR_QUEUE, queue as c_int)
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        if !self.left {
            // Nobody is left to tell; a socket that stays in repair mode neither harms nor informs its peer.
            let _ = self.leave();
        }
    }
}

impl fmt::Debug for Repair<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repair")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}
