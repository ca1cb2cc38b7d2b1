//! Builds packets from fields, with both checksums computed from scratch.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use longsplice_dataplane::Family;

use super::choose;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

pub const ETH: usize = 14;
pub const TCP: usize = 20;

/// Extension headers of IPv6 (RFC 8200 section 4).
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const DESTINATIONS: u8 = 60;

/// Offset of the TCP header, without IP options or extension headers.
pub const L4: usize = ETH + choose(20, 40);
/// Offset of its options or payload.
pub const BODY: usize = L4 + TCP;
/// Range of the IP header's length field.
pub const LENGTH: std::ops::Range<usize> = choose(16, 18)..choose(18, 20);

/// Describes a TCP segment over IP over Ethernet: the addresses determine the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    /// DSCP and ECN; the traffic class of IPv6.
    pub tos: u8,
    /// Flow label of IPv6.
    pub flow_label: u32,
    /// Identification of IPv4.
    pub id: u16,
    /// Flags and offset of fragments of IPv4, in the header's form.
    pub fragment: u16,
    /// Options of IPv4, a multiple of four bytes.
    pub ip_options: Vec<u8>,
    /// Extension headers of IPv6, each its kind and its bytes behind "next header".
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// Time to live; the hop limit of IPv6.
    pub ttl: u8,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    /// Value of the four bits beside the data offset.
    pub reserved: u8,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    /// TCP options, a multiple of four bytes.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
    /// Padding of a short frame behind the datagram.
    pub padding: Vec<u8>,
}

impl Packet {
    /// Returns the hops that it has left behind a host that sends it on with an address of its own.
    pub fn hops_behind(&self) -> u8 {
        if self.ttl > 32 { self.ttl - 1 } else { 64 }
    }

    /// Returns a packet to be filled in.
    pub fn blank() -> Packet {
        let nowhere = SocketAddr::new(choose([0; 4].into(), IpAddr::V6(Ipv6Addr::UNSPECIFIED)), 0);
        Packet {
            dst_mac: [0; 6],
            src_mac: [0; 6],
            tos: 0,
            flow_label: 0xabcde,
            id: 0x1234,
            fragment: 0x4000,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            ttl: 64,
            src: nowhere,
            dst: nowhere,
            seq: 0,
            ack: 0,
            reserved: 0,
            flags: ACK,
            window: 0,
            urgent: 0,
            options: Vec::new(),
            payload: Vec::new(),
            padding: Vec::new(),
        }
    }

    fn family(&self) -> Family {
        Family::of(self.src.ip())
    }

    /// Returns the frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut tcp = self.tcp();
        let check = internet_checksum(&[&self.pseudo_header(), &tcp]);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        let kind: [u8; 2] = match self.family() {
            Family::V4 => [0x08, 0x00],
            Family::V6 => [0x86, 0xdd],
        };
        [
            &self.dst_mac[..],
            &self.src_mac,
            &kind,
            &self.ip_header(tcp.len()),
            &tcp,
            &self.padding,
        ]
        .concat()
    }

    /// Returns the segment, without its checksum.
    fn tcp(&self) -> Vec<u8> {
        assert!(self.options.len().is_multiple_of(4) && self.options.len() <= 40);
        let mut tcp = Vec::new();
        tcp.extend(self.src.port().to_be_bytes());
        tcp.extend(self.dst.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.push((((TCP + self.options.len()) / 4) as u8) << 4 | self.reserved);
        tcp.push(self.flags);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0, 0]);
        tcp.extend(self.urgent.to_be_bytes());
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        tcp
    }

    fn ip_header(&self, tcp_len: usize) -> Vec<u8> {
        let mut ip = Vec::new();
        if self.family() == Family::V4 {
            let header = 20 + self.ip_options.len();
            ip.extend([0x40 | (header / 4) as u8, self.tos]);
            ip.extend(((header + tcp_len) as u16).to_be_bytes());
            ip.extend(self.id.to_be_bytes());
            ip.extend(self.fragment.to_be_bytes());
            ip.extend([self.ttl, 6, 0, 0]);
            ip.extend(self.addresses());
            ip.extend(&self.ip_options);
            let check = internet_checksum(&[&ip]);
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            return ip;
        }
        let more: usize = self.extensions.iter().map(|(_, body)| 1 + body.len()).sum();
        let word = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
        ip.extend(word.to_be_bytes());
        ip.extend(((more + tcp_len) as u16).to_be_bytes());
        let kinds = self.extensions.iter().map(|(kind, _)| *kind);
        let mut next = kinds.chain([6]);
        ip.extend([next.next().expect("TCP at least"), self.ttl]);
        ip.extend(self.addresses());
        for ((_, body), next) in self.extensions.iter().zip(next) {
            ip.push(next);
            ip.extend(body);
        }
        ip
    }

    fn addresses(&self) -> Vec<u8> {
        let octets = |address: SocketAddr| match address.ip() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        [octets(self.src), octets(self.dst)].concat()
    }

    /// Returns the packet as a fragment at an offset, in units of eight bytes.
    pub fn fragment_at(&self, offset: u16, more: bool) -> Packet {
        let mut extension = vec![0];
        extension.extend((offset << 3 | u16::from(more)).to_be_bytes());
        extension.extend([0xde, 0xad]);
        extension.extend(self.id.to_be_bytes());
        Packet {
            fragment: offset | u16::from(more) << 13,
            extensions: vec![(FRAGMENT, extension)],
            ..self.clone()
        }
    }

    /// Returns the offset of its TCP header.
    pub fn l4(&self) -> usize {
        self.bytes().len() - self.padding.len() - self.tcp().len()
    }

    /// Returns the frame with its checksum left to the device: the field holds the sum of the pseudo-header.
    pub fn bytes_for_offload(&self) -> Vec<u8> {
        let (mut frame, at) = (self.bytes(), self.l4() + 16);
        let sum = !internet_checksum(&[&self.pseudo_header()]);
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// Returns the bytes of a super-packet of over 64 kB (BIG TCP): they have no length.
    pub fn bytes_without_length(&self) -> Vec<u8> {
        let mut frame = self.bytes();
        frame[LENGTH].fill(0);
        if self.family() == Family::V4 {
            frame[24..26].fill(0);
            let check = internet_checksum(&[&frame[14..34]]);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        frame
    }

    fn pseudo_header(&self) -> Vec<u8> {
        let mut pseudo = self.addresses();
        pseudo.extend((self.tcp().len() as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, 6]);
        pseudo
    }

    /// Returns the frame with another data offset of TCP; the checksum stays.
    pub fn with_data_offset(&self, words: u8) -> Vec<u8> {
        self.broken(self.l4() + 12, &[words << 4])
    }

    /// Returns the frame with other bytes at an offset; the checksums stay.
    pub fn broken(&self, at: usize, with: &[u8]) -> Vec<u8> {
        let mut frame = self.bytes();
        frame[at..at + with.len()].copy_from_slice(with);
        frame
    }

    /// Returns the sequence number behind it.
    pub fn end(&self) -> u32 {
        let controls = u32::from(self.flags & FIN != 0) + u32::from(self.flags & SYN != 0);
        self.seq
            .wrapping_add(self.payload.len() as u32)
            .wrapping_add(controls)
    }
}

/// Returns the protocol behind all IP headers of a frame, and its offset; `None` if it is no IP.
pub fn upper(frame: &[u8]) -> Option<(u8, usize)> {
    match frame.get(12..14)? {
        [0x08, 0x00] => Some((*frame.get(23)?, ETH + usize::from(frame[14] & 15) * 4)),
        [0x86, 0xdd] => {
            let (mut at, mut next) = (ETH + 40, *frame.get(20)?);
            while [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATIONS].contains(&next) {
                let len = if next == FRAGMENT { 0 } else { *frame.get(at + 1)? };
                next = *frame.get(at)?;
                at += 8 * (usize::from(len) + 1);
            }
            Some((next, at))
        }
        _ => None,
    }
}

/// Returns a frame with a tag (IEEE 802.1Q): a priority and a number.
pub fn tagged(frame: &[u8], priority: u8, number: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.splice(12..12, [0x81, 0x00, priority << 5, number]);
    frame
}

/// Computes the checksum of RFC 1071 from scratch; every part but the last has an even length.
pub fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns bytes that depend on their offset.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Compares two frames, and names the fields that differ.
#[track_caller]
pub fn assert_frame(got: &[u8], expected: &[u8], what: &str) {
    if let Some(text) = describe(got, expected, what) {
        panic!("{text}");
    }
}

/// Returns the fields in which two frames differ; `None` if they do not.
pub fn describe(got: &[u8], expected: &[u8], what: &str) -> Option<String> {
    if got == expected {
        return None;
    }
    let mut text = format!("{what}: {} bytes, expected {}\n", got.len(), expected.len());
    for at in 0..got.len().max(expected.len()) {
        let (g, e) = (got.get(at), expected.get(at));
        if g != e {
            let hex = |b: Option<&u8>| b.map_or("--".to_owned(), |b| format!("{b:02x}"));
            text += &format!(
                "  byte {at:3} ({}): {} instead of {}\n",
                field(expected, at),
                hex(g),
                hex(e)
            );
        }
    }
    Some(text)
}

fn field(frame: &[u8], at: usize) -> &'static str {
    let v6 = frame.get(12..14) == Some(&[0x86, 0xdd]);
    let l4 = if v6 { 54 } else { 34 };
    match at {
        0..6 => "destination MAC",
        6..12 => "source MAC",
        12..14 => "EtherType",
        14..18 if v6 => "version, traffic class, flow label",
        18..20 if v6 => "payload length",
        20 if v6 => "next header",
        21 if v6 => "hop limit",
        22..38 if v6 => "source address",
        38..54 if v6 => "destination address",
        14 => "IP version and length",
        15 => "DSCP and ECN",
        16..18 => "total length",
        18..20 => "IP id",
        20..22 => "fragment",
        22 => "TTL",
        23 => "protocol",
        24..26 => "IP checksum",
        26..30 => "source address",
        30..34 => "destination address",
        _ => match at - l4 {
            0..2 => "source port",
            2..4 => "destination port",
            4..8 => "sequence number",
            8..12 => "acknowledgement",
            12 => "data offset",
            13 => "flags",
            14..16 => "window",
            16..18 => "TCP checksum",
            18..20 => "urgent pointer",
            _ => "options or payload",
        },
    }
}
