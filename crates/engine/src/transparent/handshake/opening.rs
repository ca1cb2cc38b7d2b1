//! Reads the segments that open a connection, and prepares them to be sent on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use longsplice_core::seq::Seq;

use crate::{
    kernel::packet::{ETHERNET, Segment, TCP_HEADER, seal, traffic_class},
    services::rules::place_of_tcp,
};

pub(super) const SYN: u8 = 0x02;
pub(super) const ACK: u8 = 0x10;
pub(super) const FIN: u8 = 0x01;
pub(super) const RST: u8 = 0x04;
/// ECE and CWR ask for ECN in a SYN (RFC 3168 section 6.1.1); a built socket has no ECN.
const ECN: u8 = 0xc0;
/// Bits of a traffic class that belong to ECN (RFC 3168 section 5).
const ECN_BITS: u8 = 0x03;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const TIMESTAMPS: u8 = 8;

/// Lengths of IP headers. A SYN that is sent on has neither options nor extension headers.
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;

/// Largest shift (RFC 7323 section 2.3).
const LARGEST_SCALE: u8 = 14;

/// Holds a SYN, or the answer to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    pub(super) flags: u8,
    /// Never scaled in a SYN (RFC 7323 section 2.2).
    pub(super) window: u16,
    pub(super) offer: Offer,
    /// True if it may only go on as it came, since it has payload, or its packet has IP options or extension headers.
    pub(super) only_passes: bool,
    /// Packet to send on, from its IP header: one hop later, without ECN and without options that a built socket does not
    /// support.
    pub(super) onward: Vec<u8>,
}

/// Values of its options, and the traffic class of its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Offer {
    pub(super) mss: Option<u16>,
    pub(super) scale: Option<u8>,
    pub(super) sack: bool,
    /// TSval.
    pub(super) clock: Option<u32>,
    /// True if there were other options, which are blanked.
    pub(super) has_unknown: bool,
    /// Traffic class of its packet, without ECN: the DSCP in the upper six bits (RFC 2474).
    pub(super) class: u8,
}

impl Opening {
    /// Reads a frame. Returns `None` if it is no SYN, is not whole, or is on its last hop.
    pub(super) fn read(frame: &[u8]) -> Option<Opening> {
        let (begin, end) = place_of_tcp(frame)?;
        let mut onward = frame.get(ETHERNET..end)?.to_vec();
        let (from, to) = hop(&mut onward)?;
        let at = begin - ETHERNET;
        let class = traffic_class(&onward)? & !ECN_BITS;
        let tcp = onward.get_mut(at..).filter(|tcp| tcp.len() >= TCP_HEADER)?;
        let flags = tcp[13];
        let payload = usize::from(tcp[12] >> 4) * 4;
        if flags & SYN == 0 || !(TCP_HEADER..=tcp.len()).contains(&payload) {
            return None;
        }
        let only_passes = at > (if from.is_ipv4() { V4_HEADER } else { V6_HEADER }) || payload < tcp.len();
        tcp[12] &= 0xf0;
        tcp[13] &= !ECN;
        let offer = Offer {
            class,
            ..Offer::read(&mut tcp[TCP_HEADER..payload])
        };
        let word = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
        let opening = Opening {
            from: (from, word(0)).into(),
            to: (to, word(2)).into(),
            seq: Seq::new(long(4)),
            ack: Seq::new(long(8)),
            flags: flags & (SYN | ACK),
            window: word(14),
            offer,
            only_passes,
            onward: Vec::new(),
        };
        seal(&mut onward, at)?;
        Some(Opening { onward, ..opening })
    }
}

impl Opening {
    /// Returns true if it has what a built socket does not support.
    pub(super) fn has_unknown(&self) -> bool {
        self.offer.has_unknown || self.only_passes
    }

    /// Returns the answer that a server with this `offer` gives to a SYN: with the number `seq`, and a window of `window`
    /// bytes.
    pub(super) fn answer(syn: &Opening, offer: Offer, seq: Seq, window: u16) -> Opening {
        let segment = Segment {
            from: syn.to,
            to: syn.from,
            seq,
            ack: syn.seq + 1,
            flags: SYN | ACK,
            window,
            timestamps: None,
            class: offer.class,
        };
        let mut onward = segment.bytes();
        let tcp = onward.len() - TCP_HEADER;
        onward.extend(offer.bytes(syn.offer.clock));
        onward[tcp + 12] = ((onward.len() - tcp) as u8 / 4) << 4;
        // It cannot fail: the packet is short, and of one family.
        let _ = seal(&mut onward, tcp);
        Opening {
            from: syn.to,
            to: syn.from,
            seq,
            ack: syn.seq + 1,
            flags: SYN | ACK,
            window,
            offer,
            only_passes: false,
            onward,
        }
    }
}

/// Adds milliseconds to the TSval of a packet, from its IP header on. `None` if it has none.
pub(super) fn advance_clock(packet: &mut [u8], millis: u32) -> Option<()> {
    let begin = match packet.first()? {
        v4 if v4 >> 4 == 4 => usize::from(v4 & 0xf) * 4,
        _ => V6_HEADER,
    };
    let mut at = begin + TCP_HEADER;
    while let Some(&kind) = packet.get(at) {
        let length = match kind {
            END => return None,
            NOP => 1,
            _ => usize::from(*packet.get(at + 1)?).max(2),
        };
        if kind == TIMESTAMPS {
            let value = packet.get_mut(at + 2..at + 6)?;
            let clock = u32::from_be_bytes((&*value).try_into().ok()?);
            value.copy_from_slice(&clock.wrapping_add(millis).to_be_bytes());
            return seal(packet, begin);
        }
        at += length;
    }
    None
}

/// Decrements the hop count, and returns source and destination.
fn hop(ip: &mut [u8]) -> Option<(IpAddr, IpAddr)> {
    let v6 = ip.first()? >> 4 == 6;
    let left = ip.get_mut(if v6 { 7 } else { 8 })?;
    *left = left.checked_sub(1).filter(|left| *left > 0)?;
    addresses(ip)
}

/// Returns source and destination of an IP header.
pub(super) fn addresses(ip: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v6 = ip.first()? >> 4 == 6;
    let v4_at = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 4] = ip.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets).into())
    };
    let v6_at = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = ip.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(octets).into())
    };
    match v6 {
        true => Some((v6_at(8)?, v6_at(24)?)),
        false => Some((v4_at(12)?, v4_at(16)?)),
    }
}

impl Offer {
    /// Returns what an answer may offer if the server would offer `self`: no more than the client has (RFC 7323 section
    /// 1.3, RFC 2018 section 2).
    pub(super) fn toward(self, client: Offer) -> Offer {
        Offer {
            mss: self.mss,
            scale: self.scale.filter(|_| client.scale.is_some()),
            sack: self.sack && client.sack,
            clock: self.clock.filter(|_| client.clock.is_some()),
            has_unknown: false,
            class: self.class,
        }
    }

    /// Writes the options, padded to whole words; `echo` is the TSecr.
    fn bytes(self, echo: Option<u32>) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(mss) = self.mss {
            options.extend([MSS, 4]);
            options.extend(mss.to_be_bytes());
        }
        if self.sack {
            options.extend([SACK_PERMITTED, 2, NOP, NOP]);
        }
        if let Some(clock) = self.clock {
            options.extend([NOP, NOP, TIMESTAMPS, 10]);
            options.extend(clock.to_be_bytes());
            options.extend(echo.unwrap_or_default().to_be_bytes());
        }
        if let Some(scale) = self.scale {
            options.extend([NOP, WINDOW_SCALE, 3, scale]);
        }
        options
    }

    /// Reads options, and blanks unknown ones. Blanks everything behind an option that is cut off, too.
    fn read(options: &mut [u8]) -> Offer {
        let mut offer = Offer::default();
        let mut at = 0;
        while at < options.len() {
            let rest = &mut options[at..];
            let length = match rest[0] {
                END => break,
                NOP => 1,
                _ => rest.get(1).map_or(0, |n| usize::from(*n)),
            };
            let Some(option) = rest.get_mut(..length).filter(|o| !o.is_empty()) else {
                rest.fill(NOP);
                offer.has_unknown = true;
                break;
            };
            match (option[0], length) {
                (NOP, 1) => {}
                (MSS, 4) => offer.mss = Some(u16::from_be_bytes([option[2], option[3]])),
                (WINDOW_SCALE, 3) => offer.scale = Some(option[2].min(LARGEST_SCALE)),
                (SACK_PERMITTED, 2) => offer.sack = true,
                (TIMESTAMPS, 10) => {
                    offer.clock = Some(u32::from_be_bytes([option[2], option[3], option[4], option[5]]));
                }
                _ => {
                    option.fill(NOP);
                    offer.has_unknown = true;
                }
            }
            at += length;
        }
        offer
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Holds the options of Linux, and one of MPTCP between them.
    pub(in super::super) const OPTIONS: [u8; 32] = [
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 1, 2, 0, 0, 0, 0, 1, 3, 3, 7, 30, 8, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0,
    ];

    pub(in super::super) fn frame(flags: u8, ttl: u8, options: &[u8], payload: usize) -> Vec<u8> {
        let total = 40 + options.len() + payload;
        let mut f = vec![0; 12];
        f.extend([8, 0, 0x45, 0, 0, total as u8, 0, 0, 0x40, 0, ttl, 6, 0, 0]);
        f.extend([198, 18, 1, 1, 198, 18, 2, 1, 0x9c, 0x40, 0x1b, 0x58]);
        f.extend([0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 9]);
        f.extend([
            ((20 + options.len()) as u8 / 4) << 4,
            flags,
            0xfa,
            0xf0,
            0,
            0,
            0,
            0,
        ]);
        f.extend(options);
        f.resize(f.len() + payload, 7);
        f
    }

    #[test]
    fn a_syn_is_read_and_made_fit_to_go_on() {
        let read = Opening::read(&frame(SYN | ECN, 64, &OPTIONS, 0)).unwrap();
        assert_eq!(
            (read.from.to_string(), read.to.to_string()),
            ("198.18.1.1:40000".into(), "198.18.2.1:7000".into())
        );
        assert_eq!(
            (read.seq, read.ack, read.flags, read.window),
            (Seq::new(0xffff_fffe), Seq::new(9), SYN, 64_240)
        );
        let offer = Offer {
            mss: Some(1_460),
            scale: Some(7),
            sack: true,
            clock: Some(0x102),
            has_unknown: true,
            class: 0,
        };
        assert_eq!(read.offer, offer);
        let onward = &read.onward;
        assert_eq!((onward[8], onward[33]), (63, SYN), "a hop, and no ECN");
        let mut blanked = OPTIONS;
        blanked[20..28].fill(NOP);
        assert_eq!(onward[40..], blanked);
        assert_eq!(
            crate::kernel::packet::fold(crate::kernel::packet::sum(&onward[..20])),
            0xffff
        );
    }

    #[test]
    fn what_is_no_opening_is_not_read() {
        let syn = frame(SYN, 64, &OPTIONS, 0);
        for cut in 0..syn.len() {
            assert_eq!(Opening::read(&syn[..cut]), None, "{cut}");
        }
        assert_eq!(Opening::read(&frame(ACK, 64, &[], 0)), None, "no SYN");
        let mut short = frame(SYN, 64, &[], 5);
        short[14 + 20 + 12] = 4 << 4;
        assert_eq!(Opening::read(&short), None, "no whole header");
        for ttl in [0, 1] {
            assert_eq!(Opening::read(&frame(SYN, ttl, &[], 0)), None, "the last hop");
        }
    }

    #[test]
    fn what_may_only_pass_is_told_from_what_may_be_sent_on() {
        let only_passes = |frame: &[u8]| Opening::read(frame).unwrap().only_passes;
        let plain = frame(SYN, 64, &OPTIONS, 0);
        assert!(!only_passes(&plain));
        assert!(only_passes(&frame(SYN, 64, &OPTIONS, 5)), "payload");
        let mut routed = plain.clone();
        // Insert an empty loose source route, and adapt both lengths.
        routed.splice(34..34, [131, 3, 4, 0]);
        routed[14] = 0x46;
        routed[17] += 4;
        assert!(only_passes(&routed), "options of IPv4");
        let mut v6 = plain[..12].to_vec();
        v6.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
        v6.extend([0x20; 32]);
        v6.extend(&frame(SYN, 64, &[], 0)[34..]);
        assert!(!only_passes(&v6));
        // Insert an empty header of options for the destination.
        v6.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
        v6[19] += 8;
        v6[20] = 60;
        assert!(only_passes(&v6), "an extension header");
    }

    #[test]
    fn the_clock_of_a_repeated_answer_goes_on() {
        let mut packet = Opening::read(&frame(SYN, 64, &OPTIONS, 0)).unwrap().onward;
        advance_clock(&mut packet, 300).unwrap();
        let mut framed = frame(SYN, 64, &OPTIONS, 0)[..14].to_vec();
        framed.extend(&packet);
        assert_eq!(Opening::read(&framed).unwrap().offer.clock, Some(0x102 + 300));
        let tcp = &packet[20..];
        let pseudo = [&packet[12..20], &[0, 6], &(tcp.len() as u16).to_be_bytes()[..]].concat();
        let sum = |bytes: &[u8]| crate::kernel::packet::sum(bytes);
        assert_eq!(crate::kernel::packet::fold(sum(&pseudo) + sum(tcp)), 0xffff);
        let mut without = Opening::read(&frame(SYN, 64, &[2, 4, 5, 0xb4], 0))
            .unwrap()
            .onward;
        assert_eq!(advance_clock(&mut without, 300), None);
    }

    #[test]
    fn options_that_are_cut_off_are_blanked() {
        let unknown = Offer {
            has_unknown: true,
            ..Offer::default()
        };
        let permitted = Offer {
            sack: true,
            ..unknown
        };
        for (options, offer) in [
            ([4, 2, 8, 10], permitted),
            ([4, 2, 3, 0], permitted),
            ([2, 1, 3, 3], unknown),
        ] {
            let mut left = options;
            assert_eq!(Offer::read(&mut left), offer, "{options:?}");
        }
        let mut cut = [4, 2, 8, 10];
        Offer::read(&mut cut);
        assert_eq!(cut, [4, 2, NOP, NOP]);
    }
}
