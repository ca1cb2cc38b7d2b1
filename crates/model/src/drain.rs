//! Models DRAIN (papers' section III-C, `drain.h`): new payload is forwarded, old payload is delivered,
//! acknowledgements go to the sender that waits for them.

use super::{
    forward::translate,
    local::{Mapping, SackEdit, for_socket, within_window},
    outcome::{Outcome, Verdict},
    segment::{Segment, flag},
    state::{Flow, Leg, Side, raise, slot_flag},
    track::is_through,
    wake::went_past,
    window::{kept_edge, window_field},
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
    /// sooner, its acknowledgement would keep x from retransmitting the bytes that the local socket missed. False if
    /// that has happened already.
    pub(super) kept: bool,
}

impl Flow {
    pub(super) fn drain_case(&self, side: Side, s: &Segment, old: bool) -> DrainCase {
        let (x, o) = (self.leg(side), self.leg(side.other()));
        let has_data = s.len > 0 || s.has(flag::FIN | flag::RST);
        let ack = s.ack + x.rec.ack_off;
        DrainCase {
            old,
            kept: old
                && !s.has(flag::RST)
                && self.slot.flags & slot_flag::KEEP != 0
                && !x.loc_ack.before(x.tx_ack),
            waits: x.loc_acked.before(o.cut + o.rec.seq_off),
            // Forward every probe of an end that waits for a window: it must be answered. An end that is gone would
            // answer with a reset.
            wanted: has_data
                || !is_through(o, x)
                    && (!ack.before(o.tx_ack)
                        || s.seq.before(x.rec.end())
                        || (s.edge(x.rec.wscale_in) + x.rec.ack_off).after(o.tx_edge)),
        }
    }

    /// Takes the last step of a segment in DRAIN.
    pub(super) fn drain(&mut self, side: Side, s: &Segment, in_place: bool, case: DrainCase) -> Outcome {
        if case.kept {
            return self.drain_to_socket(side, s, in_place, case.old);
        }
        if !case.wanted {
            return if case.waits {
                self.drain_to_socket(side, s, in_place, case.old)
            } else {
                Outcome::of(Verdict::Absorbed)
            };
        }
        if !case.old {
            self.legs(side).0.rec.bytes += u64::from(s.len);
        }
        let far = self.drain_far_copy(side, s, in_place);
        if !case.old && !case.waits && !s.has(flag::RST) {
            return Outcome::far(Verdict::Forwarded, far);
        }
        let (x, o) = self.legs(side);
        let local = drain_local_copy(x, o, s, in_place, case.old);
        Outcome {
            far: Some(far),
            ..Outcome::local(Verdict::Shared, local)
        }
    }

    /// Makes the far end's copy: of segments with payload, and of acknowledgements with news for it.
    fn drain_far_copy(&mut self, side: Side, s: &Segment, in_place: bool) -> Segment {
        let slot = self.slot;
        let (x, o) = self.legs(side);
        let mut ack = s.ack + x.rec.ack_off;
        let raised = ack.before(o.tx_ack);
        let edge = kept_edge(&slot, o, s.edge(x.rec.wscale_in) + x.rec.ack_off);
        let (mut new, mut sack) = translate(&mut x.rec, s, in_place);
        if !s.has(flag::ACK) {
            return new;
        }
        // The local socket may have acknowledged more already: an acknowledgement never decreases.
        if raised {
            ack = o.tx_ack;
        } else {
            raise(&mut o.tx_ack, ack);
        }
        // Missing bytes below the cut are on their way through the sockets: o must not consider them lost.
        if raised || ack.before(o.cut) {
            sack = SackEdit::Blank;
        }
        raise(&mut o.tx_edge, edge);
        new.ack = ack;
        new.window = window_field(edge, ack, x.rec.wscale_out);
        new.sack = sack.apply(s.sack, x.rec.ack_off);
        new
    }

    pub(super) fn drain_to_socket(&mut self, side: Side, s: &Segment, in_place: bool, old: bool) -> Outcome {
        let (x, o) = self.legs(side);
        Outcome::local(Verdict::LocalOnly, drain_local_copy(x, o, s, in_place, old))
    }

    /// Returns whether payload that met a trap must wait: the sockets cannot continue yet, and part of the stream
    /// bypassed them.
    pub(super) fn keeps_trapped(&self, side: Side, s: &Segment) -> bool {
        let x = self.leg(side);
        went_past(x) && s.end().after(x.cut)
    }

    /// Delivers payload that met a trap. None of its stream bypassed the local socket, so that socket gets the payload
    /// at once: the cut has moved on.
    pub(super) fn drain_trapped(&mut self, side: Side, s: &Segment, in_place: bool) -> Outcome {
        raise(&mut self.legs(side).0.rec.rx_end, s.seq + s.len);
        self.drain_to_socket(side, s, in_place, true)
    }
}

/// Makes the local socket's copy: payload below the cut, and acknowledgements of its own bytes.
fn drain_local_copy(x: &mut Leg, o: &Leg, s: &Segment, in_place: bool, old: bool) -> Segment {
    let ack = s.ack.min(x.loc_end);
    let sack = if ack == x.loc_end {
        SackEdit::Blank
    } else {
        SackEdit::Clip(ack, x.loc_end)
    };
    if in_place && s.has(flag::ACK) {
        x.loc_acked = x.loc_acked.max(ack);
    }
    let mut h = Segment { ack, ..*s };
    if !old {
        // Move a reset only from where it would count: a forged one could come to be in place.
        let counts = s.seq == x.rec.end() || s.seq == o.rec.rx_ack + o.rec.ack_off;
        if counts || !s.has(flag::RST) {
            h.seq = s.seq.min(x.cut);
        }
        if !s.has(flag::RST) {
            h.flags &= !(flag::FIN | flag::PSH | flag::URG);
        }
        h.len = 0;
    }
    for_socket(within_window(x, &h), sack, Mapping::of_leg(x))
}
