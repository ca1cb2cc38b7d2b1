//! Wraps the system calls, with all unsafe code of this crate, in functions that are safe to call.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    slice,
    sync::atomic::{AtomicBool, Ordering},
};

use libc::{c_int, c_void, socklen_t};
use socket2::{Domain, Protocol, Socket, Type};

/// Failed system call: its name, and the system's error.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}")]
pub struct Error {
    call: &'static str,
    source: io::Error,
}

impl Error {
    pub(crate) fn new(call: &'static str, source: io::Error) -> Self {
        Error { call, source }
    }

    fn last(call: &'static str) -> Self {
        Error::new(call, io::Error::last_os_error())
    }

    /// Returns the call that failed, such as `setsockopt(TCP_REPAIR)`.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// Returns the kind of the system's error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// Returns the system's error number, such as `EPERM`.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl From<Error> for io::Error {
    /// Keeps the kind and the text; the error number stays reachable in the inner [`Error`].
    fn from(e: Error) -> Self {
        io::Error::new(e.kind(), e)
    }
}

/// Largest number of descriptors that [`take_inherited`] looks at: far more than a process is passed.
const MOST_INHERITED: usize = 1 << 16;

/// Takes `count` descriptors from the third on, up to 65,536, which the process that started this one has passed; `None` for
/// each that it has not. Returns an empty list at the second call.
pub(crate) fn take_inherited(count: usize) -> Vec<Option<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let first: c_int = 3;
    let take = |fd: c_int| {
        // SAFETY: F_GETFD reads the flags of a descriptor, if it is open.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        // A descriptor that this process has opened has the flag, and one that was passed has lost it before.
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            return None;
        }
        // SAFETY: F_SETFD changes the flags of a descriptor, if it is open.
        unsafe { libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC) };
        // SAFETY: it is open, and came with the process: Rust's libraries open all of theirs with the flag above. That is set
        // by now, and each number is looked at once, so it is taken once.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    (first..).take(count.min(MOST_INHERITED)).map(take).collect()
}

/// Socket option: its level, its number, and the names of a failure to get or set it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opt {
    level: c_int,
    name: c_int,
    /// Name of a failure to read it.
    pub(crate) get: &'static str,
    set: &'static str,
}

impl Opt {
    pub(crate) const fn new(level: c_int, name: c_int, get: &'static str, set: &'static str) -> Self {
        Opt {
            level,
            name,
            get,
            set,
        }
    }
}

/// Makes an [`Opt`] that knows its own name: `opt!(IPPROTO_TCP, NAME)` or `opt!(IPPROTO_TCP, NAME = number)`.
macro_rules! opt {
    ($level:ident, $name:ident) => {
        $crate::sys::opt!($level, $name = libc::$name)
    };
    ($level:ident, $name:ident = $number:expr) => {
        $crate::sys::Opt::new(
            libc::$level,
            $number,
            concat!("getsockopt(", stringify!($name), ")"),
            concat!("setsockopt(", stringify!($name), ")"),
        )
    };
}
pub(crate) use opt;

/// Types that the kernel may fill with any bytes, and may read as bytes.
///
/// # Safety
/// The type has no padding, no pointers and no invalid bit patterns.
pub(crate) unsafe trait Plain: Copy + Default {}

// SAFETY: a primitive integer.
unsafe impl Plain for c_int {}
// SAFETY: a primitive integer.
unsafe impl Plain for u32 {}
// SAFETY: an array of bytes.
unsafe impl<const N: usize> Plain for [u8; N] where [u8; N]: Default {}
// SAFETY: `repr(C)`, two primitive integers of the same size.
unsafe impl Plain for Linger {}
// SAFETY: `repr(C)`, five primitive integers of the same size.
unsafe impl Plain for RepairWindow {}

/// `struct linger` of `<sys/socket.h>`; libc's own has no `Default`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Linger {
    pub(crate) onoff: c_int,
    pub(crate) seconds: c_int,
}

/// `struct tcp_repair_window` of `<linux/tcp.h>`; not in libc.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RepairWindow {
    /// Sequence number of the segment that last set `snd_wnd` (SND.WL1).
    pub(crate) snd_wl1: u32,
    /// Window that the peer offers, in bytes beyond SND.UNA.
    pub(crate) snd_wnd: u32,
    /// Largest window that the peer ever offered.
    pub(crate) max_window: u32,
    /// Window that we offered last, in bytes beyond `rcv_wup`.
    pub(crate) rcv_wnd: u32,
    /// RCV.NXT at the time of that offer.
    pub(crate) rcv_wup: u32,
}

/// Reads an option. Returns it with the number of its bytes that the kernel wrote; the others are zero.
pub(crate) fn get<T: Plain>(fd: impl AsFd, opt: Opt) -> Result<(T, usize), Error> {
    let mut value = T::default();
    let mut len = mem::size_of::<T>() as socklen_t;
    // SAFETY: `value` is a writable, exclusively borrowed place of `len` bytes, and any bytes are a valid `T`
    // (`Plain`); the kernel writes at most `len` bytes, and lowers `len` to what it wrote.
    let r = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            opt.level,
            opt.name,
            (&raw mut value).cast::<c_void>(),
            &raw mut len,
        )
    };
    if r < 0 {
        Err(Error::last(opt.get))
    } else {
        Ok((value, (len as usize).min(mem::size_of::<T>())))
    }
}

/// Sets an option.
pub(crate) fn set<T: Plain>(fd: impl AsFd, opt: Opt, value: T) -> Result<(), Error> {
    // SAFETY: `value` lives to the end of this function, is `size_of::<T>()` bytes long, and has no padding, so that
    // each of them is initialized (`Plain`).
    let bytes = unsafe { slice::from_raw_parts((&raw const value).cast::<u8>(), mem::size_of::<T>()) };
    set_bytes(fd, opt, bytes)
}

/// Sets an option whose value is a string of bytes.
pub(crate) fn set_bytes(fd: impl AsFd, opt: Opt, value: &[u8]) -> Result<(), Error> {
    // SAFETY: `value` is borrowed for the whole call; the kernel copies it and keeps no pointer.
    let r = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            opt.level,
            opt.name,
            value.as_ptr().cast::<c_void>(),
            value.len() as socklen_t,
        )
    };
    if r < 0 { Err(Error::last(opt.set)) } else { Ok(()) }
}

/// Makes a new TCP socket, neither bound nor connected, close-on-exec and non-blocking.
pub(crate) fn tcp_socket(domain: Domain) -> Result<OwnedFd, Error> {
    Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))
        .map(OwnedFd::from)
        .map_err(|e| Error::new("socket(SOCK_STREAM)", e))
}

/// Writes to a socket as many bytes as it takes at once, and returns their number. Never raises a signal.
pub(crate) fn send(fd: impl AsFd, bytes: &[u8]) -> Result<usize, Error> {
    // SAFETY: `bytes` is borrowed for the whole call; the kernel copies it and keeps no pointer.
    let n = unsafe {
        libc::send(
            fd.as_fd().as_raw_fd(),
            bytes.as_ptr().cast::<c_void>(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    // Only a negative number does not fit.
    usize::try_from(n).map_err(|_| Error::last("send"))
}

/// Calls an `ioctl` that answers with one integer.
pub(crate) fn ioctl_int(fd: impl AsFd, request: libc::Ioctl, call: &'static str) -> Result<c_int, Error> {
    let mut value: c_int = 0;
    // SAFETY: the callers pass requests (`SIOCINQ` and its like) that write one `int` through the pointer, which is to
    // a place of that type.
    let r = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut value) };
    if r < 0 { Err(Error::last(call)) } else { Ok(value) }
}
