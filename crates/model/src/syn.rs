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
    /// Answers a SYN on a flow whose sockets are in the path: by x's own socket, as long as x can still be there.
    pub(super) fn syn_with_sockets(&mut self, side: Side, s: &Segment, mode: Mode) -> Outcome {
        let (x, o) = (self.leg(side), self.leg(side.other()));
        if !is_first(s) || !is_through(x, o) {
            return deliver(s, Mapping::of_leg(x));
        }
        let is_over = is_plain_relay(x, o, mode) || (mode == Mode::Drain && is_through(o, x));
        if !is_newer(&x.rec, s) || !is_over {
            return Outcome::of(Verdict::DropSyn);
        }
        self.give_way(true, s)
    }

    /// Answers a SYN on a spliced tuple, if both ends have closed, or one was reset. `None`: the SYN goes on like any
    /// segment.
    pub(super) fn syn_of_spliced(&mut self, side: Side, slotted: bool, s: &Segment) -> Option<Outcome> {
        let (rec, back) = (*self.record(side)?, *self.record(side.other())?);
        let was_reset = (rec.seen | back.seen) & seen::RST != 0;
        let ended = is_done(&rec, &back) && is_done(&back, &rec);
        (is_first(s) && (was_reset || ended) && is_newer(&rec, s)).then(|| self.give_way(slotted, s))
    }

    /// Takes the flow out of the table for a new connection.
    fn give_way(&mut self, slotted: bool, s: &Segment) -> Outcome {
        if slotted {
            self.slot.mode = Mode::Replaced;
        }
        self.records = [None; 2];
        Outcome::local(Verdict::SynReplaced, *s)
    }
}

/// Returns whether a SYN of x is newer than its connection: an old duplicate begins no connection.
fn is_newer(rec: &Record, s: &Segment) -> bool {
    let later = s.ts.is_some_and(|ts| (ts.val + rec.tsval_off).after(rec.ts_high));
    s.seq.after(rec.rx_end) || later
}

/// Returns whether the sockets have the numbers of the wire and received all that passed.
fn is_plain_relay(x: &Leg, o: &Leg, mode: Mode) -> bool {
    mode == Mode::Track && [x, o].iter().all(|leg| Mapping::of_leg(leg).is_identity())
}
