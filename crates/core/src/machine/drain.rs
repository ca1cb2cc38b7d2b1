//! DRAIN (papers' section III-C): new payload is forwarded, old payload is delivered, acknowledgements go where they
//! are waited for. `drain.h`.

use super::{
    forward::translate,
    local::{Mapping, SackEdit, for_socket, within_window},
    outcome::{Outcome, Verdict},
    segment::{Segment, flag},
    state::{Flow, Leg, Side, raise, slot_flag},
    wake::went_past,
    window::{kept_edge, window_field},
};

/// What is known of a segment in DRAIN before it is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DrainCase {
    /// It begins below the cut.
    pub(super) old: bool,
    /// The local socket still waits for acknowledgements.
    pub(super) waits: bool,
    /// The far end can use it.
    pub(super) wanted: bool,
    /// It is old, and the pair is to come back: all old payload must be in its sockets. If the far end had it sooner,
    /// its acknowledgement would keep x from sending again what the local socket missed. Where that has happened, it is
    /// too late.
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
            // A probe of an end that waits for its window must be answered.
            wanted: has_data
                || !ack.before(o.tx_ack)
                || s.seq.before(x.rec.end())
                || (s.edge(x.rec.wscale_in) + x.rec.ack_off).after(o.tx_edge),
        }
    }

    /// The last step of a segment in DRAIN.
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

    /// The far end's copy: whatever has payload, and acknowledgements that tell it something new.
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
        // The local socket may have acknowledged more already: an acknowledgement never goes back.
        if raised {
            ack = o.tx_ack;
        } else {
            raise(&mut o.tx_ack, ack);
        }
        // What is missing below the cut is on its way through the sockets: o must not take it for lost.
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

    /// Whether payload that met a trap must wait: the sockets cannot go on yet, and something of its stream went past
    /// them.
    pub(super) fn keeps_trapped(&self, side: Side, s: &Segment) -> bool {
        let x = self.leg(side);
        went_past(x) && s.end().after(x.cut)
    }

    /// Payload that met a trap. Where nothing of its stream went past the local socket, that may have it at once: the cut
    /// has moved on.
    pub(super) fn drain_trapped(&mut self, side: Side, s: &Segment, in_place: bool) -> Outcome {
        raise(&mut self.legs(side).0.rec.rx_end, s.seq + s.len);
        self.drain_to_socket(side, s, in_place, true)
    }
}

/// The local socket's copy: payload below the cut, and acknowledgements of what it sent itself.
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
        // A reset is moved only from where it would count: a forged one could come to be in place.
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
