//! Models UNDRAIN (papers' section III-D, `undrain.h`): the pair is awake. The two ends deliver the payload forwarded
//! before, below `base`, until it is acknowledged; the sockets deliver the payload from there on.

use longsplice_core::seq::Seq;

use super::{
    forward::translate,
    local::{Mapping, SackEdit, for_socket, within_window},
    outcome::{Outcome, Verdict},
    segment::{Segment, flag},
    state::{Flow, Leg, Mode, Side, bypassed, raise},
    window::window_field,
};

/// Returns the start of the local socket's stream toward x, if payload was forwarded before it.
pub(super) fn first_own(o: &Leg) -> Seq {
    o.base + o.rec.seq_off
}

/// Returns the number of a segment without payload for x at which x processes its acknowledgement: not before the data
/// that x has, nor beyond the window that x offers.
pub(super) fn reachable(x: &Leg, seq: Seq) -> Seq {
    seq.min(x.rec.rx_edge - x.rx_shrunk).max(x.rec.rx_ack)
}

/// Returns whether o has acknowledged all that was forwarded to it from x.
pub(super) fn settled(x: &Leg, o: &Leg) -> bool {
    x.bypassed & bypassed::SOME == 0 || !o.rec.rx_ack.before(x.base + x.rec.seq_off)
}

impl Flow {
    /// Processes a segment of x. `heard`: before this segment, o had all of x's acknowledgements that concern it.
    pub(super) fn undrain(&mut self, side: Side, s: &Segment, in_place: bool, heard: bool) -> Outcome {
        let (x, o) = self.legs(side);
        let old = x.bypassed & bypassed::SOME != 0 && s.occupies() && s.seq.before(x.base);
        // Once o has acknowledged all of it, x only missed the acknowledgement: the local socket repeats it.
        if old && !s.end().after(x.base) && !settled(x, o) {
            return Outcome::far(Verdict::Forwarded, undrain_far(x, o, s, in_place));
        }
        // A part was forwarded and the rest must not be: user space splits the segment.
        if old && s.end().after(x.base) {
            return Outcome::held(*s);
        }
        // x is gone, and its last payload may be lost with it: o must not wait for that.
        let copied = !heard || (s.has(flag::RST) && !settled(x, o));
        self.note_fin_or_rst(side, true, s, in_place);
        let (x, o) = self.legs(side);
        let mut outcome = Outcome::local(Verdict::Delivered, undrain_local_copy(x, o, s, in_place));
        outcome.acknowledge = copied.then_some(*s);
        outcome
    }

    /// Forwards only the acknowledgement of a packet of x, to o (TAG_ACK).
    pub(super) fn undrain_acknowledge(&mut self, side: Side, s: &Segment) -> Outcome {
        if self.slot.mode != Mode::Undrain {
            return Outcome::of(Verdict::Absorbed);
        }
        let (x, o) = self.legs(side);
        let mut s = *s;
        // A reset keeps its number: moved, a forged one could come to be in place.
        if !s.has(flag::RST) {
            // Use the end of all that was sent to o: below the data that it has, o would not process the
            // acknowledgement.
            s.seq = reachable(o, o.loc_end) - x.rec.seq_off;
        }
        s.flags &= flag::ACK | flag::RST;
        s.len = 0;
        Outcome::far(Verdict::Forwarded, undrain_far(x, o, &s, true))
    }
}

/// Returns the segment with x's acknowledgement for o, as far as it is about bytes that o sent past the sockets. Once
/// all of those are acknowledged, the local socket's own acknowledgement takes over.
fn undrain_far(x: &mut Leg, o: &mut Leg, s: &Segment, in_place: bool) -> Segment {
    let mut ack = s.ack + x.rec.ack_off;
    let (mut new, mut sack) = translate(&mut x.rec, s, in_place);
    if !s.has(flag::ACK) {
        return new;
    }
    if o.bypassed & bypassed::SOME == 0 {
        ack = o.tx_ack;
    } else if !ack.before(o.base) {
        ack = o.base.max(o.loc_ack);
    }
    ack = ack.max(o.tx_ack);
    raise(&mut o.tx_ack, ack);
    if sack == SackEdit::Shift {
        sack = if o.bypassed & bypassed::SOME != 0 && ack.before(o.base) {
            SackEdit::Clip(ack, o.base)
        } else {
            SackEdit::Blank
        };
    }
    new.ack = ack;
    new.window = window_field(o.tx_edge, ack, x.rec.wscale_out);
    new.sack = sack.apply(s.sack, x.rec.ack_off);
    new
}

/// Returns the local socket's copy. An acknowledgement from before the socket's stream began is shown to it as one of
/// all bytes before; the window's edge stays that of x.
fn undrain_local_copy(x: &mut Leg, o: &Leg, s: &Segment, in_place: bool) -> Segment {
    let edge = s.edge(x.rec.wscale_in);
    let mut ack = s.ack;
    if o.bypassed & bypassed::SOME != 0 && ack.before(first_own(o)) {
        ack = first_own(o);
    }
    ack = ack.min(x.loc_end);
    let mut h = within_window(x, s);
    let mut sack = SackEdit::Shift;
    if ack != s.ack && s.has(flag::ACK) {
        h.ack = ack;
        h.window = window_field(edge, ack, x.rec.wscale_in);
        sack = if ack.before(x.loc_end) {
            SackEdit::Clip(ack, x.loc_end)
        } else {
            SackEdit::Blank
        };
    }
    if in_place && s.has(flag::ACK) {
        x.loc_acked = x.loc_acked.max(ack);
    }
    for_socket(h, sack, Mapping::of_leg(x))
}
