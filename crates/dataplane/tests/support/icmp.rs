//! Builds ICMP and ICMPv6 errors from fields, with all checksums computed from scratch.

use longsplice_dataplane::Family;

use super::{
    FAMILY, choose,
    packet::{ETH, L4, Packet, TCP, internet_checksum},
};

/// Type and code of errors, of this binary's family.
pub const UNREACHABLE: (u8, u8) = choose((3, 1), (1, 0));
pub const PORT_UNREACHABLE: (u8, u8) = choose((3, 3), (1, 4));
pub const TOO_BIG: (u8, u8) = choose((3, 4), (2, 0));
pub const TIME_EXCEEDED: (u8, u8) = choose((11, 0), (3, 0));
pub const PARAMETER_PROBLEM: (u8, u8) = choose((12, 0), (4, 1));
pub const ALL_ERRORS: [(u8, u8); 5] = [
    UNREACHABLE,
    PORT_UNREACHABLE,
    TOO_BIG,
    TIME_EXCEEDED,
    PARAMETER_PROBLEM,
];

/// Describes an error about a segment.
#[derive(Debug, Clone)]
pub struct IcmpError {
    /// IP and Ethernet headers of the error; its TCP fields are not used.
    pub outer: Packet,
    /// Type and code.
    pub kind: (u8, u8),
    /// Four bytes behind the checksum: the MTU, if the error has one.
    pub rest: u32,
    /// Segment that it quotes.
    pub about: Packet,
    /// Bytes of the quote, from its IP header on.
    pub quoted: usize,
}

impl IcmpError {
    /// Returns the frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut icmp = vec![self.kind.0, self.kind.1, 0, 0];
        icmp.extend(self.rest.to_be_bytes());
        icmp.extend(&self.about.bytes()[ETH..ETH + self.quoted]);
        let protocol: u8 = choose(1, 58);
        let pseudo = match FAMILY {
            Family::V4 => vec![],
            Family::V6 => {
                let mut pseudo = self.outer.bytes()[22..54].to_vec();
                pseudo.extend((icmp.len() as u32).to_be_bytes());
                pseudo.extend([0, 0, 0, protocol]);
                pseudo
            }
        };
        let check = internet_checksum(&[&pseudo, &icmp]);
        icmp[2..4].copy_from_slice(&check.to_be_bytes());
        let mut frame = self.outer.bytes();
        frame.truncate(L4);
        match FAMILY {
            Family::V4 => {
                frame[16..18].copy_from_slice(&((20 + icmp.len()) as u16).to_be_bytes());
                frame[23] = protocol;
                frame[24..26].fill(0);
                let check = internet_checksum(&[&frame[14..34]]);
                frame[24..26].copy_from_slice(&check.to_be_bytes());
            }
            Family::V6 => {
                frame[18..20].copy_from_slice(&(icmp.len() as u16).to_be_bytes());
                frame[20] = protocol;
            }
        }
        frame.extend(icmp);
        frame
    }
}

/// Length of a quote with the whole TCP header, and of the shortest one.
pub const WHOLE_QUOTE: usize = L4 - ETH + TCP;
pub const LEAST_QUOTE: usize = L4 - ETH + 8;
