//! Completes the checksum of a packet that was taken before its device had computed it.

use crate::kernel::packet::{self, ETHERNET, TCP_HEADER};

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
/// Hop-by-hop, routing and destination options (RFC 8200 section 4): the headers with a length that may stand before TCP.
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// Sets the checksums of a whole packet, whatever they were. `None`, and nothing changed, if it is no such packet.
pub(super) fn seal(packet: &mut [u8]) -> Option<()> {
    let (begin, end) = place_of_tcp(packet)?;
    packet::seal(packet.get_mut(ETHERNET..end)?, begin - ETHERNET)
}

/// Returns the beginning and the end of TCP in a frame; `None` if it is no whole packet of TCP.
pub(crate) fn place_of_tcp(packet: &[u8]) -> Option<(usize, usize)> {
    let (begin, end) = match *packet.get(12..14)?.first_chunk()? {
        IPV4 => ipv4(packet)?,
        IPV6 => ipv6(packet)?,
        _ => return None,
    };
    (end.checked_sub(begin)? >= TCP_HEADER && end <= packet.len()).then_some((begin, end))
}

type Place = (usize, usize);

fn be16(packet: &[u8], at: usize) -> Option<usize> {
    let bytes = packet.get(at..at + 2)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes).into())
}

fn ipv4(packet: &[u8]) -> Option<Place> {
    let header = usize::from(packet.get(ETHERNET)? & 15) * 4;
    let fragment = be16(packet, ETHERNET + 6)? & 0x3fff != 0;
    let whole = *packet.get(ETHERNET + 9)? == TCP && header >= 20 && !fragment;
    let end = ETHERNET + be16(packet, ETHERNET + 2)?;
    whole.then_some((ETHERNET + header, end))
}

fn ipv6(packet: &[u8]) -> Option<Place> {
    let mut next = *packet.get(ETHERNET + 6)?;
    let mut at = ETHERNET + 40;
    let end = at + be16(packet, ETHERNET + 4)?;
    while EXTENSIONS.contains(&next) {
        next = *packet.get(at)?;
        at += (usize::from(*packet.get(at + 1)?) + 1) * 8;
    }
    (next == TCP).then_some((at, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::packet::{fold, sum};

    /// Returns frames of a SYN, without checksums.
    fn frames() -> [Vec<u8>; 2] {
        let tcp = [
            0x9c, 0x40, 0, 80, 0, 0, 3, 0xe8, 0, 0, 0, 0, 0x50, 2, 0x20, 0, 0, 0, 0, 0,
        ];
        let mut v4 = [
            [0; 12].as_slice(),
            &IPV4,
            &[0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0],
        ]
        .concat();
        v4.extend([198, 18, 1, 2, 198, 18, 2, 2]);
        let mut v6 = [[0; 12].as_slice(), &IPV6, &[0x60, 0, 0, 0, 0, 28, 60, 64]].concat();
        v6.extend([0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        v6.extend([0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        v6.extend([6, 0, 1, 4, 0, 0, 0, 0]);
        [v4, v6].map(|ip| [ip.as_slice(), &tcp].concat())
    }

    #[test]
    fn the_sum_over_a_sealed_packet_is_zero() {
        for (mut frame, tcp) in frames().into_iter().zip([34, 62]) {
            frame.extend([0; 6]); // a short frame is padded
            frame[tcp + 16] = 0x55;
            seal(&mut frame).unwrap();
            let addresses = if tcp == 34 { 26..34 } else { 22..54 };
            let whole = sum(&frame[addresses]) + 6 + 20 + sum(&frame[tcp..tcp + 20]);
            assert_eq!(fold(whole), 0xffff);
        }
    }

    #[test]
    fn what_is_no_whole_packet_is_left_alone() {
        for frame in frames() {
            for len in 0..frame.len() {
                let mut cut = frame[..len].to_vec();
                assert_eq!(seal(&mut cut), None, "{len}");
                assert_eq!(cut, frame[..len]);
            }
        }
        let mut fragment = frames()[0].clone();
        fragment[20] = 0x20;
        assert_eq!(seal(&mut fragment), None);
    }
}
