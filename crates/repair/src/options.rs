//! Reads and sets socket options, with one function for each. None needs a privilege, unless it says so.

use std::os::fd::AsFd;

use libc::c_int;

use crate::sys::{self, Error, Linger, Opt, opt};

/// `TCP_CA_NAME_MAX` of the kernel, with the terminating zero.
const NAME_MAX: usize = 16;

const TIMESTAMP: Opt = opt!(IPPROTO_TCP, TCP_TIMESTAMP);
const MAXSEG: Opt = opt!(IPPROTO_TCP, TCP_MAXSEG);
const NOTSENT_LOWAT: Opt = opt!(IPPROTO_TCP, TCP_NOTSENT_LOWAT);
const CONGESTION: Opt = opt!(IPPROTO_TCP, TCP_CONGESTION);
const CC_INFO: Opt = opt!(IPPROTO_TCP, TCP_CC_INFO);
const MTU_V4: Opt = opt!(IPPROTO_IP, IP_MTU);
const MTU_V6: Opt = opt!(IPPROTO_IPV6, IPV6_MTU);
const TOS: Opt = opt!(IPPROTO_IP, IP_TOS);
const TRAFFIC_CLASS: Opt = opt!(IPPROTO_IPV6, IPV6_TCLASS);
const DOMAIN: Opt = opt!(SOL_SOCKET, SO_DOMAIN);
const NODELAY: Opt = opt!(IPPROTO_TCP, TCP_NODELAY);
const LINGER: Opt = opt!(SOL_SOCKET, SO_LINGER);
const KEEPALIVE: Opt = opt!(SOL_SOCKET, SO_KEEPALIVE);
const RCVBUF: Opt = opt!(SOL_SOCKET, SO_RCVBUF);
const MEMINFO: Opt = opt!(SOL_SOCKET, SO_MEMINFO);
pub(crate) const RCVBUF_FORCE: Opt = opt!(SOL_SOCKET, SO_RCVBUFFORCE);
const WINDOW_CLAMP: Opt = opt!(IPPROTO_TCP, TCP_WINDOW_CLAMP);
const MAX_PACING_RATE: Opt = opt!(SOL_SOCKET, SO_MAX_PACING_RATE);
const SNDBUF: Opt = opt!(SOL_SOCKET, SO_SNDBUF);
const TRANSPARENT: Opt = opt!(IPPROTO_IP, IP_TRANSPARENT);
const REUSEADDR: Opt = opt!(SOL_SOCKET, SO_REUSEADDR);

/// Returns the present value of the socket's timestamp clock: the TSval of a segment sent at this moment, wrapping (RFC
/// 7323). Works without repair mode.
///
/// Bit 0 is not part of the value: since Linux 6.7 it is set if the clock counts microseconds, and clear if it counts
/// milliseconds. So the answer may be one less, or one more, than the TSval of a segment sent now.
pub fn timestamp_clock(fd: impl AsFd) -> Result<u32, Error> {
    Ok(sys::get::<u32>(fd, TIMESTAMP)?.0)
}

/// Returns an upper bound of the TSvals that the socket has sent by now: up to one more than the last one, because of
/// bit 0 of [`timestamp_clock`].
pub fn latest_timestamp(fd: impl AsFd) -> Result<u32, Error> {
    // With bit 0 clear, the true value is this or one more; with it set, this or one less.
    Ok(timestamp_clock(fd)? | 1)
}

/// Returns the MSS now used for sending, in payload bytes without options; in repair mode, the MSS that the far end
/// announced.
pub fn max_segment(fd: impl AsFd) -> Result<u32, Error> {
    Ok(sys::get::<u32>(fd, MAXSEG)?.0)
}

/// Bounds the MSS that this socket announces and uses, 88 to 32,767 bytes. It acts on the handshake: set it before
/// `connect`, or on the listener.
///
/// # Errors
/// `EINVAL` outside of that range.
pub fn set_max_segment(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    sys::set(fd, MAXSEG, bytes)
}

/// Lifts the bound of [`set_max_segment`].
pub fn lift_max_segment(fd: impl AsFd) -> Result<(), Error> {
    sys::set(fd, MAXSEG, 0_u32)
}

/// Sets the bound below which the socket counts as writable: only while fewer than `bytes` wait to be sent for the
/// first time. This keeps a relay's send queue short. `u32::MAX` lifts the bound.
pub fn set_notsent_lowat(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    sys::set(fd, NOTSENT_LOWAT, bytes)
}

/// Returns the name of the congestion control, such as `cubic`.
pub fn congestion_control(fd: impl AsFd) -> Result<String, Error> {
    let (bytes, len) = sys::get::<[u8; NAME_MAX]>(fd, CONGESTION)?;
    let name = bytes[..len].split(|&b| b == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Returns the MTU of the route to the peer of a connected socket, in bytes (`IP_MTU`, `IPV6_MTU`).
///
/// # Errors
/// `ENOTCONN` for a socket that has no route yet.
pub fn path_mtu(fd: impl AsFd) -> Result<u32, Error> {
    let fd = fd.as_fd();
    Ok(sys::get::<u32>(fd, of_family(fd, MTU_V4, MTU_V6)?)?.0)
}

/// Sets the traffic class of what the socket sends: the DSCP in the upper six bits (RFC 2474). The kernel ignores the lower two, which
/// are ECN's, for TCP.
pub fn set_traffic_class(fd: impl AsFd, class: u8) -> Result<(), Error> {
    let fd = fd.as_fd();
    sys::set(fd, of_family(fd, TOS, TRAFFIC_CLASS)?, c_int::from(class))
}

/// Returns the option for the family of a socket.
fn of_family(fd: impl AsFd, v4: Opt, v6: Opt) -> Result<Opt, Error> {
    Ok(match sys::get::<c_int>(fd, DOMAIN)?.0 {
        libc::AF_INET6 => v6,
        _ => v4,
    })
}

/// Length of `struct tcp_bbr_info` (linux/inet_diag.h), which no other congestion control has.
const BBR_INFO: usize = 20;
/// Place of the bandwidth in it: eight bytes, zero before the first sample.
const BANDWIDTH: std::ops::Range<usize> = 0..8;
/// Place of the pacing gain in it, and the number of its steps in 1.
const PACING_GAIN: std::ops::Range<usize> = 12..16;
const GAIN_UNIT: u32 = 256;

/// Returns true if the socket's congestion control is BBR in its startup: it paces more than twice as fast as the path has
/// delivered so far, or has not yet measured that. False for every other one.
pub fn is_in_bbr_startup(fd: impl AsFd) -> Result<bool, Error> {
    let (bytes, len) = sys::get::<[u8; BBR_INFO]>(fd, CC_INFO)?;
    let is_measured = bytes[BANDWIDTH].iter().any(|byte| *byte != 0);
    let gain = u32::from_ne_bytes(bytes[PACING_GAIN].try_into().unwrap_or_default());
    Ok(len == BBR_INFO && (!is_measured || gain > 2 * GAIN_UNIT))
}

/// Chooses the congestion control by name.
///
/// # Errors
/// `ENOENT` if the kernel has none of this name; `EPERM` without `CAP_NET_ADMIN` if it is not one of
/// `net.ipv4.tcp_allowed_congestion_control`.
pub fn set_congestion_control(fd: impl AsFd, name: &str) -> Result<(), Error> {
    sys::set_bytes(fd, CONGESTION, name.as_bytes())
}

/// Sets whether closing the socket resets the connection and drops unsent bytes (`SO_LINGER` with zero seconds), or
/// ends it in order, in the background (`SO_LINGER` off, the default).
pub fn set_reset_on_close(fd: impl AsFd, reset: bool) -> Result<(), Error> {
    sys::set(
        fd,
        LINGER,
        Linger {
            onoff: reset.into(),
            seconds: 0,
        },
    )
}

/// Sets whether small segments are sent at once (`TCP_NODELAY`).
pub fn set_nodelay(fd: impl AsFd, on: bool) -> Result<(), Error> {
    set_bool(fd, NODELAY, on)
}

/// Sets whether the socket probes an idle peer (`SO_KEEPALIVE`). Off for a dormant socket: its probes are not the
/// flow's.
pub fn set_keepalive(fd: impl AsFd, on: bool) -> Result<(), Error> {
    set_bool(fd, KEEPALIVE, on)
}

/// Returns whether the socket probes an idle peer.
pub fn keepalive(fd: impl AsFd) -> Result<bool, Error> {
    get_bool(fd, KEEPALIVE)
}

/// Returns the receive buffer in bytes, as the kernel accounts it: with its overhead, so about twice the payload.
pub fn receive_buffer(fd: impl AsFd) -> Result<u32, Error> {
    Ok(sys::get::<u32>(fd, RCVBUF)?.0)
}

/// Returns the memory that unread data takes, in bytes as the kernel accounts it, as [`receive_buffer`] does: the first counter
/// of `SO_MEMINFO`.
pub fn receive_memory(fd: impl AsFd) -> Result<u32, Error> {
    // The kernel writes only as many counters as there is room for.
    Ok(sys::get::<u32>(fd, MEMINFO)?.0)
}

/// Fixes the receive buffer and ends its automatic growth, without the bound of `net.core.rmem_max`, and lets the window
/// grow up to it: a fixed buffer leaves the clamp of the window where it was. The kernel doubles the number.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN.
pub fn force_receive_buffer(fd: impl AsFd, bytes: u32) -> Result<(), Error> {
    let fd = fd.as_fd();
    sys::set(fd, RCVBUF_FORCE, bytes)?;
    sys::set(fd, WINDOW_CLAMP, bytes)
}

/// Returns the send buffer in bytes, as the kernel accounts it: with its overhead.
pub fn send_buffer(fd: impl AsFd) -> Result<u32, Error> {
    Ok(sys::get::<u32>(fd, SNDBUF)?.0)
}

/// Limits the rate at which the socket sends, in bytes per second. `u32::MAX` lifts the limit.
pub fn set_max_pacing_rate(fd: impl AsFd, rate: u32) -> Result<(), Error> {
    sys::set(fd, MAX_PACING_RATE, rate)
}

/// Sets whether the socket may have a local address that is not this host's (`IP_TRANSPARENT`, which sockets of both families
/// know, and which is the same as `IPV6_TRANSPARENT`). Accepted sockets inherit it from their listener.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN` or `CAP_NET_RAW`.
pub fn set_transparent(fd: impl AsFd, on: bool) -> Result<(), Error> {
    set_bool(fd, TRANSPARENT, on)
}

/// Returns whether the local address and port may be bound again while this socket lives (`SO_REUSEADDR`).
pub fn reuse_address(fd: impl AsFd) -> Result<bool, Error> {
    get_bool(fd, REUSEADDR)
}

/// Sets whether the local address and port may be bound again while this socket lives, if the other socket sets it,
/// too.
pub fn set_reuse_address(fd: impl AsFd, on: bool) -> Result<(), Error> {
    set_bool(fd, REUSEADDR, on)
}

fn get_bool(fd: impl AsFd, opt: Opt) -> Result<bool, Error> {
    Ok(sys::get::<c_int>(fd, opt)?.0 != 0)
}

fn set_bool(fd: impl AsFd, opt: Opt, on: bool) -> Result<(), Error> {
    sys::set(fd, opt, c_int::from(on))
}
