//! Models FINAL, the constant translation (papers' section III-B): `translate.h`, and `forward` of `forward.bpf.c`.

use super::{
    local::SackEdit,
    outcome::{Outcome, Verdict},
    segment::{Segment, flag},
    state::{Flow, Record, Side, raise, slot_flag, traits},
    window::{kept_edge, window_field},
};

/// Returns a segment of x as the far end sees it, except for its SACK blocks, and the edit of those.
pub(super) fn translate(rec: &mut Record, s: &Segment, in_place: bool) -> (Segment, SackEdit) {
    let mut new = *s;
    new.seq = s.seq + rec.seq_off;
    new.ack = s.ack + rec.ack_off;
    new.window = ((s.window << (rec.wscale_in & 15)) >> (rec.wscale_out & 15)).min(65_535);
    if let Some(ts) = &mut new.ts {
        ts.val = ts.val + rec.tsval_off;
        // A TSval that is not noted must not go ahead of the noted ones.
        if !in_place || ts.val.before(rec.ts_high) {
            ts.val = rec.ts_high;
        } else {
            rec.ts_high = ts.val;
        }
        if ts.ecr.raw() != 0 {
            ts.ecr = ts.ecr + rec.tsecr_off;
        }
    }
    let blank = rec.traits & traits::BLANK_SACK != 0;
    (new, if blank { SackEdit::Blank } else { SackEdit::Shift })
}

impl Flow {
    /// Takes the last step, in which the segment can no longer be stopped.
    pub(super) fn forward(&mut self, side: Side, slotted: bool, s: &Segment, in_place: bool) -> Outcome {
        let flags = self.slot.flags;
        let Some(rec) = self.record_at(side, slotted) else {
            return Outcome::of(Verdict::Again);
        };
        rec.bytes += u64::from(s.len);
        let (mut new, sack) = translate(rec, s, in_place);
        new.sack = sack.apply(s.sack, rec.ack_off);
        if slotted && flags & slot_flag::KEEP != 0 && s.has(flag::ACK) {
            self.keep_window(side, &mut new, s);
        }
        let mut outcome = Outcome::far(Verdict::Forwarded, new);
        // Copy validated segments only: the copies end up in a socket's send queue.
        let copied = slotted && flags & slot_flag::COPY != 0 && s.len > 0 && in_place;
        outcome.copy = copied.then_some(*s);
        outcome
    }

    /// Promises the far end no window that its parked socket could not take.
    fn keep_window(&mut self, side: Side, new: &mut Segment, s: &Segment) {
        let slot = self.slot;
        let (x, o) = self.legs(side);
        let ack = s.ack + x.rec.ack_off;
        let edge = kept_edge(&slot, o, s.edge(x.rec.wscale_in) + x.rec.ack_off);
        raise(&mut o.tx_edge, edge);
        new.window = window_field(edge, ack, x.rec.wscale_out);
    }
}

/// Returns whether payload of x ends at a trap. A FIN alone passes, for there is nothing to read in it. A FIN beyond
/// the trap does not pass, for there is payload before it.
pub(super) fn meets_trap(rec: &Record, s: &Segment) -> bool {
    let ends = (s.len > 0 || s.has(flag::FIN)) && !s.has(flag::RST);
    rec.armed && ends && !(s.seq + s.len).before(rec.trap)
}

/// Returns whether a segment may be a first one: SYN without ACK.
pub(super) fn is_first(s: &Segment) -> bool {
    s.flags & (flag::SYN | flag::ACK) == flag::SYN
}
