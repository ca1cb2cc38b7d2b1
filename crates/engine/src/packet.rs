//! Segments that user space writes: window announcements, and pieces of what was held.

use std::{net::SocketAddrV4, ops::Range};

use longsplice_dataplane::{Event, Leg, LegState};

pub(crate) const ETHERNET: usize = 14;
pub(crate) const IP_HEADER: usize = 20;
pub(crate) const TCP_HEADER: usize = 20;
/// NOP NOP TS 10 (RFC 7323 appendix A).
const TIMESTAMPS: usize = 12;
const TTL: u8 = 64;
pub(crate) const FLAG_FIN: u8 = 0x01;
pub(crate) const FLAG_PSH: u8 = 0x08;
pub(crate) const FLAG_ACK: u8 = 0x10;

/// Whether a held packet ends its stream.
pub(crate) fn has_fin(event: &Event) -> bool {
    let flags = event.packet.get(ETHERNET + IP_HEADER + 13);
    flags.is_some_and(|flags| flags & FLAG_FIN != 0)
}

/// A part of a held packet as a packet of its own, with its flags FIN and PSH only if it `ends` it. `None` if the packet is
/// not what the kernel half says it is.
pub(crate) fn piece(event: &Event, part: Range<usize>, ends: bool) -> Option<Vec<u8>> {
    let head = event.packet.get(..event.payload.start)?;
    let payload = event.packet.get(event.payload.clone())?;
    if head.len() < ETHERNET + IP_HEADER + TCP_HEADER {
        return None;
    }
    let mut p = head.to_vec();
    p.extend_from_slice(payload.get(part.clone())?);
    let length = u16::try_from(p.len() - ETHERNET).ok()?;
    let ip = p.get_mut(ETHERNET..)?;
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    let tcp = &mut ip[IP_HEADER..];
    let seq = event.seq.wrapping_add(u32::try_from(part.start).ok()?);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    if !ends {
        tcp[13] &= !(FLAG_FIN | FLAG_PSH);
    }
    seal(ip);
    Some(p)
}

/// A segment without payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    /// The field, scaled.
    pub(crate) window: u16,
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(u32, u32)>,
}

impl Segment {
    /// The IP packet.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let tcp_len = TCP_HEADER + if self.timestamps.is_some() { TIMESTAMPS } else { 0 };
        let mut p = vec![0; IP_HEADER + tcp_len];
        p[0] = 0x45;
        p[2..4].copy_from_slice(&((IP_HEADER + tcp_len) as u16).to_be_bytes());
        p[6] = 0x40; // DF, as TCP does
        p[8] = TTL;
        p[9] = 6;
        p[12..16].copy_from_slice(&self.from.ip().octets());
        p[16..20].copy_from_slice(&self.to.ip().octets());
        let t = &mut p[IP_HEADER..];
        t[0..2].copy_from_slice(&self.from.port().to_be_bytes());
        t[2..4].copy_from_slice(&self.to.port().to_be_bytes());
        t[4..8].copy_from_slice(&self.seq.to_be_bytes());
        t[8..12].copy_from_slice(&self.ack.to_be_bytes());
        t[12] = (tcp_len as u8 / 4) << 4;
        t[13] = self.flags;
        t[14..16].copy_from_slice(&self.window.to_be_bytes());
        if let Some((value, echo)) = self.timestamps {
            t[20..24].copy_from_slice(&[1, 1, 8, 10]);
            t[24..28].copy_from_slice(&value.to_be_bytes());
            t[28..32].copy_from_slice(&echo.to_be_bytes());
        }
        seal(&mut p);
        p
    }
}

/// The field that announces a window from `ack` to `edge`.
pub(crate) fn window_field(edge: u32, ack: u32, scale: u8) -> u16 {
    let room = (edge.wrapping_sub(ack) as i32).max(0) as u32 >> scale;
    u16::try_from(room).unwrap_or(u16::MAX)
}

/// A frame that says to our socket again that the peer of a leg has ended its stream. (Without a timestamp, which could be
/// older than one that the socket has seen.)
pub(crate) fn end_of_stream(leg: Leg, x: &LegState) -> Vec<u8> {
    let fin = Segment {
        from: leg.peer,
        to: leg.local,
        seq: x.base,
        ack: x.rx_ack,
        flags: FLAG_FIN | FLAG_ACK,
        window: window_field(x.rx_edge, x.rx_ack, x.scale_in),
        timestamps: None,
    };
    let mut frame = vec![0; ETHERNET];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame.extend(fin.bytes());
    frame
}

/// Puts both checksums of an IPv4 packet without options right.
pub(crate) fn seal(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let check = !fold(sum(&ip[..IP_HEADER]));
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    ip[IP_HEADER + 16..IP_HEADER + 18].fill(0);
    let length = (ip.len() - IP_HEADER) as u64;
    let check = !fold(sum(&ip[12..20]) + 6 + length + sum(&ip[IP_HEADER..]));
    ip[IP_HEADER + 16..IP_HEADER + 18].copy_from_slice(&check.to_be_bytes());
}

/// Of 16-bit words; an odd byte is the first of a word (RFC 1071).
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|w| u64::from(u16::from_be_bytes([w[0], w.get(1).copied().unwrap_or(0)])))
        .sum()
}

pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use longsplice_dataplane::{EventKind, Side};

    use super::*;

    /// Sums to zero with its checksum in it.
    fn is_sealed(ip: &[u8]) -> bool {
        let tcp = fold(sum(&ip[12..20]) + 6 + (ip.len() - IP_HEADER) as u64 + sum(&ip[IP_HEADER..]));
        fold(sum(&ip[..IP_HEADER])) == 0xffff && tcp == 0xffff
    }

    #[test]
    fn the_pieces_are_the_whole() {
        let mut packet = vec![0; ETHERNET + IP_HEADER + TCP_HEADER];
        packet[ETHERNET] = 0x45;
        packet[ETHERNET + 9] = 6;
        packet[ETHERNET + IP_HEADER + 12] = 5 << 4;
        packet[ETHERNET + IP_HEADER + 13] = FLAG_ACK | FLAG_PSH | FLAG_FIN;
        let start = packet.len();
        packet.extend((0..=100u8).collect::<Vec<_>>());
        let payload = start..packet.len();
        packet.extend([0; 7]);
        let event = Event {
            kind: EventKind::Held,
            serial: 1,
            side: Side::Client,
            ifindex: 1,
            seq: u32::MAX - 10,
            payload,
            packet,
        };
        let piece = |part: Range<usize>| piece(&event, part.clone(), part.end == 101);
        let (first, last) = (piece(0..31).unwrap(), piece(31..101).unwrap());
        for p in [&first, &last] {
            assert!(is_sealed(&p[ETHERNET..]));
            assert_eq!(
                usize::from(u16::from_be_bytes([p[16], p[17]])),
                p.len() - ETHERNET
            );
        }
        assert_eq!(first[start..], event.packet[start..start + 31]);
        assert_eq!(last[start..], event.packet[start + 31..start + 101]);
        assert_eq!(first[ETHERNET + IP_HEADER + 13], FLAG_ACK);
        assert_eq!(last[ETHERNET + IP_HEADER + 13], FLAG_ACK | FLAG_PSH | FLAG_FIN);
        assert_eq!(last[38..42], 20u32.to_be_bytes());
        assert!(piece(31..102).is_none());
        assert!(has_fin(&event));
    }
}
