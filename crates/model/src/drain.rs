//! Models DRAIN (papers' section III-C, `drain.h`): new payload is forwarded, old payload is delivered,
//! acknowledgements go to the sender that waits for them.

use super::{
    forward::translate,
    local::{Mapping, SackEdit, for_socket, within_window},
    outcome::{Outcome, Verdict},
    segment::{Segment, flag},
    state::{Flow, Leg, Side, seq_advance, slot_flag},
    track::{ends_stream, is_through, tells},
    wake::went_past,
    window::{kept_edge_in_drain, window_field},
};

/// Properties of a segment in DRAIN before it is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DrainCase {
    /// The segment begins below the cut.
    pub(super) old: bool,
    /// The local socket still waits for acknowledgements.
    pub(super) waits: bool,
    /// The far end can use the segment.
    pub(super) wanted: bool,
    /// The segment is old, and the pair is to come back: its sockets must get all old payload. If the far end had it
    /// sooner, its acknowledgement would keep the sender from retransmitting the bytes that the local socket missed.
    /// False if that has happened already.
    pub(super) kept: bool,
}

impl Flow {
    pub(super) fn drain_case(&self, side: Side, seg: &Segment, old: bool) -> DrainCase {
        let (from, to) = (self.leg(side), self.leg(side.other()));
        let has_data = seg.len > 0 || seg.has(flag::FIN | flag::RST);
        let ack = seg.ack + from.rec.ack_off;
        DrainCase {
            old,
            kept: old
                && !seg.has(flag::RST)
                && self.slot.flags & slot_flag::KEEP != 0
                && !from.loc_ack.before(from.tx_ack),
            waits: from.loc_acked.before(to.cut + to.rec.seq_off),
            // Forward every probe of an end that waits for a window: it must be answered. An end that is gone would
            // answer with a reset.
            wanted: has_data
                || !is_through(to, from)
                    && (!ack.before(to.tx_ack)
                        || seg.seq.before(from.rec.end())
                        || (seg.edge(from.rec.wscale_in) + from.rec.ack_off).after(to.tx_edge)),
        }
    }

    /// Takes the last step of a segment in DRAIN.
    pub(super) fn drain(&mut self, side: Side, seg: &Segment, in_place: bool, case: DrainCase) -> Outcome {
        if case.kept {
            return self.drain_to_socket(side, seg, in_place, case.old);
        }
        if !case.wanted {
            return if case.waits {
                self.drain_to_socket(side, seg, in_place, case.old)
            } else {
                Outcome::of(Verdict::Absorbed)
            };
        }
        if !case.old {
            self.legs(side).0.rec.bytes += u64::from(seg.len);
        }
        let far = self.drain_far_copy(side, seg, in_place);
        if !case.old && !case.waits && !seg.has(flag::RST) {
            return Outcome::far(Verdict::Forwarded, far);
        }
        let (from, to) = self.legs(side);
        let local = drain_local_copy(from, to, seg, in_place, case.old);
        Outcome {
            far: Some(far),
            ..Outcome::local(Verdict::Shared, local)
        }
    }

    /// Makes the far end's copy: of segments with payload, and of acknowledgements with news for it.
    fn drain_far_copy(&mut self, side: Side, seg: &Segment, in_place: bool) -> Segment {
        let slot = self.slot;
        let (from, to) = self.legs(side);
        let mut ack = seg.ack + from.rec.ack_off;
        let told = tells(from, to, seg, in_place);
        let raised = !told || ack.before(to.tx_ack);
        let edge = kept_edge_in_drain(&slot, to, seg.edge(from.rec.wscale_in) + from.rec.ack_off);
        let (mut new, mut sack) = translate(&mut from.rec, seg, in_place);
        if !seg.has(flag::ACK) {
            return new;
        }
        // The local socket may have acknowledged more already: an acknowledgement never decreases.
        if raised {
            ack = to.tx_ack;
        } else {
            seq_advance(&mut to.tx_ack, ack);
        }
        // Missing bytes below the cut are on their way through the sockets: the far end must not consider them lost.
        if raised || ack.before(to.cut) {
            sack = SackEdit::Blank;
        }
        if told {
            seq_advance(&mut to.tx_edge, edge);
        }
        new.ack = ack;
        new.window = window_field(edge, ack, from.rec.wscale_out);
        new.sack = sack.apply(seg.sack, from.rec.ack_off);
        new
    }

    pub(super) fn drain_to_socket(
        &mut self,
        side: Side,
        seg: &Segment,
        in_place: bool,
        old: bool,
    ) -> Outcome {
        let (from, to) = self.legs(side);
        Outcome::local(Verdict::LocalOnly, drain_local_copy(from, to, seg, in_place, old))
    }

    /// Returns whether payload that met a trap must wait: the sockets cannot continue yet, and part of the stream
    /// bypassed them.
    pub(super) fn keeps_trapped(&self, side: Side, seg: &Segment) -> bool {
        let from = self.leg(side);
        went_past(from) && seg.end().after(from.cut)
    }

    /// Delivers payload that met a trap. None of its stream bypassed the local socket, so that socket gets the payload
    /// at once: the cut has moved on.
    pub(super) fn drain_trapped(&mut self, side: Side, seg: &Segment, in_place: bool) -> Outcome {
        seq_advance(&mut self.legs(side).0.rec.rx_end, seg.seq + seg.len);
        self.drain_to_socket(side, seg, in_place, true)
    }
}

/// Makes the local socket's copy: payload below the cut, and acknowledgements of its own bytes.
fn drain_local_copy(from: &mut Leg, to: &Leg, seg: &Segment, in_place: bool, old: bool) -> Segment {
    let ack = seg.ack.min(from.loc_end);
    let sack = if ack == from.loc_end {
        SackEdit::Blank
    } else {
        SackEdit::Clip(ack, from.loc_end)
    };
    if in_place && seg.has(flag::ACK) {
        from.loc_acked = from.loc_acked.max(ack);
    }
    let mut h = Segment { ack, ..*seg };
    if !old {
        // Move a reset only from where it would count: a forged one could come to be in place.
        let counts = || ends_stream(&from.rec, to.rec.rx_ack + to.rec.ack_off, seg);
        if !seg.has(flag::RST) || counts() {
            h.seq = seg.seq.min(from.cut);
        }
        if !seg.has(flag::RST) {
            h.flags &= !(flag::FIN | flag::PSH | flag::URG);
        }
        h.len = 0;
    }
    for_socket(within_window(from, &h), sack, Mapping::of_leg(from))
}
