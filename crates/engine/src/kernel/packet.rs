//! Writes segments in user space: window announcements, and pieces of held packets.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use longsplice_core::{family::mapped, plan::timestamps_length, seq::Seq};
use longsplice_dataplane::{Event, Leg, LegState};

pub(crate) const ETHERNET: usize = 14;
/// Length of a header without options (RFC 9293 section 3.1).
pub(crate) const TCP_HEADER: usize = 20;
/// Time to live, and hop limit.
const TTL: u8 = 64;
const TCP: u8 = 6;
pub(crate) const FLAG_FIN: u8 = 0x01;
pub(crate) const FLAG_RST: u8 = 0x04;
pub(crate) const FLAG_PSH: u8 = 0x08;
pub(crate) const FLAG_ACK: u8 = 0x10;

/// Layout of an IP packet of one family, as far as it is written here.
struct Layer {
    ethertype: u16,
    /// Length of the header without options or extension headers, in bytes.
    header: usize,
    /// Offset of the length field, and the number of bytes that it does not count.
    length: (usize, usize),
    /// Offsets of both addresses.
    addresses: Range<usize>,
    /// Offset of the header's checksum (IPv6 has none).
    checksum: Option<usize>,
}

const V4: Layer = Layer {
    ethertype: 0x0800,
    header: 20,
    length: (2, 0),
    addresses: 12..20,
    checksum: Some(10),
};

const V6: Layer = Layer {
    ethertype: 0x86dd,
    header: 40,
    length: (4, 40),
    addresses: 8..40,
    checksum: None,
};

impl Layer {
    fn of(ip: IpAddr) -> &'static Layer {
        match ip.is_ipv4() {
            true => &V4,
            false => &V6,
        }
    }

    fn of_packet(ip: &[u8]) -> Option<&'static Layer> {
        match ip.first()? >> 4 {
            4 => Some(&V4),
            6 => Some(&V6),
            _ => None,
        }
    }
}

/// Returns the length of IP and TCP headers without options: the difference of MTU and MSS (RFC 9293 section 3.7.1).
pub(crate) fn headers(peer: IpAddr) -> u32 {
    (Layer::of(peer).header + TCP_HEADER) as u32
}

/// Returns true if a held packet ends its stream.
pub(crate) fn has_fin(event: &Event) -> bool {
    let flags = event.packet.get(event.tcp + 13);
    flags.is_some_and(|flags| flags & FLAG_FIN != 0)
}

/// Returns the leg that a held packet came in on, or `None` if the packet does not match the kernel half's description.
pub(crate) fn leg(event: &Event) -> Option<Leg> {
    let ip = event.packet.get(ETHERNET..)?;
    let layer = Layer::of_packet(ip)?;
    let addresses = ip.get(layer.addresses.clone())?;
    let (from, to) = addresses.split_at(addresses.len() / 2);
    let address = |octets: &[u8]| -> Option<IpAddr> {
        match octets.len() {
            4 => Some(<[u8; 4]>::try_from(octets).ok()?.into()),
            _ => Some(<[u8; 16]>::try_from(octets).ok()?.into()),
        }
    };
    let tcp = event.packet.get(event.tcp..)?;
    let port = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
    Some(Leg::new(
        (address(from)?, port(0)?).into(),
        (address(to)?, port(2)?).into(),
    ))
}

/// Returns a part of a held packet as a packet of its own, with its flags FIN and PSH only if it `ends` it. `None` if the
/// packet does not match the kernel half's description.
pub(crate) fn piece(event: &Event, part: Range<usize>, ends: bool) -> Option<Vec<u8>> {
    let head = event.packet.get(..event.payload.start)?;
    let payload = event.packet.get(event.payload.clone())?;
    let mut p = head.to_vec();
    let tcp = p.get_mut(event.tcp..).filter(|t| t.len() >= TCP_HEADER)?;
    let seq = event.seq + u32::try_from(part.start).ok()?;
    tcp[4..8].copy_from_slice(&seq.raw().to_be_bytes());
    if !ends {
        tcp[13] &= !(FLAG_FIN | FLAG_PSH);
    }
    p.extend_from_slice(payload.get(part)?);
    seal(p.get_mut(ETHERNET..)?, event.tcp.checked_sub(ETHERNET)?)?;
    Some(p)
}

/// Describes a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// Source, of the same family as `to`.
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: Seq,
    pub(crate) ack: Seq,
    pub(crate) flags: u8,
    /// Value of the window field, scaled.
    pub(crate) window: u16,
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(u32, u32)>,
    /// Traffic class: the DSCP in the upper six bits (RFC 2474).
    pub(crate) class: u8,
}

impl Segment {
    /// Returns the IP packet of the segment without payload.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes_with(&[])
    }

    fn bytes_with(&self, payload: &[u8]) -> Vec<u8> {
        let mut p = ip_header(self.from.ip(), self.to.ip());
        set_traffic_class(&mut p, self.class);
        let at = p.len();
        let tcp_len = TCP_HEADER + timestamps_length(self.timestamps.is_some()) as usize;
        p.resize(at + tcp_len, 0);
        let t = &mut p[at..];
        t[0..2].copy_from_slice(&self.from.port().to_be_bytes());
        t[2..4].copy_from_slice(&self.to.port().to_be_bytes());
        t[4..8].copy_from_slice(&self.seq.raw().to_be_bytes());
        t[8..12].copy_from_slice(&self.ack.raw().to_be_bytes());
        t[12] = (tcp_len as u8 / 4) << 4;
        t[13] = self.flags;
        t[14..16].copy_from_slice(&self.window.to_be_bytes());
        if let Some((value, echo)) = self.timestamps {
            t[20..24].copy_from_slice(&[1, 1, 8, 10]);
            t[24..28].copy_from_slice(&value.to_be_bytes());
            t[28..32].copy_from_slice(&echo.to_be_bytes());
        }
        p.extend_from_slice(payload);
        // It cannot fail: the packet is short, and of one family.
        let _ = seal(&mut p, at);
        p
    }
}

/// Returns a header without its length and checksum.
fn ip_header(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let layer = Layer::of(from);
    let mut p = vec![0; layer.header];
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // Set DF, as TCP does.
            (p[0], p[6], p[8], p[9]) = (0x45, 0x40, TTL, TCP);
            p[layer.addresses.clone()].copy_from_slice(&[from.octets(), to.octets()].concat());
        }
        (from, to) => {
            let octets = [from, to].map(|ip| mapped(ip).octets());
            (p[0], p[6], p[7]) = (0x60, TCP, TTL);
            p[layer.addresses.clone()].copy_from_slice(&octets.concat());
        }
    }
    p
}

/// Returns the traffic class of an IP packet: DSCP, and ECN in the lower two bits. `None` if it is too short.
pub(crate) fn traffic_class(ip: &[u8]) -> Option<u8> {
    let &[first, second, ..] = ip else { return None };
    Some(match first >> 4 {
        6 => first << 4 | second >> 4,
        _ => second,
    })
}

/// Sets the traffic class of an IP header without checksum.
fn set_traffic_class(ip: &mut [u8], class: u8) {
    match ip[0] >> 4 {
        6 => (ip[0], ip[1]) = (ip[0] & 0xf0 | class >> 4, class << 4 | ip[1] & 0x0f),
        _ => ip[1] = class,
    }
}

/// Returns the field that announces a window from `ack` to `edge`.
pub(crate) fn window_field(edge: Seq, ack: Seq, scale: u8) -> u16 {
    let room = edge.bytes_since(ack) >> scale;
    u16::try_from(room).unwrap_or(u16::MAX)
}

/// Returns a frame that repeats to our socket that the peer of a leg has ended its stream.
pub(crate) fn end_of_stream(leg: Leg, x: &LegState) -> Vec<u8> {
    bare(leg, x, x.base, FLAG_FIN | FLAG_ACK)
}

/// Returns a frame in which the peer of a leg resets the connection: at `seq`, the number that its socket expects next.
pub(crate) fn reset(leg: Leg, x: &LegState, seq: Seq) -> Vec<u8> {
    bare(leg, x, seq, FLAG_RST | FLAG_ACK)
}

/// Returns a packet that asks the peer of a leg whether its connection is open: a byte that it has acknowledged, which it answers
/// with the number that it expects next (RFC 9293 section 3.10.7.4). It may answer segments without payload less often (RFC 5961
/// section 10).
pub(crate) fn question(leg: Leg, x: &LegState) -> Vec<u8> {
    let segment = Segment {
        from: leg.local,
        to: leg.peer,
        seq: x.rx_ack - 1,
        ack: x.tx_ack,
        flags: FLAG_ACK,
        window: window_field(x.tx_edge, x.tx_ack, x.scale_out),
        timestamps: x.timestamps.then_some((x.ts_sent, x.peer_ts)),
        class: 0,
    };
    segment.bytes_with(&[0])
}

/// Returns a frame of the peer of a leg without payload, and without a timestamp, which could be older than one that the
/// socket has seen.
fn bare(leg: Leg, x: &LegState, seq: Seq, flags: u8) -> Vec<u8> {
    let segment = Segment {
        from: leg.peer,
        to: leg.local,
        seq,
        ack: x.rx_ack,
        flags,
        window: window_field(x.rx_edge, x.rx_ack, x.scale_in),
        timestamps: None,
        class: 0,
    };
    let mut frame = vec![0; ETHERNET];
    frame[12..14].copy_from_slice(&Layer::of(leg.peer.ip()).ethertype.to_be_bytes());
    frame.extend(segment.bytes());
    frame
}

/// Sets the length and the checksums of an IP packet whose TCP header begins at `tcp`. `None` if it cannot be one.
pub(crate) fn seal(ip: &mut [u8], tcp: usize) -> Option<()> {
    let layer = Layer::of_packet(ip).filter(|layer| tcp >= layer.header)?;
    let (at, uncounted) = layer.length;
    let length = u16::try_from(ip.len() - uncounted).ok()?;
    ip[at..at + 2].copy_from_slice(&length.to_be_bytes());
    if let Some(at) = layer.checksum {
        ip[at..at + 2].fill(0);
        let check = !fold(sum(&ip[..tcp]));
        ip[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }
    ip[tcp + 16..tcp + 18].fill(0);
    let check = !fold(transport_sum(ip, tcp, layer));
    ip[tcp + 16..tcp + 18].copy_from_slice(&check.to_be_bytes());
    Some(())
}

/// Sums the pseudo header and the segment (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn transport_sum(ip: &[u8], tcp: usize, layer: &Layer) -> u64 {
    sum(&ip[layer.addresses.clone()]) + u64::from(TCP) + (ip.len() - tcp) as u64 + sum(&ip[tcp..])
}

/// Sums 16-bit words; an odd byte is the first of a word (RFC 1071).
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

    /// Returns true if its sum with the checksums is zero, and its length field is right.
    fn is_sealed(ip: &[u8], tcp: usize) -> bool {
        let layer = Layer::of_packet(ip).unwrap();
        let (at, uncounted) = layer.length;
        let length = usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
        length + uncounted == ip.len()
            && fold(transport_sum(ip, tcp, layer)) == 0xffff
            && (layer.checksum.is_none() || fold(sum(&ip[..tcp])) == 0xffff)
    }

    /// Returns IP headers, without and with options or an extension header.
    fn heads() -> [Vec<u8>; 4] {
        let v4 = ip_header([198, 18, 1, 1].into(), [198, 18, 1, 2].into());
        let v6 = ip_header("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let (mut with_options, mut extended) = (v4.clone(), v6.clone());
        with_options[0] = 0x46;
        with_options.extend([1, 1, 1, 0]);
        extended[6] = 0;
        extended.extend([TCP, 0, 1, 4, 0, 0, 0, 0]);
        [v4, v6, with_options, extended]
    }

    fn held(ip_header: &[u8]) -> Event {
        let mut packet = [&[0; ETHERNET], ip_header, &[0; TCP_HEADER]].concat();
        let tcp = ETHERNET + ip_header.len();
        packet[tcp + 12] = 5 << 4;
        packet[tcp + 13] = FLAG_ACK | FLAG_PSH | FLAG_FIN;
        let start = packet.len();
        packet.extend((0..=100u8).collect::<Vec<_>>());
        let payload = start..packet.len();
        // Offset in the frame, not in the packet.
        packet.extend([0; 7]);
        Event {
            kind: EventKind::Held,
            serial: 1,
            side: Side::Client,
            ifindex: 1,
            seq: Seq::new(u32::MAX - 10),
            payload,
            tcp,
            packet,
        }
    }

    #[test]
    fn the_pieces_are_the_whole() {
        for head in heads() {
            let event = held(&head);
            let (start, tcp) = (event.payload.start, event.tcp);
            let piece = |part: Range<usize>| piece(&event, part.clone(), part.end == 101);
            let (first, last) = (piece(0..31).unwrap(), piece(31..101).unwrap());
            for p in [&first, &last] {
                assert!(is_sealed(&p[ETHERNET..], head.len()));
            }
            assert_eq!(first[start..], event.packet[start..start + 31]);
            assert_eq!(last[start..], event.packet[start + 31..start + 101]);
            assert_eq!(first[tcp + 13], FLAG_ACK);
            assert_eq!(last[tcp + 13], FLAG_ACK | FLAG_PSH | FLAG_FIN);
            assert_eq!(last[tcp + 4..tcp + 8], 20u32.to_be_bytes());
            assert!(piece(31..102).is_none());
            assert!(has_fin(&event));
        }
    }

    #[test]
    fn what_cannot_be_a_segment_has_no_pieces() {
        for head in heads() {
            let event = held(&head);
            let with = |change: fn(&mut Event)| {
                let mut event = event.clone();
                change(&mut event);
                piece(&event, 0..1, false)
            };
            assert!(with(|_| {}).is_some());
            assert!(
                with(|e| e.payload.start = e.tcp + TCP_HEADER - 1).is_none(),
                "cut off"
            );
            assert!(with(|e| e.tcp = ETHERNET).is_none(), "no IP header");
            assert!(with(|e| e.packet[ETHERNET] = 0).is_none(), "not IP");
        }
    }

    #[test]
    fn an_end_of_stream_is_a_frame_of_its_family() {
        for (peer, local, ethertype) in [
            ("198.18.1.1:40000", "198.18.1.2:8080", [0x08, 0x00]),
            ("[2001:db8::1]:40000", "[2001:db8::2]:8080", [0x86, 0xdd]),
        ] {
            let leg = Leg {
                peer: peer.parse().unwrap(),
                local: local.parse().unwrap(),
            };
            let frame = end_of_stream(leg, &LegState::default());
            assert_eq!(frame[12..14], ethertype);
            let tcp = frame.len() - ETHERNET - TCP_HEADER;
            assert!(is_sealed(&frame[ETHERNET..], tcp));
            assert_eq!(frame.len(), ETHERNET + headers(leg.peer.ip()) as usize);
        }
    }
}
