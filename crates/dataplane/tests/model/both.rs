//! A flow in the kernel, and the same one in the machine.

use std::collections::BTreeMap;

use longsplice_core::{
    machine::{
        self, Leg, Mode, Outcome, Passage, Placement, Record, Slot, Transfer, Verdict, Wake, seen, traits,
    },
    seq::{Offset, Seq},
};
use longsplice_dataplane::{EventKind, Events, Ran, Side};

use crate::{
    convert::{brief, difference, read_record, read_slot, write_record, write_slot},
    expect,
    random::Random,
    support::{
        flow::{Flow, OK, Plan, REDIRECT, SHOT, leg, legs},
        net::{OUR_MAC, PEER_MAC},
        options::{Opt, write},
        packet::*,
        raw::Maps,
        tap::Tap,
    },
};

/// What is random about a flow for good: everything is near these.
#[derive(Debug, Clone, Copy, Default)]
struct Anchors {
    /// Of the stream of each peer, and of the one toward it.
    peer: [u32; 2],
    local: [u32; 2],
    clock: [u32; 2],
}

pub struct Both {
    flow: Flow,
    maps: Maps,
    taps: [Tap; 2],
    events: Events,
    machine: machine::Flow,
    anchors: Anchors,
    seen: BTreeMap<String, u64>,
    /// How often each fate came up.
    fates: BTreeMap<String, u64>,
}

fn machine_side(side: Side) -> machine::Side {
    machine::Side::BOTH[side.index()]
}

impl Both {
    pub fn new() -> Both {
        let flow = Flow::track(Plan::default());
        flow.net.deaf();
        for side in Side::BOTH {
            flow.plane.attach(flow.ifindex(side)).expect("attached");
        }
        Both {
            maps: Maps::open(&flow.plane.instance),
            taps: ["a1", "b1"].map(|name| Tap::new(flow.net.ifindex(name))),
            events: flow.plane.events().expect("the ring"),
            machine: machine::Flow::default(),
            anchors: Anchors::default(),
            seen: flow.plane.verdicts(),
            fates: BTreeMap::new(),
            flow,
        }
    }

    /// Says what was tried: a fate that never comes up is not tested.
    pub fn summary(&self) {
        for (fate, times) in &self.fates {
            println!("{times:7} {fate}");
        }
    }

    /// Another state, in both.
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
                seen: random.pick(&[0, 0, 0, seen::FIN, seen::RST]),
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
                room: random.pick(&[0, 0, 1000, 100_000]),
                adj_seq: Offset::new(if mapped { random.u32() } else { 0 }),
                adj_ack: Offset::new(if mapped { random.u32() } else { 0 }),
                base: number(random, a.peer[i]),
                owed: random.below(2),
                read_to: number(random, a.peer[i]),
            }
        });
        for leg in &mut legs {
            if random.once_in(2) {
                leg.read_to = leg.cut;
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
            flags: random.below(16),
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

    /// Into the kernel.
    fn write(&self) {
        let index = self.flow.slot().index();
        let mut slot = self.maps.slot(index);
        slot.serial = 77;
        write_slot(&mut slot, &self.machine.slot);
        for side in Side::BOTH {
            let i = side.index();
            let far = crate::support::raw::tuple(leg(side.other()));
            let rec = &mut slot.leg[i].rec;
            (rec.saddr, rec.daddr, rec.sport, rec.dport) = (far.daddr, far.saddr, far.dport, far.sport);
            rec.traits = (rec.traits & !1) | u8::from(side == Side::Server);
            (rec.serial, rec.mss) = (77, 1460);
            let mut record = *rec;
            let model = self.machine.records[i].as_ref();
            if let Some(model) = model {
                write_record(&mut record, model);
                record.r#where = if model.placement == Placement::Slotted {
                    index
                } else {
                    0
                };
            }
            self.maps.set_record(leg(side), model.map(|_| &record));
        }
        self.maps.set_slot(index, &slot);
    }

    /// Out of the kernel.
    fn read(&self) -> machine::Flow {
        machine::Flow {
            records: Side::BOTH.map(|side| self.maps.record(leg(side)).map(|r| read_record(&r))),
            slot: read_slot(&self.maps.slot(self.flow.slot().index())),
        }
    }

    /// Something happens to both; what differs afterwards.
    pub fn step(&mut self, random: &mut Random) -> Result<(), String> {
        let before = self.machine;
        let side = random.pick(&Side::BOTH);
        let (what, result) = match random.below(10) {
            0..6 => {
                let packet = self.peer_packet(random, side);
                (
                    format!("ingress {side:?} {packet:?}"),
                    self.ingress(side, &packet),
                )
            }
            6..9 => {
                let packet = self.local_packet(random, side);
                (format!("egress {side:?} {packet:?}"), self.egress(side, &packet))
            }
            _ if random.once_in(2) => ("wake".to_owned(), self.wake()),
            _ => ("release".to_owned(), self.release()),
        };
        let result = result.and_then(|()| match difference(&self.read(), &self.machine) {
            None => Ok(()),
            Some(text) => Err(format!("the state differs:\n{text}")),
        });
        result.map_err(|text| format!("{text}\n{what}\nbefore it: {}", brief(&before)))
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

    /// With the numbers near these, and SACK edges near the acknowledgement's.
    fn packet(&self, random: &mut Random, base: Packet, seq: u32, ack: u32, clock: u32, echo: u32) -> Packet {
        let blocks = |random: &mut Random| {
            let n = random.below(3) + 1;
            Opt::Sack((0..n).map(|_| (random.near(ack), random.near(ack))).collect())
        };
        let ts = Opt::Timestamps(random.near(clock), random.pick(&[0, echo]));
        let flags = Both::flags(random);
        // Without an acknowledgement nobody selects, nor with a reset.
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

    fn peer_packet(&self, random: &mut Random, side: Side) -> Packet {
        let (i, x) = (side.index(), self.machine.slot.leg[side.index()]);
        let a = self.anchors;
        // Often exactly where something is.
        let places = [x.rec.rx_end, x.cut, x.base, x.tx_ack, Seq::new(a.peer[i])];
        let seq = random.pick(&places).raw();
        let acks = [x.rec.rx_ack, x.loc_end, x.loc_acked, Seq::new(a.local[i])];
        let ack = random.pick(&acks).raw();
        let base = self.flow.peer_segment(side);
        self.packet(random, base, seq, ack, a.clock[i], a.clock[1 - i])
    }

    fn local_packet(&self, random: &mut Random, side: Side) -> Packet {
        let (i, x) = (side.index(), self.machine.slot.leg[side.index()]);
        let a = self.anchors;
        let seq = random.pick(&[x.loc_end, Seq::new(a.local[i])]).raw();
        let ack = random
            .pick(&[x.loc_ack, x.cut, x.base, x.tx_ack, Seq::new(a.peer[i])])
            .raw();
        let base = self.flow.local_segment(side);
        let far = a.clock[1 - i].wrapping_add(self.machine.slot.leg[1 - i].rec.tsval_off.raw());
        let mut packet = self.packet(random, base, seq, ack, far, a.clock[i]);
        packet.seq = packet.seq.wrapping_add(x.adj_ack.raw());
        packet.ack = packet.ack.wrapping_add(x.adj_seq.raw());
        packet
    }

    /// The counters that moved.
    fn counted(&mut self) -> BTreeMap<String, u64> {
        let now = self.flow.plane.verdicts();
        let mut moved = now.clone();
        moved.retain(|name, n| {
            *n -= self.seen[name];
            *n != 0
        });
        self.seen = now;
        moved
    }

    /// What the far end of a side's peer is to get.
    fn across(side: Side, packet: Packet) -> Packet {
        let far = leg(side.other());
        let o = side.other().index();
        Packet {
            dst_mac: PEER_MAC[o],
            src_mac: OUR_MAC[o],
            src: far.local,
            dst: far.peer,
            ttl: packet.ttl - 1,
            ..packet
        }
    }

    fn ingress(&mut self, side: Side, packet: &Packet) -> Result<(), String> {
        let s = expect::segment(packet);
        let outcome = Passage::new(machine_side(side), &s).run(&mut self.machine);
        let copy = outcome.acknowledge.map(|s| {
            (
                s,
                Passage::acknowledgement(machine_side(side), &s).run(&mut self.machine),
            )
        });
        let ran = self.flow.ingress(side, &packet.bytes());
        let mut verdicts: Vec<&str> = vec![name(outcome.verdict)];
        if outcome.woken {
            verdicts.push("woken");
        }
        if let Some((_, o)) = &copy {
            verdicts.push(name(o.verdict));
        }
        self.same_verdicts(&verdicts)?;
        // What comes out at the far end by itself: the far copy of the drain, and that with an acknowledgement alone.
        let mut frames: Vec<Vec<u8>> = Vec::new();
        if let (Verdict::Shared, Some(far)) = (outcome.verdict, &outcome.far) {
            frames.push(Both::across(side, expect::packet(packet, far)).bytes());
        }
        if let Some((_, Outcome { far: Some(far), .. })) = &copy {
            frames.push(Both::across(side, expect::packet(packet, far)).bytes());
        }
        for expected in &frames {
            let got = self.taps[side.other().index()]
                .next()
                .ok_or("no copy comes out at the far end")?;
            same(&got, expected, "the copy for the far end")?;
        }
        for tap in &self.taps {
            if let Some(frame) = tap.ready() {
                return Err(format!(
                    "a copy comes out that the machine does not know of: {frame:02x?}"
                ));
            }
        }
        self.same_events(packet, &outcome)?;
        let (value, after) = match &outcome {
            Outcome {
                verdict: Verdict::Again,
                ..
            } => (REDIRECT, Some(packet.clone())),
            Outcome {
                local: Some(local), ..
            } => (OK, Some(expect::packet(packet, local))),
            Outcome { far: Some(far), .. } => {
                (REDIRECT, Some(Both::across(side, expect::packet(packet, far))))
            }
            _ => (SHOT, None),
        };
        same_result(&ran, value, after)
    }

    fn egress(&mut self, side: Side, packet: &Packet) -> Result<(), String> {
        let outcome = self.machine.egress(machine_side(side), &expect::segment(packet));
        let ran = self.flow.egress(side, &packet.bytes());
        self.same_verdicts(&[name(outcome.verdict)])?;
        if let (Verdict::SynRefused, Some(answer)) = (outcome.verdict, outcome.local) {
            // Its other bytes have a table of their own.
            let word = |at: usize| u32::from_be_bytes(ran.packet[at..at + 4].try_into().expect("four bytes"));
            let got = (ran.verdict, word(38), word(42), ran.packet[47]);
            let expected = (REDIRECT, answer.seq.raw(), answer.ack.raw(), answer.flags);
            return (got == expected)
                .then_some(())
                .ok_or(format!("{got:?} instead of {expected:?}"));
        }
        match outcome.wire {
            Some(wire) => same_result(&ran, OK, Some(expect::packet(packet, &wire))),
            None => same_result(&ran, SHOT, None),
        }
    }

    fn wake(&mut self) -> Result<(), String> {
        // User space only asks for flows that have a slot.
        let expected = Wake::from(self.machine.slot.mode).run(&mut self.machine);
        let got = self
            .flow
            .plane
            .wake(self.flow.slot())
            .map_err(|e| e.to_string())?;
        *self.fates.entry(format!("wake: {expected:?}")).or_default() += 1;
        (format!("{got:?}") == format!("{expected:?}"))
            .then_some(())
            .ok_or(format!("mode {got:?} instead of {expected:?}"))
    }

    fn release(&mut self) -> Result<(), String> {
        let refused = !matches!(self.machine.slot.mode, Mode::Final | Mode::Moved);
        Transfer::new(machine::Direction::Release).run(&mut self.machine);
        let result = self.flow.plane.release(self.flow.slot(), legs(), [0, 0]);
        let gone = self.machine.records.iter().any(Option::is_none);
        *self
            .fates
            .entry(format!("release: refused {refused}"))
            .or_default() += 1;
        match result.map_err(|e| e.kind()) {
            Err(std::io::ErrorKind::ResourceBusy) if refused => Ok(()),
            Err(std::io::ErrorKind::NotFound) if !refused && gone => Ok(()),
            Ok(()) if !refused && !gone => Ok(()),
            other => Err(format!("release gives {other:?}")),
        }
    }

    fn same_verdicts(&mut self, verdicts: &[&str]) -> Result<(), String> {
        let mut expected = BTreeMap::new();
        for name in verdicts.iter().filter(|name| !name.is_empty()) {
            *expected.entry((*name).to_owned()).or_default() += 1;
        }
        let mut got = self.counted();
        // The machine does not tell a segment with another TSval from one as it was.
        if let Some(n) = got.remove("clamped") {
            *got.entry("emitted".to_owned()).or_default() += n;
        }
        *self.fates.entry(verdicts.join(" ")).or_default() += 1;
        (got == expected)
            .then_some(())
            .ok_or(format!("{got:?} instead of {expected:?}"))
    }

    fn same_events(&mut self, packet: &Packet, outcome: &Outcome) -> Result<(), String> {
        let got: Vec<_> = self
            .events
            .take()
            .map_err(|e| e.to_string())?
            .into_iter()
            .map(|event| (event.kind, event.packet))
            .collect();
        let mut expected = Vec::new();
        if outcome.held.is_some() {
            expected.push((EventKind::Held, packet.bytes()));
        }
        if outcome.copy.is_some() {
            expected.push((EventKind::Copy, packet.bytes()));
        }
        (got == expected)
            .then_some(())
            .ok_or(format!("events {got:?} instead of {expected:?}"))
    }
}

fn same(got: &[u8], expected: &[u8], what: &str) -> Result<(), String> {
    match describe(got, expected, what) {
        None => Ok(()),
        Some(text) => Err(text),
    }
}

fn same_result(ran: &Ran, verdict: u32, packet: Option<Packet>) -> Result<(), String> {
    if ran.verdict != verdict {
        return Err(format!(
            "the program's value is {} instead of {verdict}",
            ran.verdict
        ));
    }
    match packet {
        Some(packet) => same(&ran.packet, &packet.bytes(), "the packet"),
        None => Ok(()),
    }
}

/// The counter of a verdict.
fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Next => "",
        Verdict::Delivered => "delivered",
        Verdict::Forwarded => "forwarded",
        Verdict::Shared => "shared",
        Verdict::LocalOnly => "local_only",
        Verdict::Absorbed => "absorbed",
        Verdict::Emitted | Verdict::Clamped => "emitted",
        Verdict::SynReplaced => "syn_replaced",
        Verdict::SynRefused => "syn_refused",
        Verdict::Aborted => "aborted",
        Verdict::Held => "held",
        Verdict::Again => "again",
        Verdict::DropParked => "drop_parked",
        Verdict::DropWindow => "drop_window",
    }
}
