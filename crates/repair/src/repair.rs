//! Enters and leaves repair mode: `TCP_REPAIR` of Linux, in which a socket can be taken apart without its peer
//! noticing.
//!
//! The kernel behaves as follows (Linux 6.18, `net/ipv4/tcp.c`):
//! - Entering needs `CAP_NET_ADMIN` in the user namespace that owns the network namespace, and is refused on a
//!   listener: `EPERM` in both cases.
//! - Entering forces `SO_REUSEADDR`, and leaving clears it. A listener that is restarted on the port of an accepted
//!   connection could not be bound then, so [`Repair`] stores the option and restores it.
//! - The socket goes on receiving and acknowledging in repair mode: nothing is frozen. eBPF must first keep segments
//!   from the socket that it must not acknowledge.
//! - Closing in repair mode frees the socket at once: no FIN, no RST even if bytes are unread, no TIME-WAIT. Its port
//!   is free again, too; a process that still needs it must reserve it by other means.
//! - A sequence number is read after its queue was selected, and can be set only before `connect`; the options of the
//!   handshake (`TCP_REPAIR_OPTIONS`) only after it: `EPERM` otherwise. `TCP_QUEUE_SEQ` of the receive queue is
//!   RCV.NXT: unread bytes lie before it.
//! - Entering selects no queue. A queue that was selected when repair mode was left has no effect any more.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libc::c_int;
use longsplice_core::seq::Seq;
use socket2::Domain;

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

/// Queue to which a sequence number belongs, and into which bytes go that are written in repair mode
/// (`TCP_REPAIR_QUEUE`).
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
pub(crate) enum Queue {
    None = 0,
    Receive = 1,
    Send = 2,
}

/// Checks that this process may use repair mode on this kernel: tries it on a fresh socket.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `ENOPROTOOPT` if the kernel lacks repair mode; or no socket could be made.
pub fn probe_repair() -> Result<(), Error> {
    enter(&sys::tcp_socket(Domain::IPV4)?)?.leave_silently()
}

/// Puts a socket into repair mode, until the returned guard is used up or dropped.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, or for a listener. The socket is unchanged then.
pub fn enter<Fd: AsFd + ?Sized>(fd: &Fd) -> Result<Repair<'_>, Error> {
    let fd = fd.as_fd();
    // Read the option first: in repair mode the kernel answers 2 ("forced").
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
/// Unsent and unread bytes are lost. If the descriptor was duplicated, the socket stays, in repair mode, until the last
/// duplicate is closed.
///
/// # Errors
/// Repair mode was refused. The connection is unchanged, and the error holds the descriptor, because to drop it would
/// tell the peer. The closing itself cannot fail.
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

/// Error of [`close_silently`], which gives the open socket back.
#[derive(Debug, thiserror::Error)]
#[error("the socket was left open: {source}")]
pub struct CloseError {
    /// The open socket. To drop it ends the connection with a FIN or RST.
    pub fd: OwnedFd,
    /// Error that refused repair mode.
    pub source: Error,
}

/// Socket in repair mode, and proof that it is.
///
/// Leave repair mode by [`Repair::leave_silently`], which reports errors. A dropped guard leaves it without a segment,
/// too.
#[must_use = "dropping it leaves repair mode at once"]
pub struct Repair<'fd> {
    fd: BorrowedFd<'fd>,
    reuse: bool,
    left: bool,
}

impl Repair<'_> {
    /// Returns the sequence number of the next byte to be written to the socket (the kernel's `write_seq`; SND.NXT if
    /// no byte waits unsent).
    ///
    /// # Errors
    /// None is known for a socket in repair mode.
    pub fn send_sequence(&self) -> Result<Seq, Error> {
        self.sequence(Queue::Send)
    }

    /// Returns the sequence number of the next byte expected from the peer (RCV.NXT). Unread bytes lie before it, and a
    /// received FIN counts.
    ///
    /// # Errors
    /// None is known for a socket in repair mode.
    pub fn receive_sequence(&self) -> Result<Seq, Error> {
        self.sequence(Queue::Receive)
    }

    fn sequence(&self, queue: Queue) -> Result<Seq, Error> {
        self.with_queue(queue, || Ok(Seq::new(sys::get::<u32>(self.fd, QUEUE_SEQ)?.0)))
    }

    /// Runs a function while a queue is selected.
    pub(crate) fn with_queue<T>(
        &self,
        queue: Queue,
        what: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        select(self.fd, queue)?;
        let answer = what();
        // Deselect the queue: otherwise `send` would write into that queue and `recv` be refused.
        select(self.fd, Queue::None)?;
        answer
    }

    /// Returns the socket.
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

/// Chooses the sequence number of the SYN of a socket that is not connected yet (its ISS, RFC 9293 section 3.4.1); the
/// first byte has the next one. 0 leaves the choice to the kernel. (Linux `tcp_v4_connect`, `tcp_v6_connect`: a
/// `write_seq` that is set already stays.)
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, or if it is connected.
pub fn set_initial_sequence<Fd: AsFd + ?Sized>(fd: &Fd, iss: Seq) -> Result<(), Error> {
    let repair = enter(fd)?;
    repair.with_queue(Queue::Send, || sys::set(repair.fd(), QUEUE_SEQ, iss.raw()))?;
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
pub(crate) fn set_sequence(fd: impl AsFd, queue: Queue, next: Seq) -> Result<(), Error> {
    let fd = fd.as_fd();
    select(fd, queue)?;
    sys::set(fd, QUEUE_SEQ, next.raw())
}

/// Selects the queue of the next requests, of a socket in repair mode.
pub(crate) fn select(fd: impl AsFd, queue: Queue) -> Result<(), Error> {
    sys::set(fd, REPAIR_QUEUE, queue as c_int)
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        if !self.left {
            // Ignore the error: drop cannot report it, and a socket that stays in repair mode sends its peer nothing.
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
