//! What an end may be offered: `window.h` and `window_field` of `seq.h`.

use super::state::{Leg, Slot, slot_flag};
use crate::seq::Seq;

/// The window field that reaches from `ack` to `edge` at a scale: never more than the edge, at most 65,535.
#[must_use]
pub fn window_field(edge: Seq, ack: Seq, scale: u8) -> u32 {
    let room = edge - ack;
    if room <= 0 {
        0
    } else {
        (room as u32 >> (scale & 15)).min(65_535)
    }
}

/// Before a drain: the right edge that x may be offered (papers' section III-E).
pub(super) fn coupled_edge(x: &Leg, o: &Leg) -> Seq {
    let edge = o.rec.rx_edge + o.rec.ack_off;
    if x.room == 0 {
        edge
    } else {
        edge.min(o.rec.rx_ack + o.rec.ack_off + x.room)
    }
}

/// How much the local socket of x's leg can take from where it stands.
fn kept_by(x: &Leg, cut: Seq) -> u32 {
    (x.loc_edge - cut) as u32
}

/// While segments are forwarded: the edge that the far end offers, but no more than the local socket of x's leg could
/// keep, should it have to go on now; what was promised stays. One that pauses at its trap may have all up to there, and
/// little beyond.
pub(super) fn kept_edge(slot: &Slot, x: &Leg, edge: Seq) -> Seq {
    if slot.flags & slot_flag::KEEP == 0 {
        return edge;
    }
    let kept = kept_by(x, x.cut);
    let mut limit = x.rec.rx_end.max(x.cut) + kept;
    if slot.flags & slot_flag::PAUSE != 0 && x.rec.armed {
        limit = limit
            .max(x.rec.trap - SUPER_PACKET + kept)
            .min(x.rec.trap + LEAST_WINDOW);
    }
    edge.min(limit.max(x.tx_edge))
}

/// Whether x's socket can take what x was promised, where it stood at `cut` and goes on at `base`.
pub(super) fn keeps_promise(x: &Leg, cut: Seq, base: Seq) -> bool {
    !x.tx_edge.after(base + kept_by(x, cut))
}

/// Whether the local socket could take the segment (`fits_window`).
pub(super) fn fits_window(x: &Leg, end: Seq) -> bool {
    !end.after(x.loc_edge.max(x.tx_edge) + 1)
}

/// No window is worth less than this, in bytes; and one that pauses at its trap is offered no more beyond it (`LEAST_WINDOW`).
pub const LEAST_WINDOW: u32 = 32_768;

/// The longest segment, in bytes, but for BIG TCP.
const SUPER_PACKET: u32 = 65_536;

/// Awake: a window no larger than the far end's, so that the pair may be spliced again at once. It moves on with what the
/// local socket acknowledges, whatever the far end does.
pub(super) fn modest_edge(o: &Leg, ack: Seq, edge: Seq) -> Seq {
    let far = (o.rec.rx_edge - o.rec.rx_ack) as u32;
    edge.min(ack + far.max(LEAST_WINDOW))
}
