//! Captures TCP segments at a device, with time stamps.
//!
//! A packet socket sees an incoming packet before the programs at tc do, and an outgoing one after them. The kernel
//! makes the time stamps: that of an incoming packet is the moment at which the device delivered it. A stamp and a copy
//! of the header cost each segment some microseconds, and cost the program that rewrites it a copy of its head.

use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use longsplice_lab::{Namespace, monotonic_ns};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use rustix::time::{ClockId, clock_gettime};

/// Receive buffer, in bytes; all of a packet counts, not only its header.
const BUFFER: usize = 256 << 20;
/// Length of the Ethernet, IPv4 and TCP headers with all options.
const HEADERS: usize = 14 + 60 + 60;
/// Constant `PACKET_OUTGOING` of packet(7).
const OUTGOING: u8 = 4;
/// Number of TCP in an IPv4 header.
const TCP: u8 = 6;
const ETHERTYPE_IPV4: [u8; 2] = [8, 0];

/// Captured segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) at_ns: u64,
    /// True if it was on its way out of this namespace.
    pub(crate) outgoing: bool,
    /// Header of the segment.
    pub(crate) segment: Segment,
}

/// Header of a TCP segment (RFC 9293 section 3.1), or of a super-packet that the kernel cuts into several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Source.
    pub(crate) source: SocketAddrV4,
    /// Destination.
    pub(crate) destination: SocketAddrV4,
    /// Sequence number of its first byte.
    pub(crate) seq: u32,
    /// Acknowledgement number.
    pub(crate) ack: u32,
    /// True for a SYN.
    pub(crate) syn: bool,
    /// True for a FIN.
    pub(crate) fin: bool,
    /// True for a reset.
    pub(crate) rst: bool,
    /// Window, not scaled.
    pub(crate) window: u16,
    /// Window scale that a SYN announces.
    pub(crate) scale: Option<u8>,
    /// Bytes of payload.
    pub(crate) payload: u32,
}

/// Capture at one device. It is complete as long as `take` is called now and then.
#[derive(Debug)]
pub(crate) struct Capture {
    socket: OwnedFd,
    device: usize,
    dropped: u32,
}

impl Capture {
    /// Begins a capture.
    pub(crate) fn open(namespace: &Namespace, device: &str) -> Result<Self> {
        let open = || -> nix::Result<Capture> {
            let device = if_nametoindex(device)? as usize;
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
            setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
            setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
            setsockopt(&socket, sockopt::RxqOvfl, &1)?;
            Ok(Capture {
                socket,
                device,
                dropped: 0,
            })
        };
        namespace
            .run(open)?
            .with_context(|| format!("capture at {device}"))
    }

    /// Returns the TCP segments that have passed since the last call.
    pub(crate) fn take(&mut self) -> Result<Vec<Seen>> {
        let clocks = wall_minus_monotonic();
        let mut seen = Vec::new();
        let mut head = [0; HEADERS];
        let mut control = nix::cmsg_space!(TimeSpec, u32);
        loop {
            let mut pieces = [IoSliceMut::new(&mut head)];
            let received = recvmsg::<LinkAddr>(
                self.socket.as_raw_fd(),
                &mut pieces,
                Some(&mut control),
                MsgFlags::empty(),
            );
            let message = match received {
                Ok(message) => message,
                Err(Errno::EAGAIN) => return Ok(seen),
                Err(error) => return Err(error).context("read captured packets"),
            };
            let mut stamp = None;
            for control in message.cmsgs().context("read a time stamp")? {
                match control {
                    ControlMessageOwned::ScmTimestampns(at) => stamp = Some(nanoseconds(at)),
                    ControlMessageOwned::RxqOvfl(count) => self.dropped = count,
                    _ => {}
                }
            }
            let (bytes, from) = (message.bytes, message.address);
            let Some((from, stamp)) = from.zip(stamp).filter(|(from, _)| from.ifindex() == self.device)
            else {
                continue;
            };
            if let Some(segment) = parse(&head[..bytes.min(HEADERS)]) {
                seen.push(Seen {
                    at_ns: stamp.saturating_sub(clocks).unsigned_abs(),
                    outgoing: from.pkttype() == OUTGOING,
                    segment,
                });
            }
        }
    }

    /// Returns the number of packets dropped because the buffer was full.
    pub(crate) fn dropped(&self) -> u32 {
        self.dropped
    }
}

fn nanoseconds(at: TimeSpec) -> i64 {
    at.tv_sec() * 1_000_000_000 + at.tv_nsec()
}

/// Returns the lead of the wall clock, which makes the time stamps, over `CLOCK_MONOTONIC`, in nanoseconds.
fn wall_minus_monotonic() -> i64 {
    // Take the closest of several readings: one may be interrupted.
    let look = |_| {
        let before = monotonic_ns().cast_signed();
        let wall = clock_gettime(ClockId::Realtime);
        let after = monotonic_ns().cast_signed();
        let wall = wall.tv_sec * 1_000_000_000 + wall.tv_nsec;
        (after - before, wall - (before + after) / 2)
    };
    (0..5).map(look).min().map_or(0, |(_, ahead)| ahead)
}

/// Parses a TCP segment in an Ethernet frame; `None` if it is something else.
fn parse(frame: &[u8]) -> Option<Segment> {
    if frame.get(12..14)? != ETHERTYPE_IPV4 {
        return None;
    }
    let ip = frame.get(14..)?;
    let ip_len = usize::from(ip.first()? & 0xf) * 4;
    if *ip.get(9)? != TCP {
        return None;
    }
    let total = be16(ip, 2)?;
    let tcp = ip.get(ip_len..)?;
    let tcp_len = usize::from(tcp.get(12)? >> 4) * 4;
    let flags = tcp.get(13)?;
    let addr = |at: usize| Some(Ipv4Addr::from(be32(ip, at)?));
    let options = tcp.get(20..tcp_len).unwrap_or_default();
    Some(Segment {
        source: SocketAddrV4::new(addr(12)?, be16(tcp, 0)?),
        destination: SocketAddrV4::new(addr(16)?, be16(tcp, 2)?),
        seq: be32(tcp, 4)?,
        ack: be32(tcp, 8)?,
        fin: flags & 1 != 0,
        syn: flags & 2 != 0,
        rst: flags & 4 != 0,
        window: be16(tcp, 14)?,
        scale: scale(options),
        payload: u32::from(total).saturating_sub((ip_len + tcp_len) as u32),
    })
}

/// Finds the window scale among the options of a header (RFC 7323 section 2.2).
fn scale(mut options: &[u8]) -> Option<u8> {
    loop {
        match options {
            [3, 3, scale, ..] => return Some(*scale),
            [1, rest @ ..] => options = rest,
            [kind, len, ..] if *kind > 1 && *len > 1 => options = options.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an Ethernet frame with a SYN that offers a scale of 7, and 3 bytes behind it.
    fn frame() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend(ETHERTYPE_IPV4);
        frame.extend([
            0x45, 0, 0, 51, 0, 0, 0, 0, 64, TCP, 0, 0, 198, 18, 1, 1, 198, 18, 1, 2,
        ]);
        frame.extend([
            0x1f, 0x90, 0, 80, 0, 0, 0, 9, 0, 0, 0, 8, 0x70, 2, 1, 0, 0, 0, 0, 0,
        ]);
        frame.extend([2, 4, 5, 180, 1, 3, 3, 7]);
        frame.extend(*b"abc");
        frame
    }

    #[test]
    fn a_segment_is_read_from_its_frame() {
        let segment = parse(&frame()).unwrap();
        assert_eq!(segment.source, "198.18.1.1:8080".parse().unwrap());
        assert_eq!(segment.destination, "198.18.1.2:80".parse().unwrap());
        assert_eq!((segment.seq, segment.ack, segment.window), (9, 8, 256));
        assert!(segment.syn && !segment.fin && !segment.rst);
        assert_eq!((segment.scale, segment.payload), (Some(7), 3));
    }

    #[test]
    fn what_is_no_segment_is_passed_over() {
        let mut udp = frame();
        udp[14 + 9] = 17;
        assert_eq!(parse(&udp), None);
        let mut arp = frame();
        arp[13] = 6;
        assert_eq!(parse(&arp), None);
        assert_eq!(parse(&frame()[..40]), None);
        assert_eq!(scale(&[2, 0, 3, 3, 7]), None);
    }
}
