//! An attacker who knows the addresses and ports of a connection and nothing else: each number of a segment is a guess. What it
//! sends comes in by the interface by which the peer's own segments do.

use std::net::{IpAddr, SocketAddr};

use longsplice_lab::Namespace;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::Luck;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const URG: u8 = 32;

/// The protocol of a raw socket whose packets bring their IP header along.
const RAW: i32 = 255;
const TCP: u8 = 6;
/// The header of IPv6 that says where a fragment stands.
const FRAGMENT: u8 = 44;

/// Payload of a guess is shorter than this: what counts is where it stands.
const MOST_PAYLOAD: u64 = 64;

/// What is guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A segment with these flags, some of them with payload.
    Segment(u8),
    /// The first fragment of a segment.
    FirstFragment,
    /// Another one.
    LaterFragment,
    /// An error about a segment of ours.
    Icmp,
}

/// All of them, some more often than others.
const KINDS: [Kind; 16] = [
    Kind::Segment(RST),
    Kind::Segment(RST),
    Kind::Segment(RST | ACK),
    Kind::Segment(SYN),
    Kind::Segment(SYN | ACK),
    Kind::Segment(FIN | ACK),
    Kind::Segment(FIN),
    Kind::Segment(ACK),
    Kind::Segment(PSH | ACK),
    Kind::Segment(PSH | ACK),
    Kind::Segment(URG | PSH | ACK),
    Kind::Segment(PSH),
    Kind::FirstFragment,
    Kind::LaterFragment,
    Kind::Icmp,
    Kind::Icmp,
];

/// The attacker on the path of one leg.
#[derive(Debug)]
pub struct Blind {
    socket: Socket,
    luck: Luck,
    /// Whom it pretends to be, and our end.
    peer: SocketAddr,
    ours: SocketAddr,
}

impl Blind {
    /// One in `node` that pretends to be `peer`, which has a connection to `ours`.
    pub fn new(node: &Namespace, luck: Luck, peer: SocketAddr, ours: SocketAddr) -> Blind {
        let open = || Socket::new(Domain::for_address(ours), Type::RAW, Some(Protocol::from(RAW)));
        Blind {
            socket: node.run(open).unwrap().unwrap(),
            luck,
            peer,
            ours,
        }
    }

    /// Sends one guess; which kind it was.
    pub fn guess(&mut self) -> Kind {
        let kind = KINDS[self.luck.of(0..KINDS.len() as u64) as usize];
        let packet = match kind {
            Kind::Segment(flags) => {
                let tcp = self.segment(self.peer, self.ours, flags);
                self.ip(TCP, &tcp, None)
            }
            Kind::FirstFragment => {
                let mut tcp = self.segment(self.peer, self.ours, ACK | PSH);
                // With all of TCP's header: a shorter one is nobody's.
                tcp.resize((tcp.len() / 8 * 8).max(40), 0xa5);
                self.ip(TCP, &tcp, Some((0, true)))
            }
            Kind::LaterFragment => {
                let at = self.luck.of(4..1000) as u16;
                self.ip(TCP, &[0; 64], Some((at, false)))
            }
            Kind::Icmp => self.icmp(),
        };
        let to = SockAddr::from(SocketAddr::new(self.ours.ip(), 0));
        self.socket
            .send_to(&packet, &to)
            .unwrap_or_else(|e| panic!("cannot send a guess ({kind:?}): {e}"));
        kind
    }

    /// A segment of one to the other whose numbers are all guessed.
    fn segment(&mut self, from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(128);
        tcp.extend(from.port().to_be_bytes());
        tcp.extend(to.port().to_be_bytes());
        tcp.extend((self.luck.number()).to_be_bytes()); // sequence number and acknowledgement
        let timed = self.luck.of(0..2) == 1;
        tcp.extend([if timed { 8 << 4 } else { 5 << 4 }, flags]);
        tcp.extend((self.luck.number() as u16).to_be_bytes());
        tcp.extend([0; 4]); // checksum, urgent pointer
        if timed {
            tcp.extend([1, 1, 8, 10]);
            tcp.extend(self.luck.number().to_be_bytes());
        }
        if flags & (PSH | FIN | URG) != 0 || flags == ACK && self.luck.of(0..2) == 1 {
            let len = self.luck.of(1..MOST_PAYLOAD) as usize;
            tcp.resize(tcp.len() + len, 0xa5);
        }
        let sum = self.sum(TCP, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp
    }

    /// An error about a segment that our end may have sent.
    fn icmp(&mut self) -> Vec<u8> {
        let (protocol, kinds): (u8, [[u8; 2]; 3]) = match self.ours.ip() {
            IpAddr::V4(_) => (1, [[3, 3], [3, 4], [11, 0]]),
            IpAddr::V6(_) => (58, [[1, 4], [2, 0], [3, 0]]),
        };
        let mut icmp = kinds[self.luck.of(0..3) as usize].to_vec();
        icmp.extend([0, 0, 0, 0]);
        icmp.extend((self.luck.of(576..1500) as u16).to_be_bytes());
        let quoted = self.segment(self.ours, self.peer, ACK);
        let mut quote = self.ip(TCP, &quoted, None);
        // The quoted packet went the other way.
        let (at, len) = match self.ours.ip() {
            IpAddr::V4(_) => (12, 4),
            IpAddr::V6(_) => (8, 16),
        };
        let (from, to) = quote[at..at + 2 * len].split_at_mut(len);
        from.swap_with_slice(to);
        // Half of them with no more than must be quoted: the less is said, the less is wrong.
        if self.luck.of(0..2) == 1 {
            quote.truncate(at + 2 * len + 8);
        }
        icmp.extend(quote);
        let sum = match self.ours.ip() {
            IpAddr::V4(_) => checksum(&[&icmp]),
            IpAddr::V6(_) => self.sum(protocol, &icmp),
        };
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        self.ip(protocol, &icmp, None)
    }

    /// Puts a header of IP before it. Of a fragment: where it stands, in eights, and whether more follow.
    fn ip(&mut self, protocol: u8, body: &[u8], fragment: Option<(u16, bool)>) -> Vec<u8> {
        let mut ip = Vec::with_capacity(60 + body.len());
        let id = self.luck.number() as u32;
        match (self.peer.ip(), self.ours.ip()) {
            (IpAddr::V4(peer), IpAddr::V4(ours)) => {
                ip.extend([0x45, 0]);
                ip.extend((20 + body.len() as u16).to_be_bytes());
                ip.extend((id as u16 | 1).to_be_bytes());
                let place = fragment.map_or(0, |(at, more)| at | u16::from(more) << 13);
                ip.extend(place.to_be_bytes());
                ip.extend([64, protocol, 0, 0]); // the kernel fills the checksum in
                ip.extend(peer.octets());
                ip.extend(ours.octets());
            }
            (IpAddr::V6(peer), IpAddr::V6(ours)) => {
                let more = if fragment.is_some() { 8 } else { 0 };
                ip.extend([0x60, 0, 0, 0]);
                ip.extend((more + body.len() as u16).to_be_bytes());
                ip.extend([if fragment.is_some() { FRAGMENT } else { protocol }, 64]);
                ip.extend(peer.octets());
                ip.extend(ours.octets());
                if let Some((at, more)) = fragment {
                    ip.extend([protocol, 0]);
                    ip.extend((at << 3 | u16::from(more)).to_be_bytes());
                    ip.extend(id.to_be_bytes());
                }
            }
            _ => unreachable!("a connection has one family"),
        }
        ip.extend(body);
        ip
    }

    /// The checksum of what has a pseudo-header of both addresses.
    fn sum(&self, protocol: u8, body: &[u8]) -> u16 {
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let mut pseudo = [octets(self.peer.ip()), octets(self.ours.ip())].concat();
        pseudo.extend((body.len() as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, protocol]);
        checksum(&[&pseudo, body])
    }
}

/// RFC 1071; every part but the last has an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u64 = parts.iter().flat_map(|part| part.chunks(2)).map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
