//! What segments tell about the two ends: `track.h`.

use super::{
    outcome::Verdict,
    segment::{Segment, flag},
    state::{Flow, Leg, Record, Side, raise, seen, traits},
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

/// The least window that an acknowledgement may lie behind the highest one: segments overtake each other.
const LEAST_LATE: u32 = 65_535;

/// How far an echo may lie behind the highest TSval that its sender was sent.
const ECHO_SPAN: u32 = 1 << 24;

/// How far the echo of a late segment may.
const LATE_SPAN: u32 = 1 << 20;

/// Whether an acknowledgement lies further back than a window.
fn is_long_known(rec: &Record, ack: Seq) -> bool {
    let window = rec.rx_edge.raw().wrapping_sub(rec.rx_ack.raw());
    ack.before((rec.rx_ack - LEAST_LATE).min(rec.rx_ack - window))
}

/// Whether what is long known comes late, and is no guess: its echo is fresh, and it lies in the largest window that x could
/// offer.
fn is_late(rec: &Record, back: &Record, s: &Segment) -> bool {
    let least = rec.rx_ack - (65_535 << rec.wscale_in);
    rec.traits & traits::TIMESTAMPS != 0 && echoes(back, s, LATE_SPAN) && !s.ack.before(least)
}

/// Whether x acknowledges so little that no TCP takes the segment: nothing at all (RFC 9293 section 3.10.7.4), or what
/// lies further back than a window (RFC 5961 section 5.2). Raised, it would be taken.
pub(super) fn acks_too_little(rec: &Record, back: &Record, s: &Segment) -> bool {
    if !s.has(flag::ACK) {
        return !s.has(flag::SYN | flag::RST);
    }
    is_long_known(rec, s.ack) && !is_late(rec, back, s)
}

/// Whether x echoes one of the last `span` times that it was sent.
fn echoes(back: &Record, s: &Segment, span: u32) -> bool {
    s.ts.is_some_and(|ts| !ts.ecr.after(back.ts_high) && !ts.ecr.before(back.ts_high - span))
}

/// Whether x can have echoed that: once agreed, each segment has the option (RFC 7323 section 3.2).
fn is_echo(rec: &Record, back: &Record, s: &Segment) -> bool {
    rec.traits & traits::TIMESTAMPS == 0 || echoes(back, s, ECHO_SPAN)
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

/// What is to become of a segment that is forwarded: dropped by a verdict, or passed on, and noted or not.
pub(super) type Judgement = Result<bool, Verdict>;

/// Whether a segment of a spliced flow can be x's own (RFC 9293 section 3.10.7.4, RFC 5961): `judge_by` of `track.h`.
/// `offered` is how far x may send. Whether a SYN may provoke a challenge, the clock decides.
fn judge_by(rec: &Record, back: &Record, offered: Seq, s: &Segment, challenge: bool) -> Judgement {
    let acked = back.rx_ack + back.ack_off;
    let limit = offered + 1;
    if s.has(flag::RST) {
        let outside = s.seq.before(acked - 1) || s.seq.after(limit);
        return if outside {
            Err(Verdict::DropWindow)
        } else {
            Ok(false)
        };
    }
    if s.has(flag::SYN) {
        return if challenge {
            Ok(false)
        } else {
            Err(Verdict::DropSyn)
        };
    }
    if acks_too_little(rec, back, s) || s.ack.after(back.end() + back.seq_off) {
        return Err(Verdict::DropAck);
    }
    // What the far end may have acknowledged since x heard of it.
    let oldest = acked - 1 - (65_535 << (back.wscale_in & 15));
    if s.end().after(limit) || s.end().before(oldest) {
        return Err(Verdict::DropWindow);
    }
    if s.end().before(acked) {
        return Ok(false);
    }
    if s.seq.after(rec.end()) && !is_echo(rec, back, s) {
        return if s.occupies() {
            Err(Verdict::DropEcho)
        } else {
            Ok(false)
        };
    }
    Ok(true)
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

    /// `judge` of `walk.h`: whether what a segment says is to be noted, or by which verdict it is dropped.
    pub(super) fn judge(&mut self, side: Side, slotted: bool, s: &Segment, challenge: bool) -> Judgement {
        let Some(rec) = self.record_at(side, slotted).copied() else {
            return Ok(false);
        };
        let plain = s.has(flag::ACK) && !s.has(flag::SYN | flag::RST);
        let unlikely = is_long_known(&rec, s.ack) || s.ack.after(rec.rx_ack + (1 << 30));
        if s.seq == rec.rx_end && plain && !unlikely {
            return Ok(true);
        }
        let news = s.len > 0 && (s.seq + s.len).after(rec.rx_end);
        let judgement = match self.record(side.other()).copied() {
            None => Ok(false),
            Some(back) => {
                let mut offered = back.rx_edge + back.ack_off;
                // A local socket may have offered more before.
                if slotted {
                    offered = offered.max(self.leg(side).tx_edge);
                }
                judge_by(&rec, &back, offered, s, challenge)
            }
        };
        match judgement {
            // What is not noted must bring nothing.
            Ok(false) if news && !s.has(flag::RST) => Err(Verdict::DropWindow),
            other => other,
        }
    }
}
