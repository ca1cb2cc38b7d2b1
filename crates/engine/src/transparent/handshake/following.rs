//! Reads the segments of a client behind its SYN.

use std::net::SocketAddr;

use longsplice_core::seq::Seq;

use super::opening::{ACK, FIN, RST, SYN, addresses};
use crate::{kernel::packet::ETHERNET, services::rules::place_of_tcp};

/// Holds what is of interest of a segment behind the handshake's first two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Following {
    /// Source and destination.
    pub(super) ends: (SocketAddr, SocketAddr),
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    pub(super) flags: u8,
    /// True if it is an acknowledgement without payload, SYN, FIN and RST.
    pub(super) is_bare: bool,
}

impl Following {
    /// Reads a frame. Returns `None` if it is no whole segment.
    pub(super) fn read(frame: &[u8]) -> Option<Following> {
        let (begin, end) = place_of_tcp(frame)?;
        let (from, to) = addresses(frame.get(ETHERNET..begin)?)?;
        let tcp = frame.get(begin..end).filter(|tcp| tcp.len() >= 20)?;
        let word = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
        let flags = tcp[13];
        Some(Following {
            ends: ((from, word(0)).into(), (to, word(2)).into()),
            seq: Seq::new(long(4)),
            ack: Seq::new(long(8)),
            flags,
            is_bare: flags & (SYN | ACK | FIN | RST) == ACK && usize::from(tcp[12] >> 4) * 4 == tcp.len(),
        })
    }

    /// Returns true if it acknowledges something, and neither opens nor resets a connection.
    pub(super) fn is_acknowledgement(&self) -> bool {
        self.flags & (SYN | ACK | RST) == ACK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transparent::handshake::opening::tests::{OPTIONS, frame};

    #[test]
    fn a_bare_acknowledgement_is_told_from_others() {
        let ends = (
            "198.18.1.1:40000".parse().unwrap(),
            "198.18.2.1:7000".parse().unwrap(),
        );
        let read = |flags, options: &[u8], payload| {
            let read = Following::read(&frame(flags, 1, options, payload))?;
            Some((read.ends, read.is_bare))
        };
        assert_eq!(read(ACK, &OPTIONS, 0), Some((ends, true)));
        assert_eq!(read(ACK, &[], 5), Some((ends, false)), "payload");
        for flags in [SYN, SYN | ACK, ACK | FIN, ACK | RST, RST, 0] {
            assert_eq!(read(flags, &[], 0), Some((ends, false)), "{flags}");
        }
        let whole = frame(ACK, 64, &OPTIONS, 0);
        for cut in 0..whole.len() {
            assert_eq!(Following::read(&whole[..cut]), None, "{cut}");
        }
    }
}
