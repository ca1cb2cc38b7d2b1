//! What segments tell about the two ends: `track.h`.

use super::{
    segment::{Segment, flag},
    state::{Flow, Leg, Record, Side, raise, seen},
};
use crate::seq::Seq;

pub(super) fn note_ack(rec: &mut Record, s: &Segment) {
    if !s.has(flag::ACK) || s.ack.before(rec.rx_ack) {
        return;
    }
    rec.rx_ack = s.ack;
    rec.rx_edge = rec.rx_edge.max(s.edge(rec.wscale_in));
}

/// Whether a segment of x acknowledges what nobody sent to it: the local socket, or the far end o past it.
pub(super) fn acks_unsent(x: &Leg, o: &Leg, s: &Segment) -> bool {
    // With a FIN of o that was forwarded, while the local socket has not said it again.
    let sent = o.rec.end().max(o.cut) + o.rec.seq_off;
    s.has(flag::ACK) && s.ack.after(x.loc_end.max(sent))
}

/// Whether its acknowledgement is older than any that the other end would accept (RFC 5961 section 5.2): raised, it
/// would be.
pub(super) fn acks_too_old(rec: &Record, s: &Segment) -> bool {
    s.has(flag::ACK) && s.ack.before(rec.rx_ack - (65_535 << (rec.wscale_in & 15)))
}

/// What a segment of x tells in any mode that has a slot.
pub(super) fn note_peer(x: &mut Leg, s: &Segment, in_place: bool) {
    if !in_place {
        return;
    }
    note_ack(&mut x.rec, s);
    if let Some(ts) = s.ts {
        x.rx_ts = x.rx_ts.max(ts.val);
    }
}

/// Whether a translated segment can be x's own (RFC 9293 section 3.10.7.4, RFC 5961 section 5.2).
pub(super) fn in_window(rec: &Record, back: &Record, edge: Seq, s: &Segment) -> bool {
    let acked = back.rx_ack + back.ack_off;
    let unsent = s.has(flag::ACK) && s.ack.after(back.end() + back.seq_off);
    let within = s.end().at_or_after(acked) && s.end().at_or_before(edge + 1);
    within && !unsent && !acks_too_old(rec, s)
}

/// The end of x's stream: a reset counts only where it can be in place (RFC 5961 sections 3.2 and 4.2).
pub(super) fn note_end(rec: &mut Record, back: &Record, s: &Segment) {
    let acked = back.rx_ack + back.ack_off;
    if s.has(flag::RST) {
        if s.seq == acked || s.seq == rec.end() {
            rec.seen |= seen::RST;
        }
    } else {
        rec.seen |= seen::FIN;
    }
}

/// Notes how far x's payload goes; a FIN counts once its segment is claimed.
pub(super) fn note_end_of(rec: &mut Record, s: &Segment, in_place: bool) {
    // The number of an empty segment is ahead of what is late, lost or held.
    if in_place && s.occupies() && !s.has(flag::SYN | flag::RST) {
        raise(&mut rec.rx_end, s.seq + s.len);
    }
}

/// Notes the TSval that o is about to see: before the claim, so that whoever takes the flow elsewhere has it.
pub(super) fn note_timestamp(rec: &mut Record, s: &Segment, in_place: bool) {
    if let Some(ts) = s.ts
        && in_place
    {
        raise(&mut rec.ts_high, ts.val + rec.tsval_off);
    }
}

impl Flow {
    /// `note_fin_or_rst` of `walk.h`.
    pub(super) fn note_fin_or_rst(&mut self, side: Side, slotted: bool, s: &Segment, in_place: bool) {
        let ends = s.has(flag::RST) || (in_place && s.has(flag::FIN));
        if !ends {
            return;
        }
        let Some(back) = self.record(side.other()).copied() else {
            return;
        };
        if let Some(rec) = self.record_at(side, slotted) {
            note_end(rec, &back, s);
        }
    }

    /// `judge` of `walk.h`: whether what a segment says is to be noted.
    pub(super) fn judge(&mut self, side: Side, slotted: bool, s: &Segment) -> bool {
        let Some(rec) = self.record_at(side, slotted).copied() else {
            return false;
        };
        let unlikely = acks_too_old(&rec, s) || s.ack.after(rec.rx_ack + (1 << 30));
        if s.seq == rec.rx_end && !s.has(flag::SYN) && !unlikely {
            return true;
        }
        let Some(back) = self.record(side.other()) else {
            return false;
        };
        let mut edge = back.rx_edge + back.ack_off;
        // A local socket may have offered more before.
        if slotted {
            edge = edge.max(self.leg(side).tx_edge);
        }
        !s.has(flag::SYN) && in_window(&rec, back, edge, s)
    }
}
