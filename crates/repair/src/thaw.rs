//! Builds a socket from an image: a spliced flow without sockets gets them back this way.

use std::os::fd::{AsFd, OwnedFd};

use libc::c_int;
use socket2::{SockAddr, SockRef};

use crate::{
    address::canonical,
    image::{Image, ImageOptions},
    options,
    repair::{self, Queue, close_silently},
    sys::{self, Error, Opt, RepairWindow, opt},
    window,
};

const REPAIR_OPTIONS: Opt = opt!(IPPROTO_TCP, TCP_REPAIR_OPTIONS);
const ONLY_V6: Opt = opt!(IPPROTO_IPV6, IPV6_V6ONLY);
const TIMESTAMP: Opt = opt!(IPPROTO_TCP, TCP_TIMESTAMP);

/// Builds the socket of an image, without a segment on the wire: ESTABLISHED, non-blocking, close-on-exec, out of
/// repair mode, with `SO_REUSEADDR`, so that a listener can be restarted on its port. A listener that is bound already,
/// and other connections of the port, are no obstacle.
///
/// The receive buffer takes the promised window ([`fit_receive_buffer`](crate::window::fit_receive_buffer)).
///
/// While this runs, and until it has returned, segments of the connection must be kept from the host: before the socket
/// exists, the kernel would answer them with a reset, and then for a moment the socket would process them without the
/// options of the handshake. Afterwards the socket drops segments whose acknowledgement is below [`Image::send_next`],
/// and sends a TSecr of 0 until a segment has arrived in order. It begins like a new connection: with a congestion
/// window of 10 segments and, until a round-trip time was measured, a retransmission timeout of 3 s (0.2 s and more if
/// `ip tcp_metrics` knows the peer).
///
/// # Errors
/// On error nothing has been sent, and no socket remains. `EPERM` without `CAP_NET_ADMIN`; `EACCES` from `bind` for a
/// port below `net.ipv4.ip_unprivileged_port_start` without `CAP_NET_BIND_SERVICE`; `EADDRNOTAVAIL` from `connect` if
/// the connection has a socket; `EINVAL` or `EAFNOSUPPORT` from `connect` for addresses of two families, and `EINVAL`
/// for a link-local one without its scope; `ENETUNREACH` without a route; `EFBIG` for a scale above 14; `EINVAL` if
/// [`Window::largest`](crate::Window::largest) is less than the offered window, or
/// [`Window::send_wl1`](crate::Window::send_wl1) lies beyond our window; or no socket could be made.
pub fn thaw(image: &Image) -> Result<OwnedFd, Error> {
    thaw_with(image, false, false)
}

/// Builds the socket of an image like [`thaw`], between two other hosts: its local address need not be this host's. With
/// `has_syn`, its peer was sent our SYN just now. To the socket that SYN is a byte which has no acknowledgement yet. So it
/// measures the round-trip time by the echo of its timestamp, as a socket does that has sent the SYN itself; without timestamps
/// it measures nothing (Karn: the kernel takes bytes of repair mode for retransmitted ones). Until the acknowledgement has come,
/// the socket may send a byte of 0 with the number of the SYN, which a peer that has the SYN answers as a duplicate, and another
/// one ignores.
///
/// # Errors
/// Those of [`thaw`].
pub fn thaw_transparent(image: &Image, has_syn: bool) -> Result<OwnedFd, Error> {
    thaw_with(image, true, has_syn)
}

fn thaw_with(image: &Image, is_transparent: bool, has_syn: bool) -> Result<OwnedFd, Error> {
    let [local, peer] = [image.local, image.peer].map(|address| SockAddr::from(canonical(address)));
    let fd = sys::tcp_socket(local.domain())?;
    let prepared = if is_transparent {
        options::set_transparent(&fd, true)
    } else {
        Ok(())
    };
    match prepared.and_then(|()| build(&fd, image, has_syn, &local, &peer)) {
        Ok(()) => Ok(fd),
        Err(e) => {
            // Ignore this error: the socket was never connected then, and dropping it is silent, too.
            let _ = close_silently(fd);
            Err(e)
        }
    }
}

fn build(fd: &OwnedFd, image: &Image, has_syn: bool, local: &SockAddr, peer: &SockAddr) -> Result<(), Error> {
    repair::switch_on(fd)?;
    if local.is_ipv6() {
        // Make it an IPv6-only socket, independently of `net.ipv6.bindv6only`.
        sys::set(fd, ONLY_V6, c_int::from(true))?;
    }
    bind(fd, local)?;
    repair::set_sequence(fd, Queue::Receive, image.receive_next)?;
    repair::set_sequence(fd, Queue::Send, image.send_next - u32::from(has_syn))?;
    // `TCP_REPAIR_OPTIONS` sets the peer's MSS, but not the size of sent segments. The kernel computes that size in
    // `connect`, from the default of 536, and again when the peer offers a larger window than ever before, which may
    // never happen. The bounds are those of the option.
    options::set_max_segment(fd, u32::from(image.options.mss).clamp(88, 32_767))?;
    connect(fd, peer)?;
    set_options(fd, &image.options)?;
    if image.options.timestamps {
        // The clock must not be lower than any earlier TSval, or the peer drops our segments (RFC 7323 section 5). Bit
        // 0 would mean a clock in microseconds.
        sys::set(fd, TIMESTAMP, first_clock(image.timestamp_clock))?;
    }
    // Fit the buffer after `connect`, which would clamp the window to a segment less than the buffer takes. A new socket takes a
    // payload of half its buffer.
    if options::receive_buffer(fd)? / 2 < image.window.receive {
        window::fit_receive_buffer(fd, image.window.receive)?;
    }
    window::set(
        fd,
        RepairWindow {
            snd_wl1: image.window.send_wl1.raw(),
            snd_wnd: image.window.send,
            max_window: image.window.largest,
            rcv_wnd: image.window.receive,
            rcv_wup: image.receive_next.raw(),
        },
    )?;
    if has_syn {
        // It goes into the queue that was selected last.
        sys::send(fd.as_fd(), &[0])?;
    }
    repair::switch_off(fd)?;
    options::set_reuse_address(fd, true)
}

/// Returns the value at which the timestamp clock of a built socket begins, for the [`Image::timestamp_clock`].
pub fn first_clock(timestamp_clock: u32) -> u32 {
    timestamp_clock.wrapping_add(2) & !1
}

/// Binds the socket to an address of this host or of an intercepted connection.
fn bind(fd: &OwnedFd, local: &SockAddr) -> Result<(), Error> {
    let bind = || SockRef::from(fd).bind(local).map_err(|e| Error::new("bind", e));
    match bind() {
        Err(e) if e.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
            options::set_transparent(fd, true)?;
            bind()
        }
        done => done,
    }
}

/// Connects the socket. Where `ip_nonlocal_bind` allows it to be bound to any address, this finds out which are foreign:
/// they have routes only with the option.
fn connect(fd: &OwnedFd, peer: &SockAddr) -> Result<(), Error> {
    let connect = || {
        SockRef::from(fd)
            .connect(peer)
            .map_err(|e| Error::new("connect", e))
    };
    match connect() {
        Err(e)
            if e.raw_os_error() == Some(libc::ENETUNREACH) && options::set_transparent(fd, true).is_ok() =>
        {
            connect()
        }
        done => done,
    }
}

/// Sets the options of the handshake, by pairs of `struct tcp_repair_opt`.
fn set_options(fd: impl AsFd, options: &ImageOptions) -> Result<(), Error> {
    // The numbers of the options (RFC 9293 section 3.2, RFC 7323, RFC 2018).
    const MSS: u32 = 2;
    const WINDOW_SCALE: u32 = 3;
    const SACK_PERMITTED: u32 = 4;
    const TIMESTAMPS: u32 = 8;

    let scales = u32::from(options.send_scale) | u32::from(options.receive_scale) << 16;
    let list = [
        Some((MSS, u32::from(options.mss))),
        // Set the scales even if both are 0: `connect` has chosen a scale for our windows, which would stay.
        Some((WINDOW_SCALE, scales)),
        options.sack.then_some((SACK_PERMITTED, 0)),
        options.timestamps.then_some((TIMESTAMPS, 0)),
    ];
    let bytes: Vec<u8> = list
        .into_iter()
        .flatten()
        .flat_map(|(code, value)| [code.to_ne_bytes(), value.to_ne_bytes()])
        .flatten()
        .collect();
    sys::set_bytes(fd, REPAIR_OPTIONS, &bytes)
}
