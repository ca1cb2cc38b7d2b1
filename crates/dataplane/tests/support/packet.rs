//! Packets as fields, and their bytes with both checksums computed from scratch.

use std::net::SocketAddrV4;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

pub const ETH: usize = 14;
pub const IP: usize = 20;
pub const TCP: usize = 20;

/// A TCP segment over IPv4 over Ethernet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub tos: u8,
    pub id: u16,
    /// Flags and offset of fragments, as in the header.
    pub fragment: u16,
    pub ttl: u8,
    pub src: SocketAddrV4,
    pub dst: SocketAddrV4,
    pub seq: u32,
    pub ack: u32,
    /// The four bits beside the data offset.
    pub reserved: u8,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    /// A multiple of four bytes.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
    /// Behind the datagram: a short frame's.
    pub padding: Vec<u8>,
}

impl Packet {
    /// The frame.
    pub fn bytes(&self) -> Vec<u8> {
        assert!(self.options.len().is_multiple_of(4) && self.options.len() <= 40);
        let total = IP + TCP + self.options.len() + self.payload.len();
        let mut frame = [&self.dst_mac[..], &self.src_mac, &[0x08, 0x00]].concat();
        let mut ip = vec![0x45, self.tos];
        ip.extend((total as u16).to_be_bytes());
        ip.extend(self.id.to_be_bytes());
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([self.ttl, 6, 0, 0]);
        ip.extend(self.src.ip().octets());
        ip.extend(self.dst.ip().octets());
        let check = internet_checksum(&[&ip]);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
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
        let check = internet_checksum(&[&self.pseudo_header(), &tcp]);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        frame.extend(ip);
        frame.extend(tcp);
        frame.extend(&self.padding);
        frame
    }

    /// What stands in the checksum field where the device is to compute it: the sum of the pseudo-header.
    pub fn bytes_for_offload(&self) -> Vec<u8> {
        let mut frame = self.bytes();
        let sum = !internet_checksum(&[&self.pseudo_header()]);
        frame[ETH + IP + 16..ETH + IP + 18].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    fn pseudo_header(&self) -> Vec<u8> {
        let len = (TCP + self.options.len() + self.payload.len()) as u16;
        let mut pseudo = Vec::new();
        pseudo.extend(self.src.ip().octets());
        pseudo.extend(self.dst.ip().octets());
        pseudo.extend([0, 6]);
        pseudo.extend(len.to_be_bytes());
        pseudo
    }

    /// The bytes with other ones at an offset, whatever that makes of the checksums.
    pub fn broken(&self, at: usize, with: &[u8]) -> Vec<u8> {
        let mut frame = self.bytes();
        frame[at..at + with.len()].copy_from_slice(with);
        frame
    }

    /// The sequence number behind it.
    pub fn end(&self) -> u32 {
        let controls = u32::from(self.flags & FIN != 0) + u32::from(self.flags & SYN != 0);
        self.seq
            .wrapping_add(self.payload.len() as u32)
            .wrapping_add(controls)
    }
}

/// RFC 1071, from scratch; every part but the last has an even length.
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

/// Bytes that say where they stand.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Compares two frames and, where they differ, says in which field.
#[track_caller]
pub fn assert_frame(got: &[u8], expected: &[u8], what: &str) {
    if let Some(text) = describe(got, expected, what) {
        panic!("{text}");
    }
}

/// In which fields two frames differ; `None` if they do not.
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
                field(at),
                hex(g),
                hex(e)
            );
        }
    }
    Some(text)
}

fn field(at: usize) -> &'static str {
    match at {
        0..6 => "destination MAC",
        6..12 => "source MAC",
        12..14 => "EtherType",
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
        34..36 => "source port",
        36..38 => "destination port",
        38..42 => "sequence number",
        42..46 => "acknowledgement",
        46 => "data offset",
        47 => "flags",
        48..50 => "window",
        50..52 => "TCP checksum",
        52..54 => "urgent pointer",
        _ => "options or payload",
    }
}
