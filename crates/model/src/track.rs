//! Notes the state of the two ends from their segments: `track.h`.

use longsplice_core::seq::Seq;

use super::{
    outcome::Verdict,
    segment::{Segment, flag},
    state::{Flow, Leg, Record, Side, raise, seen, traits},
};

pub(super) fn note_ack(rec: &mut Record, s: &Segment) {
    if !s.has(flag::ACK) || s.ack.before(rec.rx_ack) {
        return;
    }
    rec.rx_ack = s.ack;
    rec.rx_edge = rec.rx_edge.max(s.edge(rec.wscale_in));
}

/// Returns whether x has ended its stream and the far end has acknowledged that. `back` is the direction back.
pub(super) fn is_done(rec: &Record, back: &Record) -> bool {
    rec.seen & seen::FIN != 0 && !back.rx_ack.before(rec.end() + rec.seq_off)
}

/// Returns whether x has sent its last byte, `ack` covers it, and x has acknowledged the end of o's stream.
pub(super) fn is_closed_by(x: &Leg, o: &Leg, ack: Seq) -> bool {
    x.rec.seen & seen::FIN != 0 && !ack.before(x.rec.end()) && is_done(&o.rec, &x.rec)
}

/// Returns whether x has sent its last byte, was told that it has arrived, and has acknowledged the end of o's stream.
pub(super) fn is_through(x: &Leg, o: &Leg) -> bool {
    is_closed_by(x, o, x.tx_ack)
}

/// Returns whether a segment of x acknowledges bytes that neither the local socket nor, past it, the far end o has sent
/// to x.
pub(super) fn acks_unsent(x: &Leg, o: &Leg, s: &Segment) -> bool {
    // This includes a FIN of o that was forwarded and that the local socket has not repeated.
    let sent = o.rec.end().max(o.cut) + o.rec.seq_off;
    s.has(flag::ACK) && s.ack.after(x.loc_end.max(sent))
}

/// Smallest window by which an acknowledgement may lie behind the highest one: segments overtake each other.
const LEAST_LATE: u32 = 65_535;

/// Distance by which an echo may lie behind the highest TSval that its sender was sent.
const ECHO_SPAN: u32 = 1 << 24;

/// Distance by which the echo of a late segment may lie behind.
const LATE_SPAN: u32 = 1 << 20;

/// Returns whether an acknowledgement lies further back than a window.
fn is_long_known(rec: &Record, ack: Seq) -> bool {
    let window = rec.rx_edge.raw().wrapping_sub(rec.rx_ack.raw());
    ack.before((rec.rx_ack - LEAST_LATE).min(rec.rx_ack - window))
}

/// Returns whether an old acknowledgement is delayed rather than forged: recent TSecr, within the largest window that x
/// could offer.
fn is_late(rec: &Record, back: &Record, s: &Segment) -> bool {
    let least = rec.rx_ack - (65_535 << rec.wscale_in);
    rec.traits & traits::TIMESTAMPS != 0 && echoes(back, s, LATE_SPAN) && !s.ack.before(least)
}

/// Returns whether x acknowledges so little that no TCP accepts the segment: nothing at all (RFC 9293 section
/// 3.10.7.4), or a number further back than a window (RFC 5961 section 5.2). Raised, the acknowledgement would be
/// accepted.
pub(super) fn acks_too_little(rec: &Record, back: &Record, s: &Segment) -> bool {
    if !s.has(flag::ACK) {
        return !s.has(flag::SYN | flag::RST);
    }
    is_long_known(rec, s.ack) && !is_late(rec, back, s)
}

/// Returns whether x echoes a TSval from the last `span` values that it was sent.
fn echoes(back: &Record, s: &Segment, span: u32) -> bool {
    s.ts.is_some_and(|ts| !ts.ecr.after(back.ts_high) && !ts.ecr.before(back.ts_high - span))
}

/// Returns whether x can have sent this TSecr: once agreed, each segment has the option (RFC 7323 section 3.2).
fn is_echo(rec: &Record, back: &Record, s: &Segment) -> bool {
    rec.traits & traits::TIMESTAMPS == 0 || echoes(back, s, ECHO_SPAN)
}

/// Notes the fields of a segment of x in any mode that has a slot.
pub(super) fn note_peer(x: &mut Leg, s: &Segment, in_place: bool) {
    if !in_place {
        return;
    }
    note_ack(&mut x.rec, s);
    if s.has(flag::ACK) && !s.ack.before(x.rec.rx_ack) {
        x.rx_shrunk = (x.rec.rx_edge - s.edge(x.rec.wscale_in)) as u32;
    }
    if let Some(ts) = s.ts {
        x.rx_ts = x.rx_ts.max(ts.val);
    }
}

/// Judgement of a segment to forward: dropped by a verdict, or passed on, and noted (`true`) or not.
pub(super) type Judgement = Result<bool, Verdict>;

/// Judges whether a segment of a spliced flow can be x's own (RFC 9293 section 3.10.7.4, RFC 5961): `judge_by` of
/// `track.h`. `offered` is the edge up to which x may send. `challenge` tells whether a SYN may provoke a challenge
/// now.
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
    // The far end may have acknowledged this much since x last heard of it.
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

/// Notes the end of x's stream: a reset counts only where it can be in place (RFC 5961 sections 3.2 and 4.2).
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

/// Notes the end of x's payload; a FIN counts once its segment is claimed.
pub(super) fn note_end_of(rec: &mut Record, s: &Segment, in_place: bool) {
    // The number of an empty segment may be ahead of payload that is late, lost or held.
    if in_place && s.occupies() && !s.has(flag::SYN | flag::RST) {
        raise(&mut rec.rx_end, s.seq + s.len);
    }
}

/// Notes the TSval that o is about to see: before the claim, so that code that moves the flow has it.
pub(super) fn note_timestamp(rec: &mut Record, s: &Segment, in_place: bool) {
    if let Some(ts) = s.ts
        && in_place
    {
        raise(&mut rec.ts_high, ts.val + rec.tsval_off);
    }
}

impl Flow {
    /// Notes a FIN or RST: `note_fin_or_rst` of `walk.h`.
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

    /// Judges a segment: whether it is to be noted, or by which verdict it is dropped (`judge` of `walk.h`).
    pub(super) fn judge(&mut self, side: Side, slotted: bool, s: &Segment, challenge: bool) -> Judgement {
        let Some(rec) = self.record_at(side, slotted).copied() else {
            return Ok(false);
        };
        let plain = s.has(flag::ACK) && !s.has(flag::SYN | flag::RST);
        let beside = match slotted {
            true => Some(self.leg(side.other()).rec),
            false => self.records[side.other()],
        };
        let fits = beside.is_some_and(|back| {
            let sent = back.end() + back.seq_off;
            !s.ack.after(sent) && !s.end().after(back.rx_edge + back.ack_off + 1)
        });
        if s.seq == rec.rx_end && plain && !is_long_known(&rec, s.ack) && fits {
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
            // A segment that is not noted must not have new payload.
            Ok(false) if news && !s.has(flag::RST) => Err(Verdict::DropWindow),
            other => other,
        }
    }
}
