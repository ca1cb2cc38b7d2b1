//! Translates segments independently, by the papers and the RFCs rather than the program under test: on fields, in wide
//! arithmetic, with the checksums computed from scratch afterwards.

use std::net::SocketAddr;

use super::{
    options::{self, Opt},
    packet::{Packet, RST},
};

/// Holds the constants of a direction.
#[derive(Debug, Clone)]
pub struct Reference {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub src_mac: [u8; 6],
    pub dst_mac: [u8; 6],
    /// Offset of x's sequence numbers.
    pub seq: u32,
    /// Offset of the far end's.
    pub far_seq: u32,
    pub ts: u32,
    pub far_ts: u32,
    pub scale_in: u8,
    pub scale_out: u8,
    pub blank_sack: bool,
    /// Highest TSval that the far end was shown.
    pub ts_high: u32,
}

/// Says if a segment can be x's own: only then its numbers are believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Belief {
    InPlace,
    Stray,
}

/// Returns a translated segment with the headers that it has on a leg of the other version of IP: `serial` is the flow's.
pub fn across(translated: Packet, serial: u32) -> Packet {
    Packet {
        id: 0,
        fragment: 0x4000,
        flow_label: serial.wrapping_mul(0x9e37_79b1) >> 12,
        ip_options: Vec::new(),
        extensions: Vec::new(),
        ..translated
    }
}

impl Reference {
    /// Returns the far end's view of a segment of x. The time in a reset is not believed: nothing else in it is checked.
    pub fn translate(&mut self, p: &Packet) -> Packet {
        let belief = if p.flags & RST == 0 {
            Belief::InPlace
        } else {
            Belief::Stray
        };
        self.translate_as(p, belief)
    }

    /// Returns the far end's view of a segment out of the window: its TSval is as high as it may be without being noted.
    pub fn translate_stray(&mut self, p: &Packet) -> Packet {
        self.translate_as(p, Belief::Stray)
    }

    fn translate_as(&mut self, p: &Packet, belief: Belief) -> Packet {
        let window = (u64::from(p.window) << self.scale_in) >> self.scale_out;
        Packet {
            dst_mac: self.dst_mac,
            src_mac: self.src_mac,
            ttl: p.hops_behind(),
            src: self.src,
            dst: self.dst,
            seq: p.seq.wrapping_add(self.seq),
            ack: p.ack.wrapping_sub(self.far_seq),
            window: window.min(65535) as u16,
            options: self.options(&p.options, belief),
            ..p.clone()
        }
    }

    fn options(&mut self, bytes: &[u8], belief: Belief) -> Vec<u8> {
        let shift = |edge: u32| edge.wrapping_sub(self.far_seq);
        let mut ts_high = self.ts_high;
        let translated: Vec<Opt> = options::read(bytes)
            .into_iter()
            .flat_map(|option| match option {
                Opt::Timestamps(value, echo) => {
                    let value = value.wrapping_add(self.ts);
                    if belief == Belief::InPlace && (value.wrapping_sub(ts_high) as i32) >= 0 {
                        ts_high = value;
                    }
                    let echo = if echo == 0 {
                        0
                    } else {
                        echo.wrapping_sub(self.far_ts)
                    };
                    vec![Opt::Timestamps(ts_high, echo)]
                }
                Opt::Sack(blocks) if self.blank_sack => vec![Opt::Nop; 2 + 8 * blocks.len()],
                Opt::Sack(blocks) => {
                    vec![Opt::Sack(
                        blocks.into_iter().map(|(l, r)| (shift(l), shift(r))).collect(),
                    )]
                }
                other => vec![other],
            })
            .collect();
        self.ts_high = ts_high;
        options::write(&translated)
    }
}
