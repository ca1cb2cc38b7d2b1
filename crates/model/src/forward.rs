//! Models FINAL, the constant translation (papers' section III-B): `rewrite.h`, and `forward` of `ingress.h`.

use super::{
    local::SackEdit,
    outcome::{Outcome, Verdict},
    segment::{Segment, flag},
    state::{Flow, Record, Side, seq_advance, slot_flag, traits},
    window::{kept_edge, window_field},
};

/// Returns a segment of the sender as the far end sees it, except for its SACK blocks, and the edit of those.
pub(super) fn translate(rec: &mut Record, seg: &Segment, in_place: bool) -> (Segment, SackEdit) {
    let mut new = *seg;
    new.seq = seg.seq + rec.seq_off;
    new.ack = seg.ack + rec.ack_off;
    new.window = ((seg.window << (rec.wscale_in & 15)) >> (rec.wscale_out & 15)).min(65_535);
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
    pub(super) fn forward(&mut self, side: Side, slotted: bool, seg: &Segment, in_place: bool) -> Outcome {
        let flags = self.slot.flags;
        let Some(rec) = self.record_at(side, slotted) else {
            return Outcome::of(Verdict::Again);
        };
        rec.bytes += u64::from(seg.len);
        let (mut new, sack) = translate(rec, seg, in_place);
        new.sack = sack.apply(seg.sack, rec.ack_off);
        if slotted && flags & slot_flag::KEEP != 0 && seg.has(flag::ACK) {
            self.keep_window(side, &mut new, seg);
        }
        let mut outcome = Outcome::far(Verdict::Forwarded, new);
        // Copy validated segments only: the copies end up in a socket's send queue.
        let copied = slotted && flags & slot_flag::COPY != 0 && seg.len > 0 && in_place;
        outcome.copy = copied.then_some(*seg);
        outcome
    }

    /// Promises the far end no window that its parked socket could not take.
    fn keep_window(&mut self, side: Side, new: &mut Segment, seg: &Segment) {
        let slot = self.slot;
        let (from, to) = self.legs(side);
        let ack = seg.ack + from.rec.ack_off;
        let edge = kept_edge(
            &slot,
            to,
            to.rec.rx_end,
            seg.edge(from.rec.wscale_in) + from.rec.ack_off,
        );
        seq_advance(&mut to.tx_edge, edge);
        new.window = window_field(edge, ack, from.rec.wscale_out);
    }
}

/// Returns whether payload of the sender ends at a trap. A FIN alone passes, for there is nothing to read in it. A FIN
/// beyond the trap does not pass, for there is payload before it.
pub(super) fn meets_trap(rec: &Record, seg: &Segment) -> bool {
    let ends = (seg.len > 0 || seg.has(flag::FIN)) && !seg.has(flag::RST);
    rec.armed && ends && !(seg.seq + seg.len).before(rec.trap)
}

/// Returns whether a segment may be a first one: SYN without ACK.
pub(super) fn is_first(seg: &Segment) -> bool {
    seg.flags & (flag::SYN | flag::ACK) == flag::SYN
}
