//! Blind attacker: it knows the addresses and ports of a connection and nothing else, so it guesses each number of a
//! segment. Its packets come in by the same interface as the peer's own segments.

use std::net::{IpAddr, SocketAddr};

use longsplice_lab::Namespace;

use crate::raw::{self, ACK, FIN, Outlet, PSH, RST, SYN, TCP, URG};

/// Payload of a guess is shorter than this, in bytes: only its position matters.
const MOST_PAYLOAD: u64 = 64;

/// Kind of a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Segment with these flags, in some cases with payload.
    Segment(u8),
    /// First fragment of a segment.
    FirstFragment,
    /// Later fragment of a segment.
    LaterFragment,
    /// ICMP error about a segment of ours.
    Icmp,
}

/// All kinds, some more often than others.
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

/// Attacker on the path of one leg.
#[derive(Debug)]
pub struct Blind {
    outlet: Outlet,
    rng: fastrand::Rng,
    /// Address that it pretends to have, and that of our end.
    peer: SocketAddr,
    ours: SocketAddr,
}

impl Blind {
    /// Creates an attacker in `node` that pretends to be `peer`, which has a connection to `ours`.
    pub fn new(node: &Namespace, rng: fastrand::Rng, peer: SocketAddr, ours: SocketAddr) -> Blind {
        Blind {
            outlet: Outlet::open(node, ours.ip()),
            rng,
            peer,
            ours,
        }
    }

    /// Sends one guess; returns its kind.
    pub fn guess(&mut self) -> Kind {
        let kind = KINDS[self.rng.usize(0..KINDS.len())];
        let packet = match kind {
            Kind::Segment(flags) => {
                let tcp = self.segment(self.peer, self.ours, flags);
                self.ip(TCP, &tcp, None)
            }
            Kind::FirstFragment => {
                let mut tcp = self.segment(self.peer, self.ours, ACK | PSH);
                // Include the whole TCP header: a fragment with less of it belongs to no flow.
                tcp.resize((tcp.len() / 8 * 8).max(40), 0xa5);
                self.ip(TCP, &tcp, Some((0, true)))
            }
            Kind::LaterFragment => {
                let at = self.rng.u64(4..1000) as u16;
                self.ip(TCP, &[0; 64], Some((at, false)))
            }
            Kind::Icmp => self.icmp(),
        };
        self.outlet.send(&packet, self.ours.ip());
        kind
    }

    /// Sends a SYN with guessed numbers.
    pub fn guess_syn(&mut self) {
        let tcp = self.segment(self.peer, self.ours, SYN);
        let packet = self.ip(TCP, &tcp, None);
        self.outlet.send(&packet, self.ours.ip());
    }

    /// Builds a segment between two addresses, with guessed numbers.
    fn segment(&mut self, from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
        let numbers = [0; 2].map(|_| self.rng.u64(..) as u32);
        let timed = self.rng.bool();
        let mut tcp = raw::header(from, to, numbers, flags, self.rng.u64(..) as u16);
        if timed {
            let clocks = self.rng.u64(..).to_be_bytes();
            raw::add_options(&mut tcp, &[&[1, 1, 8, 10], &clocks[..]].concat());
        }
        if flags & (PSH | FIN | URG) != 0 || flags == ACK && self.rng.bool() {
            let len = self.rng.u64(1..MOST_PAYLOAD) as usize;
            tcp.resize(tcp.len() + len, 0xa5);
        }
        raw::seal(&mut tcp, from.ip(), to.ip());
        tcp
    }

    /// Builds an ICMP error about a segment that our end may have sent.
    fn icmp(&mut self) -> Vec<u8> {
        let (protocol, kinds): (u8, [[u8; 2]; 3]) = match self.ours.ip() {
            IpAddr::V4(_) => (1, [[3, 3], [3, 4], [11, 0]]),
            IpAddr::V6(_) => (58, [[1, 4], [2, 0], [3, 0]]),
        };
        let mut icmp = kinds[self.rng.usize(0..3)].to_vec();
        icmp.extend([0, 0, 0, 0]);
        icmp.extend((self.rng.u64(576..1500) as u16).to_be_bytes());
        let quoted = self.segment(self.ours, self.peer, ACK);
        let mut quote = self.ip(TCP, &quoted, None);
        // The quoted packet went the opposite way.
        let (at, len) = match self.ours.ip() {
            IpAddr::V4(_) => (12, 4),
            IpAddr::V6(_) => (8, 16),
        };
        let (from, to) = quote[at..at + 2 * len].split_at_mut(len);
        from.swap_with_slice(to);
        // Quote only the required minimum in half of them: the less is quoted, the less is wrong.
        if self.rng.bool() {
            quote.truncate(at + 2 * len + 8);
        }
        icmp.extend(quote);
        let sum = match self.ours.ip() {
            IpAddr::V4(_) => raw::checksum(&[&icmp]),
            IpAddr::V6(_) => raw::sum(protocol, &icmp, self.peer.ip(), self.ours.ip()),
        };
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        self.ip(protocol, &icmp, None)
    }

    /// Prepends an IP header.
    fn ip(&mut self, protocol: u8, body: &[u8], fragment: Option<(u16, bool)>) -> Vec<u8> {
        let id = self.rng.u64(..) as u32;
        raw::ip(self.peer.ip(), self.ours.ip(), protocol, body, id, fragment)
    }
}
