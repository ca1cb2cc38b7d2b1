//! Delivers segments.

use longsplice_model::{Mode, Outcome, Passage, Segment, Side, Steps, Verdict};

use super::{
    tcp::{FORGED, Tcp, no_socket},
    world::{Event, Task, World, show},
};

impl World {
    pub(super) fn enter(&mut self, side: Side, segment: Segment, passage: Passage) {
        if segment.at >= FORGED && self.is_exact(side, &segment) {
            return;
        }
        self.note(|| format!("from {side:?} {}", show(&segment)));
        if self.rng.chance(self.scenario.interleave) {
            self.tasks.push(Task::Packet(passage));
        } else if self.tasks.is_empty() {
            let outcome = passage.run(&mut self.flow);
            self.outcome(side, &segment, outcome);
        } else {
            // The other CPU is quicker.
            let outcome = passage.run(&mut self.flow);
            self.outcome(side, &segment, outcome);
        }
    }

    /// Returns whether a forged segment has exactly the next number: it cannot be told from one of the end itself.
    fn is_exact(&self, side: Side, s: &Segment) -> bool {
        let Some(rec) = self.flow.record(side) else {
            return false;
        };
        let adj = self.flow.leg(side).adj_seq;
        let local = self.locals[side].as_ref().map(|l| l.rcv_seq(l.rcv_nxt) - adj);
        let far = &self.ends[side.other()];
        s.seq == rec.rx_end || local == Some(s.seq) || far.rcv_seq(far.rcv_nxt) == s.seq + rec.seq_off
    }

    pub(super) fn outcome(&mut self, side: Side, s: &Segment, outcome: Outcome) {
        let mode = self.flow.slot.mode;
        self.note(|| {
            format!(
                "     {side:?} {:?}{} mode {mode:?} far {} local {}",
                outcome.verdict,
                if outcome.woken { " WOKEN" } else { "" },
                outcome.far.map_or("-".into(), |s| show(&s)),
                outcome.local.map_or("-".into(), |s| show(&s)),
            )
        });
        self.count_outcome(s, side, &outcome);
        self.check_accepted(side, s, &outcome);
        if let Some(held) = outcome.held {
            self.hold(side, held);
        }
        if let Some(copy) = outcome.copy {
            self.daemon.copies[side].push(copy);
        }
        if let Some(s) = outcome.acknowledge {
            self.at(self.now, Event::Acknowledge(side, s));
        }
        if let Some(far) = outcome.far {
            self.check_trap(side, s, &far);
            self.send_to_end(side.other(), far);
        }
        if let Some(local) = outcome.local {
            if self.rng.chance(self.scenario.backlog) {
                let delay = self.rng.below(300);
                self.backlog += 1;
                self.at(self.now + delay, Event::ToLocal(side, local));
            } else {
                self.give_to_local(side, &local);
            }
        }
        if outcome.verdict == Verdict::Again {
            self.at(self.now, Event::ToForwarder(side, *s));
        }
    }

    pub(super) fn count_outcome(&mut self, s: &Segment, side: Side, outcome: &Outcome) {
        match outcome.verdict {
            Verdict::Again => self.stats.add("looked at again"),
            Verdict::Held => {
                let from = self.flow.leg(side);
                self.stats.add("held");
                if self.flow.slot.mode == Mode::Undrain && s.seq.before(from.base) {
                    self.stats.add("straddlers");
                }
            }
            Verdict::Shared => self.stats.add("drain: shared"),
            _ => {}
        }
        if outcome.woken {
            self.stats.add("woken by a packet");
            let (from, to) = (self.flow.leg(side), self.flow.leg(side.other()));
            if from.bypassed & to.bypassed != 0 && !self.flow.is_quiescent() {
                self.stats.add("wakes with bytes outstanding both ways");
            }
            if (from.rec.seen | to.rec.seen) & 1 != 0 {
                self.stats.add("wakes after a FIN was forwarded");
            }
        }
    }

    pub(super) fn give_to_local(&mut self, side: Side, s: &Segment) {
        let mut out = Vec::new();
        match &mut self.locals[side] {
            Some(local) => {
                let dead = local.dead;
                local.on_segment(self.now, s, &mut out);
                if local.dead && !dead {
                    self.doomed = true;
                    self.note(|| format!("local {side:?} was reset by {}", show(s)));
                }
            }
            None => out.extend(no_socket(s)),
        }
        self.local_says(side, out);
    }

    pub fn local_says(&mut self, side: Side, segments: Vec<Segment>) {
        for s in segments {
            let outcome = self.flow.egress(side, &s);
            self.note(|| {
                let wire = outcome.wire.map_or("-".into(), |s| show(&s));
                format!("local {side:?} {} {:?} -> {wire}", show(&s), outcome.verdict)
            });
            if outcome.verdict == Verdict::Aborted {
                self.stats.add("aborted");
                self.doomed = true;
            }
            if let Some(wire) = outcome.wire {
                self.send_to_end(side, wire);
            }
        }
        self.set_timers(side);
        if let Some(what) = self.locals[side].as_ref().and_then(|l| l.forged) {
            self.fail(format!("local socket of {side:?}: {what}"));
        }
    }

    pub fn end_says(&mut self, side: Side, segments: Vec<Segment>) {
        for s in segments {
            self.note(|| format!("end {side:?} {}", show(&s)));
            self.over_link(side, |d| Event::ToForwarder(d, s));
        }
        self.set_timers(side);
        if let Some(what) = self.ends[side].forged {
            self.fail(format!("end {side:?}: {what}"));
        }
    }

    pub(super) fn set_timers(&mut self, side: Side) {
        let timers = [
            self.ends[side].next_timer(),
            self.locals[side].as_ref().and_then(|l| l.next_timer()),
        ];
        let events = [
            Event::EndTimer(side),
            Event::LocalTimer(side, self.generation[side]),
        ];
        for k in 0..2 {
            if let Some(at) = timers[k]
                && self.timers[k][side].is_none_or(|t| at < t)
            {
                self.timers[k][side] = Some(at);
                self.at(at, events[k]);
            }
        }
    }

    /// Replaces the socket of a leg.
    pub fn replace_local(&mut self, side: Side, socket: Option<Tcp>) {
        self.locals[side] = socket;
        self.generation[side] += 1;
        self.timers[1][side] = None;
    }

    pub fn over_link(&mut self, side: Side, event: impl Fn(Side) -> Event) {
        let link = self.scenario.links[side];
        let copies = 1 + u64::from(self.rng.chance(link.duplicate));
        for _ in 0..copies {
            if self.rng.chance(link.loss) {
                self.stats.add("lost");
                continue;
            }
            let at = self.now + link.delay + self.rng.below(link.jitter + 1);
            self.at(at, event(side));
        }
    }
}
