//! TCP segments as they pass a device, with the time at which they did.
//!
//! A packet socket sees what comes in before the programs at tc do, and what goes out after them. Its time stamps are the
//! kernel's: of what comes in, the moment at which the device handed it over. A stamp and a copy of the header cost each
//! segment some microseconds, and the program that rewrites it a copy of its head.

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

/// What waits to be read, at most; all of a packet counts, not only its header.
const BUFFER: usize = 256 << 20;
/// Ethernet, IPv4 and TCP with all options.
const HEADERS: usize = 14 + 60 + 60;
/// `PACKET_OUTGOING` of packet(7).
const OUTGOING: u8 = 4;
/// The protocol in the header of IPv4.
const TCP: u8 = 6;
const ETHERTYPE_IPV4: [u8; 2] = [8, 0];

/// A segment that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) at_ns: u64,
    /// Whether it was on its way out of this namespace.
    pub(crate) outgoing: bool,
    /// What it said.
    pub(crate) segment: Segment,
}

/// The header of a TCP segment (RFC 9293 section 3.1), or of what the kernel takes for several until the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Where it comes from.
    pub(crate) source: SocketAddrV4,
    /// Where it goes.
    pub(crate) destination: SocketAddrV4,
    /// The sequence number of its first byte.
    pub(crate) seq: u32,
    /// What it acknowledges.
    pub(crate) ack: u32,
    /// Whether it is a SYN.
    pub(crate) syn: bool,
    /// Whether it is a FIN.
    pub(crate) fin: bool,
    /// Whether it is a reset.
    pub(crate) rst: bool,
    /// The window, not scaled.
    pub(crate) window: u16,
    /// The scale that a SYN announces.
    pub(crate) scale: Option<u8>,
    /// Bytes of payload.
    pub(crate) payload: u32,
}

/// What passes one device. Nothing is lost of it as long as it is taken now and then.
#[derive(Debug)]
pub(crate) struct Capture {
    socket: OwnedFd,
    device: usize,
    dropped: u32,
}

impl Capture {
    /// Begins.
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

    /// The TCP segments that have passed since the last call.
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

    /// Packets that passed unseen because nobody took what was there.
    pub(crate) fn dropped(&self) -> u32 {
        self.dropped
    }
}

fn nanoseconds(at: TimeSpec) -> i64 {
    at.tv_sec() * 1_000_000_000 + at.tv_nsec()
}

/// By how much the clock of the time stamps is ahead of the one of everything else.
fn wall_minus_monotonic() -> i64 {
    // The closest of some looks: one may be interrupted.
    let look = |_| {
        let before = monotonic_ns().cast_signed();
        let wall = clock_gettime(ClockId::Realtime);
        let after = monotonic_ns().cast_signed();
        let wall = wall.tv_sec * 1_000_000_000 + wall.tv_nsec;
        (after - before, wall - (before + after) / 2)
    };
    (0..5).map(look).min().map_or(0, |(_, ahead)| ahead)
}

/// A TCP segment in an Ethernet frame; `None` if it is something else.
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

/// The window scale among the options of a header (RFC 7323 section 2.2).
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

    /// An Ethernet frame with a SYN that offers a scale of 7, and 3 bytes behind it.
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
