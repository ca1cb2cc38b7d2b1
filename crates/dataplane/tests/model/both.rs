//! Holds a flow in the kernel, and the same one in the machine.

use std::collections::BTreeMap;

use longsplice_core::seq::Seq;
use longsplice_dataplane::{Event, EventKind, Framing, PerSide, Ran, Ring, Side};
use longsplice_model::{
    self as machine, Finish, Freeze, Mode, Outcome, Passage, Placement, Steps, TakeOver, Transfer, Verdict,
    Wake, flag,
};

use crate::{
    convert::{brief, difference, read_record, read_slot, write_record, write_slot},
    expect,
    generate::Anchors,
    support::random::Random,
    support::{
        family::is_across,
        flow::{Flow, OK, Plan, REDIRECT, SHOT, leg, legs},
        net::{OUR_MAC, PEER_MAC},
        packet::*,
        raw::{Maps, types::ls_trait},
        reference,
        tap::Tap,
    },
};

/// Serial number of the flow, in every state.
const SERIAL: u32 = 77;

pub struct Both {
    pub(super) flow: Flow,
    maps: Maps,
    taps: [Tap; 2],
    events: Ring<Event>,
    pub(super) machine: machine::Flow,
    pub(super) anchors: Anchors,
    seen: BTreeMap<String, u64>,
    /// Number of times that each fate came up.
    fates: BTreeMap<String, u64>,
}

fn machine_side(side: Side) -> machine::Side {
    machine::Side::BOTH[side]
}

impl Both {
    pub fn new() -> Both {
        let flow = Flow::track(Plan::default());
        flow.net.deaf();
        for side in Side::BOTH {
            flow.plane
                .attach(flow.ifindex(side), Framing::Ethernet)
                .expect("attached");
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

    /// Prints the fates that came up: a fate that never comes up is not tested.
    pub fn summary(&self) {
        for (fate, times) in &self.fates {
            println!("{times:7} {fate}");
        }
    }

    /// Writes the machine's state into the kernel.
    pub(super) fn write(&self) {
        let index = self.flow.slot().index();
        let mut slot = self.maps.slot(index);
        slot.serial = SERIAL;
        write_slot(&mut slot, &self.machine.slot);
        for side in Side::BOTH {
            slot.leg[side].key = crate::support::raw::tuple(leg(side));
            let rec = &mut slot.leg[side].rec;
            let families = if is_across() {
                ls_trait::LS_FAMILIES.0 as u8
            } else {
                0
            };
            rec.traits = (rec.traits & !1) | u8::from(side == Side::Server) | families;
            (rec.serial, rec.mss) = (SERIAL, 1460);
            let mut record = *rec;
            let model = self.machine.records[side].as_ref();
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

    /// Reads the kernel's state.
    fn read(&self) -> machine::Flow {
        machine::Flow {
            records: Side::BOTH.map(|side| self.maps.record(leg(side)).map(|r| read_record(&r))),
            slot: read_slot(&self.maps.slot(self.flow.slot().index())),
        }
    }

    /// Applies an event to both. Returns the difference afterwards as an error.
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
            _ => self.by_user_space(random),
        };
        let result = result.and_then(|()| match difference(&self.read(), &self.machine) {
            None => Ok(()),
            Some(text) => Err(format!("the state differs:\n{text}")),
        });
        result.map_err(|text| format!("{text}\n{what}\nbefore it: {}", brief(&before)))
    }

    fn by_user_space(&mut self, random: &mut Random) -> (String, Result<(), String>) {
        let legs = self.machine.slot.leg;
        match random.below(5) {
            _ if self.is_detached() => ("promote".to_owned(), self.promote()),
            0 => ("wake".to_owned(), self.wake()),
            1 => ("demote".to_owned(), self.demote()),
            2 => ("freeze".to_owned(), self.freeze()),
            3 => {
                let acked = legs.map(|x| random.near(x.loc_end.raw()));
                (format!("take over {acked:?}"), self.take_over(acked))
            }
            _ => {
                let (exact, wakeable) = (!random.once_in(4), random.once_in(2));
                let cuts = legs.map(|x| x.cut.raw().wrapping_add(u32::from(!exact)));
                (format!("finish {cuts:?} {wakeable}"), self.finish(cuts, wakeable))
            }
        }
    }

    /// Returns the counters that moved.
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

    /// Returns the packet for the far end of a side's peer.
    fn across(side: Side, packet: Packet) -> Packet {
        let far = leg(side.other());
        let o = side.other();
        let translated = Packet {
            dst_mac: PEER_MAC[o],
            src_mac: OUR_MAC[o],
            src: far.local,
            dst: far.peer,
            ttl: packet.hops_behind(),
            ..packet
        };
        match is_across() {
            true => reference::across(translated, SERIAL),
            false => translated,
        }
    }

    fn ingress(&mut self, side: Side, packet: &Packet) -> Result<(), String> {
        let s = expect::segment(packet);
        let ran = self.flow.ingress(side, &packet.bytes());
        let mut passage = Passage::new(machine_side(side), &s);
        // Only the kernel half has a clock.
        let now = self.flow.plane.verdicts();
        let limited = if s.has(flag::RST) {
            "drop_window"
        } else {
            "drop_syn"
        };
        if now[limited] != self.seen[limited] {
            passage = passage.unchallenged();
        }
        let outcome = passage.run(&mut self.machine);
        let copy = outcome.acknowledge.map(|s| {
            (
                s,
                Passage::acknowledgement(machine_side(side), &s).run(&mut self.machine),
            )
        });
        let mut verdicts: Vec<&str> = vec![name(outcome.verdict)];
        if outcome.woken {
            verdicts.push("woken");
        }
        if let Some((_, o)) = &copy {
            verdicts.push(name(o.verdict));
        }
        self.same_verdicts(&verdicts)?;
        // These come out at the far end by themselves: the far copy of the drain, and that with an acknowledgement alone.
        let mut frames: Vec<Vec<u8>> = Vec::new();
        if let (Verdict::Shared, Some(far)) = (outcome.verdict, &outcome.far) {
            frames.push(Both::across(side, expect::packet(packet, far)).bytes());
        }
        if let Some((_, Outcome { far: Some(far), .. })) = &copy {
            frames.push(Both::across(side, expect::packet(packet, far)).bytes());
        }
        for expected in &frames {
            let got = self.taps[side.other()]
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
            // Compare these fields only: another table checks the other bytes.
            let tcp = &ran.packet[packet.l4()..];
            let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("four bytes"));
            let got = (ran.verdict, word(4), word(8), tcp[13]);
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

    fn is_detached(&self) -> bool {
        let placement = |r: &Option<machine::Record>| r.map(|r| r.placement);
        self.machine
            .records
            .iter()
            .all(|r| placement(r) == Some(Placement::Detached))
    }

    fn promote(&mut self) -> Result<(), String> {
        self.machine.slot = machine::Slot {
            mode: Mode::Final,
            ..machine::Slot::default()
        };
        Transfer::new(machine::Direction::Promote).run(&mut self.machine);
        *self.fates.entry("promote".to_owned()).or_default() += 1;
        let attached = self.flow.plane.promote(self.flow.slot(), SERIAL, legs());
        attached.map_err(|e| e.to_string())
    }

    fn wake(&mut self) -> Result<(), String> {
        // User space only asks for flows that have a slot.
        let expected = Wake::from(self.machine.slot.mode).run(&mut self.machine);
        let got = self.flow.plane.wake(self.flow.slot());
        self.same_mode("wake", expected, got)
    }

    fn freeze(&mut self) -> Result<(), String> {
        let expected = Freeze::default().run(&mut self.machine);
        let got = self.flow.plane.freeze(self.flow.slot());
        self.same_mode("freeze", expected, got)
    }

    fn take_over(&mut self, acked: [u32; 2]) -> Result<(), String> {
        let expected = TakeOver::new(acked.map(Seq::new)).run(&mut self.machine);
        let got = self
            .flow
            .plane
            .take_over(self.flow.slot(), acked.map(Seq::new).into());
        self.same_mode("take over", expected, got)
    }

    fn finish(&mut self, cuts: [u32; 2], wakeable: bool) -> Result<(), String> {
        let expected = Finish::new(cuts.map(Seq::new), wakeable).run(&mut self.machine);
        let got = self
            .flow
            .plane
            .finish(self.flow.slot(), cuts.map(Seq::new).into(), wakeable);
        self.same_mode("finish", expected, got)
    }

    fn same_mode(
        &mut self,
        what: &str,
        expected: Mode,
        got: std::io::Result<longsplice_dataplane::Mode>,
    ) -> Result<(), String> {
        let got = got.map_err(|e| e.to_string())?;
        *self.fates.entry(format!("{what}: {expected:?}")).or_default() += 1;
        (format!("{got:?}") == format!("{expected:?}"))
            .then_some(())
            .ok_or(format!("mode {got:?} instead of {expected:?}"))
    }

    fn demote(&mut self) -> Result<(), String> {
        let refused = !matches!(self.machine.slot.mode, Mode::Final | Mode::Moved);
        Transfer::new(machine::Direction::Demote).run(&mut self.machine);
        let result = self.flow.plane.demote(self.flow.slot(), legs(), PerSide::both(0));
        let gone = self.machine.records.iter().any(Option::is_none);
        *self
            .fates
            .entry(format!("demote: refused {refused}"))
            .or_default() += 1;
        match result.map_err(|e| e.kind()) {
            Err(std::io::ErrorKind::ResourceBusy) if refused => Ok(()),
            Err(std::io::ErrorKind::NotFound) if !refused && gone => Ok(()),
            Ok(()) if !refused && !gone => Ok(()),
            other => Err(format!("demote gives {other:?}")),
        }
    }

    fn same_verdicts(&mut self, verdicts: &[&str]) -> Result<(), String> {
        let mut expected = BTreeMap::new();
        for name in verdicts.iter().filter(|name| !name.is_empty()) {
            *expected.entry((*name).to_owned()).or_default() += 1;
        }
        let mut got = self.counted();
        // The machine does not tell a segment with another TSval from an unchanged one.
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

/// Returns the name of a verdict's counter.
fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Next => "",
        Verdict::Delivered => "delivered",
        Verdict::Forwarded => "forwarded",
        Verdict::Shared => "duplicated",
        Verdict::LocalOnly => "local_only",
        Verdict::Absorbed => "consumed",
        Verdict::Emitted | Verdict::Clamped => "emitted",
        Verdict::SynReplaced => "syn_replaced",
        Verdict::SynRefused => "syn_refused",
        Verdict::Aborted => "aborted",
        Verdict::Held => "queued",
        Verdict::Again => "requeued",
        Verdict::DropParked => "drop_parked",
        Verdict::DropWindow => "drop_window",
        Verdict::DropAck => "drop_ack",
        Verdict::DropEcho => "drop_tsecr",
        Verdict::DropSyn => "drop_syn",
    }
}
