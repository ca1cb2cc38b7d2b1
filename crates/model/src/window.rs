//! Computes the windows that an end may be offered: `window.h` and `window_field` of `seq.h`.

use longsplice_core::{coupling::LEAST_WINDOW, seq::Seq};

use super::state::{Leg, Slot, slot_flag};

/// Returns the window field that reaches from `ack` to `edge` at a scale: never beyond the edge, at most 65,535.
#[must_use]
pub fn window_field(edge: Seq, ack: Seq, scale: u8) -> u32 {
    let room = edge - ack;
    if room <= 0 {
        0
    } else {
        (room as u32 >> (scale & 15)).min(65_535)
    }
}

/// Returns the right edge that the sender may be offered before a drain (papers' section III-E).
pub(super) fn coupled_edge(from: &Leg, to: &Leg) -> Seq {
    let edge = to.rec.rx_edge + to.rec.ack_off;
    if from.max_inflight == 0 {
        edge
    } else {
        edge.min(to.rec.rx_ack + to.rec.ack_off + from.max_inflight)
    }
}

/// Returns the bytes that the local socket of the sender's leg can take from `cut` on.
fn kept_by(from: &Leg, cut: Seq) -> u32 {
    (from.loc_edge - cut) as u32
}

/// Returns the right edge that the sender may be offered while segments are forwarded: that of the far end, but no more
/// than the local socket of the sender's leg could take if it had to continue now, at `next`; an edge once promised stays.
/// A leg that pauses at its trap may have all up to there, and little beyond.
pub(super) fn kept_edge(slot: &Slot, from: &Leg, next: Seq, edge: Seq) -> Seq {
    if slot.flags & slot_flag::KEEP == 0 {
        return edge;
    }
    let kept = kept_by(from, from.cut);
    let mut limit = next + kept;
    if slot.flags & slot_flag::PAUSE != 0 && from.rec.armed {
        limit = limit
            .max(from.rec.trap - SUPER_PACKET + kept)
            .min(from.rec.trap + LEAST_WINDOW);
    }
    edge.min(limit.max(from.tx_edge))
}

/// Most bytes of a stream that pass the sender's socket in DRAIN.
const MOST_BESIDE: u32 = 1 << 30;

/// Returns the same in DRAIN, where the stream may stand below the cut, and pauses `MOST_BESIDE` beyond it.
pub(super) fn kept_edge_in_drain(slot: &Slot, from: &Leg, edge: Seq) -> Seq {
    let kept = kept_edge(slot, from, from.rec.rx_end.max(from.cut), edge);
    kept.min((from.cut + MOST_BESIDE).max(from.tx_edge))
}

/// Largest window (RFC 7323 section 2.3).
pub(super) const LARGEST_WINDOW: u32 = 1 << 30;

/// Returns whether the sender's socket, which stood at `cut` and continues at `base`, can take all that the sender was
/// promised.
pub(super) fn keeps_promise(from: &Leg, cut: Seq, base: Seq) -> bool {
    !from.tx_edge.after(base + kept_by(from, cut))
}

/// Returns whether the local socket could take the segment (`fits_window`).
pub(super) fn fits_window(from: &Leg, end: Seq) -> bool {
    !end.after(from.loc_edge.max(from.tx_edge) + 1)
}

/// Longest segment, in bytes, except for BIG TCP.
const SUPER_PACKET: u32 = 65_536;

/// Limits the window of an awake pair to the size of the far end's, so that the pair may be spliced again at once. It
/// moves on with the local socket's acknowledgements, independently of the far end.
pub(super) fn modest_edge(to: &Leg, ack: Seq, edge: Seq) -> Seq {
    let far = (to.rec.rx_edge - to.rec.rx_ack) as u32;
    edge.min(ack + far.max(LEAST_WINDOW))
}
