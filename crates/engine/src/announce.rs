//! Window announcements in the name of a local socket.
//!
//! While windows are coupled, egress offers an end less than its socket would, and the socket does not know: it says
//! nothing when the far end grants more, and in some states it cannot be made to. So the segment is written here, an empty
//! one with the acknowledgement that was sent last, through a raw socket. The egress program puts the right window in.

use std::{io, net::SocketAddrV4};

use longsplice_dataplane::{Leg, LegState};
use socket2::{Domain, Protocol, Socket, Type};

/// The IP header is ours.
const IPPROTO_RAW: i32 = 255;
const IP_HEADER: usize = 20;
const TCP_HEADER: usize = 20;
/// NOP NOP TS 10 (RFC 7323 appendix A).
const TIMESTAMPS: usize = 12;
const TTL: u8 = 64;
const FLAG_ACK: u8 = 0x10;

/// A raw socket.
#[derive(Debug)]
pub(crate) struct Announcer {
    socket: Socket,
}

impl Announcer {
    /// Needs CAP_NET_RAW.
    pub(crate) fn open() -> io::Result<Announcer> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(IPPROTO_RAW)))?;
        socket.set_nonblocking(true)?;
        Ok(Announcer { socket })
    }

    /// Announces the window of a leg. `x` is the leg, `timestamps` whether it has them.
    pub(crate) fn announce(&self, leg: Leg, x: &LegState, timestamps: bool) -> io::Result<()> {
        let packet = segment(leg, x, timestamps);
        self.socket
            .send_to(&packet, &SocketAddrV4::new(*leg.peer.ip(), 0).into())
            .map(drop)
    }
}

fn segment(leg: Leg, x: &LegState, timestamps: bool) -> Vec<u8> {
    let tcp_len = TCP_HEADER + if timestamps { TIMESTAMPS } else { 0 };
    let mut p = vec![0; IP_HEADER + tcp_len];
    p[0] = 0x45;
    p[2..4].copy_from_slice(&((IP_HEADER + tcp_len) as u16).to_be_bytes());
    p[6] = 0x40; // DF, as TCP does
    p[8] = TTL;
    p[9] = 6;
    p[12..16].copy_from_slice(&leg.local.ip().octets());
    p[16..20].copy_from_slice(&leg.peer.ip().octets());
    let t = &mut p[IP_HEADER..];
    t[0..2].copy_from_slice(&leg.local.port().to_be_bytes());
    t[2..4].copy_from_slice(&leg.peer.port().to_be_bytes());
    t[4..8].copy_from_slice(&x.loc_end.to_be_bytes());
    t[8..12].copy_from_slice(&x.tx_ack.to_be_bytes());
    t[12] = (tcp_len as u8 / 4) << 4;
    t[13] = FLAG_ACK;
    let room = (x.loc_edge.wrapping_sub(x.tx_ack) as i32).max(0) as u32 >> x.scale_out;
    t[14..16].copy_from_slice(&(room.min(u16::MAX.into()) as u16).to_be_bytes());
    if timestamps {
        t[20..24].copy_from_slice(&[1, 1, 8, 10]);
        t[24..28].copy_from_slice(&x.ts_sent.to_be_bytes());
        t[28..32].copy_from_slice(&x.peer_ts.to_be_bytes());
    }
    let check = checksum(&p[12..20], &p[IP_HEADER..]);
    p[IP_HEADER + 16..IP_HEADER + 18].copy_from_slice(&check.to_be_bytes());
    p
}

/// Of a TCP segment with its pseudo header (RFC 9293 section 3.1); both parts have an even length.
fn checksum(addresses: &[u8], tcp: &[u8]) -> u16 {
    let words = |b: &[u8]| {
        b.chunks_exact(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum::<u32>()
    };
    let mut sum = words(addresses) + words(tcp) + 6 + tcp.len() as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_segment_is_what_the_socket_would_say() {
        let leg = Leg {
            peer: "198.18.1.1:40000".parse().unwrap(),
            local: "198.18.1.2:8080".parse().unwrap(),
        };
        let x = LegState {
            loc_end: 0x0102_0304,
            tx_ack: u32::MAX,
            loc_edge: 0x1_0000 - 1,
            scale_out: 7,
            ts_sent: 77,
            peer_ts: 88,
            ..LegState::default()
        };
        let p = segment(leg, &x, true);
        assert_eq!(p.len(), 52);
        assert_eq!(checksum(&p[12..20], &p[20..]), 0, "summed with its own checksum");
        assert_eq!(p[24..32], [1, 2, 3, 4, 255, 255, 255, 255]);
        assert_eq!(u16::from_be_bytes([p[34], p[35]]), 512, "across the wrap");
        assert_eq!(segment(leg, &x, false).len(), 40);
        let closed = LegState {
            loc_edge: x.tx_ack.wrapping_sub(5),
            ..x
        };
        assert_eq!(segment(leg, &closed, false)[34..36], [0, 0]);
    }
}
