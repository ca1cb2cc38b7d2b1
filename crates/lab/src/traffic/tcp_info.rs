//! Kernel's information on a TCP socket.

use std::fs;
use std::mem::offset_of;
use std::net::TcpStream;
use std::sync::LazyLock;

use nix::sys::socket::{getsockopt, sockopt::GetStruct};

/// Socket option `TCP_INFO`, which nix lacks, up to `tcpi_total_retrans`, as bytes: libc's struct is longer than the
/// answer of a kernel before 6.7, at which nix panics. The macro of nix holds the system call: there is no `unsafe` of
/// ours in it.
#[derive(Debug, Clone, Copy)]
struct TcpInfo;

const TOTAL_RETRANS: usize = offset_of!(libc::tcp_info, tcpi_total_retrans);
const TOTAL_RETRANS_END: usize = TOTAL_RETRANS + size_of::<u32>();

nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    [u8; TOTAL_RETRANS_END],
    GetStruct<[u8; TOTAL_RETRANS_END]>
);

/// Socket option `TCP_INFO` up to `tcpi_total_rto_time`, as bytes: libc's struct does not reach that far.
#[derive(Debug, Clone, Copy)]
struct TcpInfoBytes;

/// Offset of `tcpi_total_rto`, a `u16`, in `struct tcp_info` of `<linux/tcp.h>`: part of the kernel's ABI.
const TOTAL_RTO: usize = 240;
/// End of `tcpi_total_rto_time`, the last of the fields that were added with it.
const LEN: usize = TOTAL_RTO + 8;

nix::getsockopt_impl!(
    TcpInfoBytes,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    [u8; LEN],
    GetStruct<[u8; LEN]>
);

/// Returns the number of segments that the socket has retransmitted so far; 0 when the kernel does not report
/// it.
pub(super) fn total_retrans(stream: &TcpStream) -> u32 {
    getsockopt(stream, TcpInfo).map_or(0, |info| {
        let bytes = info[TOTAL_RETRANS..].first_chunk();
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    })
}

/// Returns the number of expiries of the socket's retransmission timer so far; `None` before Linux 6.7, which does
/// not report it.
pub(super) fn timeouts(stream: &TcpStream) -> Option<u32> {
    static IS_TOLD: LazyLock<bool> = LazyLock::new(|| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        version(&release).is_some_and(|version| version >= (6, 7))
    });
    // Do not ask an older kernel: its answer is shorter, at which nix panics.
    if !*IS_TOLD {
        return None;
    }
    let info = getsockopt(stream, TcpInfoBytes).ok()?;
    let [low, high] = [info[TOTAL_RTO], info[TOTAL_RTO + 1]];
    Some(u16::from_ne_bytes([low, high]).into())
}

/// Returns whether the connection is over for both sides, or was reset; false when the kernel does not report
/// it.
pub(super) fn is_closed(stream: &TcpStream) -> bool {
    const TCP_CLOSE: u8 = 7;
    getsockopt(stream, TcpInfo).is_ok_and(|info| info[offset_of!(libc::tcp_info, tcpi_state)] == TCP_CLOSE)
}

/// Returns the first two numbers of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        assert_eq!(version("6.18.44-fc-v657\n"), Some((6, 18)));
        assert_eq!(version("6.7-rc1"), Some((6, 7)));
        assert!(version("6.18.1") > version("6.7.9"));
        assert_eq!(version("linux"), None);
    }

    #[test]
    fn a_new_socket_has_sent_nothing_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(total_retrans(&stream), 0);
        assert!(matches!(timeouts(&stream), None | Some(0)));
        assert!(!is_closed(&stream));
    }
}
