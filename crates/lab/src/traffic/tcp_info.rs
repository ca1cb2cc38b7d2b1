//! What the kernel tells of a TCP socket.

use std::net::TcpStream;

use nix::sys::socket::{getsockopt, sockopt::GetStruct};

/// `TCP_INFO`, which nix does not have. Its macro holds the system call: no `unsafe` of ours is in it.
#[derive(Debug, Clone, Copy)]
struct TcpInfo;

nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    libc::tcp_info,
    GetStruct<libc::tcp_info>
);

/// How many segments the socket has sent again so far; 0 when the kernel does not say.
pub(super) fn total_retrans(stream: &TcpStream) -> u32 {
    getsockopt(stream, TcpInfo).map_or(0, |info| info.tcpi_total_retrans)
}

/// Whether the connection is over for both sides, or was reset; false when the kernel does not say.
pub(super) fn is_closed(stream: &TcpStream) -> bool {
    const TCP_CLOSE: u8 = 7;
    getsockopt(stream, TcpInfo).is_ok_and(|info| info.tcpi_state == TCP_CLOSE)
}
