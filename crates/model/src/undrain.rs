//! Models UNDRAIN (papers' section III-D, `undrain.h`): the pair is awake. The two ends deliver the payload forwarded
//! before, below `base`, until it is acknowledged; the sockets deliver the payload from there on.

use longsplice_core::seq::Seq;

use super::{
    forward::translate,
    local::{Mapping, SackEdit, for_socket, within_window},
    outcome::{Outcome, Verdict},
    segment::{Segment, flag},
    state::{Flow, Leg, Mode, Side, bypassed, seq_advance},
    track::tells,
    window::window_field,
};

/// Returns the start of the local socket's stream toward the sender, if payload was forwarded before it.
pub(super) fn first_own(to: &Leg) -> Seq {
    to.base + to.rec.seq_off
}

/// Returns the number of a segment without payload for the sender at which the sender processes its acknowledgement:
/// not before the data that the sender has, nor beyond the window that the sender offers.
pub(super) fn reachable(from: &Leg, seq: Seq) -> Seq {
    seq.min(from.rec.rx_edge - from.rx_shrunk).max(from.rec.rx_ack)
}

/// Returns whether the far end has acknowledged all that was forwarded to it from the sender.
pub(super) fn has_delivered(from: &Leg, to: &Leg) -> bool {
    from.bypassed & bypassed::SOME == 0 || !to.rec.rx_ack.before(from.base + from.rec.seq_off)
}

impl Flow {
    /// Processes a segment of the sender. `heard`: before this segment, the far end had all of the sender's
    /// acknowledgements that concern it.
    pub(super) fn undrain(&mut self, side: Side, seg: &Segment, in_place: bool, heard: bool) -> Outcome {
        let (from, to) = self.legs(side);
        let old = from.bypassed & bypassed::SOME != 0 && seg.occupies() && seg.seq.before(from.base);
        // Once the far end has acknowledged all of it, the sender only missed the acknowledgement: the local socket
        // repeats it.
        if old && !seg.end().after(from.base) && !has_delivered(from, to) {
            return Outcome::far(Verdict::Forwarded, undrain_far(from, to, seg, in_place));
        }
        // A part was forwarded and the rest must not be: user space splits the segment.
        if old && seg.end().after(from.base) {
            return Outcome::held(*seg);
        }
        // The sender is gone, and its last payload may be lost with it: the far end must not wait for that.
        let copied = match seg.has(flag::RST) {
            true => !heard || !has_delivered(from, to),
            false => !heard && tells(from, to, seg, in_place),
        };
        self.note_fin_or_rst(side, true, seg, in_place);
        let (from, to) = self.legs(side);
        let mut outcome = Outcome::local(Verdict::Delivered, undrain_local_copy(from, to, seg, in_place));
        outcome.acknowledge = copied.then_some(*seg);
        outcome
    }

    /// Forwards only the acknowledgement of a packet of the sender, to the far end (TAG_ACK).
    pub(super) fn undrain_acknowledge(&mut self, side: Side, seg: &Segment) -> Outcome {
        if self.slot.mode != Mode::Undrain {
            return Outcome::of(Verdict::Absorbed);
        }
        let (from, to) = self.legs(side);
        let mut seg = *seg;
        // A reset keeps its number: moved, a forged one could come to be in place.
        if !seg.has(flag::RST) {
            // Use the end of all that was sent to the far end: below the data that it has, the far end would not
            // process the acknowledgement.
            seg.seq = reachable(to, to.loc_end) - from.rec.seq_off;
        }
        seg.flags &= flag::ACK | flag::RST;
        seg.len = 0;
        let in_place = !seg.has(flag::RST);
        Outcome::far(Verdict::Forwarded, undrain_far(from, to, &seg, in_place))
    }
}

/// Returns the segment with the sender's acknowledgement for the far end, as far as it is about bytes that the far end
/// sent past the sockets. Once all of those are acknowledged, the local socket's own acknowledgement takes over.
fn undrain_far(from: &mut Leg, to: &mut Leg, seg: &Segment, in_place: bool) -> Segment {
    let mut ack = seg.ack + from.rec.ack_off;
    let (mut new, mut sack) = translate(&mut from.rec, seg, in_place);
    if !seg.has(flag::ACK) {
        return new;
    }
    if to.bypassed & bypassed::SOME == 0 || !in_place {
        ack = to.tx_ack;
    } else if !ack.before(to.base) {
        ack = to.base.max(to.loc_ack);
    }
    ack = ack.max(to.tx_ack);
    seq_advance(&mut to.tx_ack, ack);
    if sack == SackEdit::Shift {
        sack = if to.bypassed & bypassed::SOME != 0 && ack.before(to.base) {
            SackEdit::Clip(ack, to.base)
        } else {
            SackEdit::Blank
        };
    }
    new.ack = ack;
    new.window = window_field(to.tx_edge, ack, from.rec.wscale_out);
    new.sack = sack.apply(seg.sack, from.rec.ack_off);
    new
}

/// Returns the local socket's copy. An acknowledgement from before the socket's stream began is shown to it as one of
/// all bytes before; the window's edge stays that of the sender.
fn undrain_local_copy(from: &mut Leg, to: &Leg, seg: &Segment, in_place: bool) -> Segment {
    let edge = seg.edge(from.rec.wscale_in);
    let mut ack = seg.ack;
    if to.bypassed & bypassed::SOME != 0 && ack.before(first_own(to)) {
        ack = first_own(to);
    }
    ack = ack.min(from.loc_end);
    let mut h = within_window(from, seg);
    let mut sack = SackEdit::Shift;
    if ack != seg.ack && seg.has(flag::ACK) {
        h.ack = ack;
        h.window = window_field(edge, ack, from.rec.wscale_in);
        sack = if ack.before(from.loc_end) {
            SackEdit::Clip(ack, from.loc_end)
        } else {
            SackEdit::Blank
        };
    }
    if in_place && seg.has(flag::ACK) {
        from.loc_acked = from.loc_acked.max(ack);
    }
    for_socket(h, sack, Mapping::of_leg(from))
}
