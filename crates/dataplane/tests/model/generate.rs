//! Generates states and segments: random, but with most numbers near those that matter.

use longsplice_core::seq::{Offset, Seq};
use longsplice_dataplane::Side;
use longsplice_model::{self as machine, Leg, Mode, Placement, Record, Slot, seen, traits};

use crate::{
    both::Both,
    support::random::Random,
    support::{
        options::{Opt, write},
        packet::*,
    },
};

/// Holds a flow's random numbers that stay: all others are near these.
#[derive(Debug, Clone, Copy, Default)]
pub struct Anchors {
    /// Numbers in the stream of each peer, and in the one toward it.
    pub peer: [u32; 2],
    pub local: [u32; 2],
    pub clock: [u32; 2],
}

impl Both {
    /// Sets another state in both.
    pub fn begin(&mut self, random: &mut Random) {
        let a = Anchors {
            peer: [random.u32(), random.u32()],
            local: [random.u32(), random.u32()],
            clock: [random.u32(), random.u32()],
        };
        self.anchors = a;
        let seq_off = [0, 1].map(|i: usize| Offset::new(a.local[1 - i].wrapping_sub(a.peer[i])));
        let ts_off = [random.u32(), random.u32()];
        let scales = [random.below(15) as u8, random.below(15) as u8];
        let mapped = random.once_in(2);
        let mut legs = [0, 1].map(|i: usize| {
            let rec = Record {
                seq_off: seq_off[i],
                ack_off: -seq_off[1 - i],
                tsval_off: Offset::new(ts_off[i]),
                tsecr_off: -Offset::new(ts_off[1 - i]),
                wscale_in: scales[i],
                wscale_out: random.pick(&[scales[1 - i], 0, 7, 14]),
                traits: traits::TIMESTAMPS
                    | random.pick(&[0, traits::SACK])
                    | random.pick(&[0, 0, traits::BLANK_SACK]),
                placement: Placement::Slotted,
                seen: random.pick(&[0, 0, 0, seen::FIN, seen::FIN, seen::RST, seen::FIN | seen::RST]),
                armed: random.once_in(3),
                rx_end: Seq::new(random.near(a.peer[i])),
                rx_ack: Seq::new(random.near(a.local[i])),
                rx_edge: Seq::new(
                    random
                        .near(a.local[i])
                        .wrapping_add(random.pick(&[0, 5000, 200_000])),
                ),
                ts_high: Seq::new(random.near(a.clock[i].wrapping_add(ts_off[i]))),
                trap: Seq::new(random.near(a.peer[i])),
                bytes: u64::from(random.u32()),
            };
            let number = |random: &mut Random, near: u32| Seq::new(random.near(near));
            Leg {
                rec,
                cut: number(random, a.peer[i]),
                rx_ts: number(random, a.clock[i]),
                loc_acked: number(random, a.local[i]),
                loc_end: number(random, a.local[i]),
                loc_ack: number(random, a.peer[i]),
                loc_edge: number(random, a.peer[i].wrapping_add(100_000)),
                tx_ack: number(random, a.peer[i]),
                tx_edge: number(random, a.peer[i].wrapping_add(100_000)),
                max_inflight: random.pick(&[0, 0, 1000, 100_000]),
                adj_seq: Offset::new(if mapped { random.u32() } else { 0 }),
                adj_ack: Offset::new(if mapped { random.u32() } else { 0 }),
                base: number(random, a.peer[i]),
                bypassed: random.pick(&[0, 0, 1, 1, 5, 2, 8, 9]),
                delivered: number(random, a.peer[i]),
                rx_shrunk: random.pick(&[0, 0, 1000, 5000]),
                loc_shrunk: random.pick(&[0, 0, 1000, 100_000]),
            }
        });
        for leg in &mut legs {
            if random.once_in(2) {
                leg.delivered = leg.cut;
            }
            if random.once_in(2) {
                leg.loc_acked = leg.loc_end;
            }
        }
        let mode = random.pick(&[
            Mode::Track,
            Mode::Track,
            Mode::Drain,
            Mode::Drain,
            Mode::Drain,
            Mode::Final,
            Mode::Final,
            Mode::Undrain,
            Mode::Undrain,
            Mode::Undrain,
            Mode::Freeze,
            Mode::Moved,
            Mode::Aborted,
            Mode::Replaced,
            Mode::Free,
        ]);
        let slot = Slot {
            mode,
            flags: random.below(16) | random.pick(&[0, machine::slot_flag::PAUSE]),
            leg: legs,
        };
        let placement = match random.below(8) {
            0 => Placement::Detached,
            1 => Placement::Alone,
            _ => Placement::Slotted,
        };
        self.machine = machine::Flow {
            records: legs.map(|leg| Some(Record { placement, ..leg.rec })),
            slot,
        };
        self.write();
    }

    fn flags(random: &mut Random) -> u8 {
        match random.below(16) {
            0..7 => ACK,
            7..9 => ACK | PSH,
            9 | 10 => ACK | FIN,
            11 => RST,
            12 => RST | ACK,
            13 => random.pick(&[0, PSH, FIN, ACK | FIN | RST]),
            14 => random.pick(&[SYN, SYN | ACK, SYN | FIN, SYN | RST]),
            _ => ACK | 0x20,
        }
    }

    /// Returns a packet with numbers near these, and SACK edges near the acknowledgement's.
    fn packet(&self, random: &mut Random, base: Packet, seq: u32, ack: u32, clock: u32, echo: u32) -> Packet {
        let blocks = |random: &mut Random| {
            let n = random.below(3) + 1;
            Opt::Sack((0..n).map(|_| (random.near(ack), random.near(ack))).collect())
        };
        let ts = Opt::Timestamps(random.near(clock), random.pick(&[0, echo]));
        let flags = Both::flags(random);
        // No TCP selects without an acknowledgement, nor with a reset.
        let kinds = if flags & (ACK | RST) == ACK { 8 } else { 5 };
        let options = match random.below(kinds) {
            0 | 1 => vec![],
            2..5 => vec![Opt::Nop, Opt::Nop, ts],
            5 => vec![Opt::Nop, Opt::Nop, ts, Opt::Nop, Opt::Nop, blocks(random)],
            6 => vec![blocks(random), ts],
            _ => vec![Opt::Nop, blocks(random)],
        };
        let len = random.pick(&[0, 0, 0, 1, 2, 99, 100, 101, 1000, 1400]);
        Packet {
            seq: random.near(seq),
            ack: random.near(ack),
            flags,
            window: random.pick(&[0, 1, 3, 500, 5000, 65_535]),
            options: write(&options),
            payload: pattern(len),
            ..base
        }
    }

    pub(super) fn peer_packet(&self, random: &mut Random, side: Side) -> Packet {
        let x = self.machine.slot.leg[side];
        let a = self.anchors;
        // Pick a significant number exactly, often.
        let places = [x.rec.rx_end, x.cut, x.base, x.tx_ack, Seq::new(a.peer[side])];
        let seq = random.pick(&places).raw();
        let acked = x.rec.rx_ack;
        let late = [
            acked - 70_000,
            acked - 300_000,
            acked - (65_535 << x.rec.wscale_in),
        ];
        let acks = [acked, x.loc_end, x.loc_acked, Seq::new(a.local[side])];
        let ack = match random.once_in(6) {
            true => random.pick(&late).raw(),
            false => random.pick(&acks).raw(),
        };
        let told = self.machine.slot.leg[side.other()].rec.ts_high;
        let echoes = [told, told, told + 1, told - (1 << 20), told - ((1 << 20) + 1)];
        let echo = random.pick(&echoes).raw();
        let base = self.flow.peer_segment(side);
        self.packet(random, base, seq, ack, a.clock[side], echo)
    }

    pub(super) fn local_packet(&self, random: &mut Random, side: Side) -> Packet {
        let x = self.machine.slot.leg[side];
        let a = self.anchors;
        let seq = random.pick(&[x.loc_end, Seq::new(a.local[side])]).raw();
        let ack = random
            .pick(&[x.loc_ack, x.cut, x.base, x.tx_ack, Seq::new(a.peer[side])])
            .raw();
        let base = self.flow.local_segment(side);
        let far = a.clock[side.other()].wrapping_add(self.machine.slot.leg[side.other()].rec.tsval_off.raw());
        let mut packet = self.packet(random, base, seq, ack, far, a.clock[side]);
        packet.seq = packet.seq.wrapping_add(x.adj_ack.raw());
        packet.ack = packet.ack.wrapping_add(x.adj_seq.raw());
        packet
    }
}
