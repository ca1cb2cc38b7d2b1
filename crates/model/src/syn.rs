//! Models a SYN on a tuple of the table: `syn.h`.

use super::{
    forward::is_first,
    local::{Mapping, deliver},
    outcome::{Outcome, Verdict},
    segment::Segment,
    state::{Flow, Leg, Mode, Record, Side, seen},
    track::{is_done, is_through},
};

impl Flow {
    /// Answers a SYN on a flow whose sockets are in the path: by the sender's own socket, as long as the sender can
    /// still be there.
    pub(super) fn syn_with_sockets(&mut self, side: Side, seg: &Segment, mode: Mode) -> Outcome {
        let (from, to) = (self.leg(side), self.leg(side.other()));
        if !is_first(seg) || !is_through(from, to) {
            return deliver(seg, Mapping::of_leg(from));
        }
        let is_over = is_plain_relay(from, to, mode) || (mode == Mode::Drain && is_through(to, from));
        if !is_newer(&from.rec, seg) || !is_over {
            return Outcome::of(Verdict::DropSyn);
        }
        self.give_way(true, seg)
    }

    /// Answers a SYN on a spliced tuple, if both ends have closed, or one was reset. `None`: the SYN goes on like any
    /// segment.
    pub(super) fn syn_of_spliced(&mut self, side: Side, slotted: bool, seg: &Segment) -> Option<Outcome> {
        let (rec, back) = (*self.record(side)?, *self.record(side.other())?);
        let was_reset = (rec.seen | back.seen) & seen::RST != 0;
        let ended = is_done(&rec, &back) && is_done(&back, &rec);
        (is_first(seg) && (was_reset || ended) && is_newer(&rec, seg)).then(|| self.give_way(slotted, seg))
    }

    /// Takes the flow out of the table for a new connection.
    fn give_way(&mut self, slotted: bool, seg: &Segment) -> Outcome {
        if slotted {
            self.slot.mode = Mode::Replaced;
        }
        self.records = [None; 2];
        Outcome::local(Verdict::SynReplaced, *seg)
    }
}

/// Returns whether a SYN of the sender is newer than its connection: an old duplicate begins no connection.
fn is_newer(rec: &Record, seg: &Segment) -> bool {
    let later = seg
        .ts
        .is_some_and(|ts| (ts.val + rec.tsval_off).after(rec.ts_high));
    seg.seq.after(rec.rx_end) || later
}

/// Returns whether the sockets have the numbers of the wire and received all that passed.
fn is_plain_relay(from: &Leg, to: &Leg, mode: Mode) -> bool {
    mode == Mode::Track && [from, to].iter().all(|leg| Mapping::of_leg(leg).is_identity())
}
