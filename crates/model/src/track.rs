//! Notes the state of the two ends from their segments (`track.h`), and decides which may pass (`admit.h`).

use longsplice_core::seq::Seq;

use super::{
    outcome::Verdict,
    segment::{Segment, flag},
    state::{Flow, Leg, Record, Side, seen, seq_advance, traits},
    window::LARGEST_WINDOW,
};

pub(super) fn note_ack(rec: &mut Record, seg: &Segment) {
    if !seg.has(flag::ACK) || seg.ack.before(rec.rx_ack) {
        return;
    }
    rec.rx_ack = seg.ack;
    rec.rx_edge = rec.rx_edge.max(seg.edge(rec.wscale_in));
}

/// Returns whether the sender has ended its stream and the far end has acknowledged that. `back` is the direction back.
pub(super) fn is_done(rec: &Record, back: &Record) -> bool {
    rec.seen & seen::FIN != 0 && !back.rx_ack.before(rec.end() + rec.seq_off)
}

/// Returns whether the sender has sent its last byte, `ack` covers it, and the sender has acknowledged the end of the
/// far end's stream.
pub(super) fn is_closed_by(from: &Leg, to: &Leg, ack: Seq) -> bool {
    from.rec.seen & seen::FIN != 0 && !ack.before(from.rec.end()) && is_done(&to.rec, &from.rec)
}

/// Returns whether the sender has sent its last byte, was told that it has arrived, and has acknowledged the end of the
/// far end's stream.
pub(super) fn is_through(from: &Leg, to: &Leg) -> bool {
    is_closed_by(from, to, from.tx_ack)
}

/// Returns whether a segment of the sender acknowledges bytes that neither the local socket nor, past it, the far end
/// has sent to the sender.
pub(super) fn acks_unsent(from: &Leg, to: &Leg, seg: &Segment) -> bool {
    // This includes a FIN of the far end that was forwarded and that the local socket has not repeated.
    let sent = to.rec.end().max(to.cut) + to.rec.seq_off;
    seg.has(flag::ACK) && seg.ack.after(from.loc_end.max(sent))
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

/// Returns whether an old acknowledgement is delayed rather than forged: recent TSecr, within the largest window that
/// the sender could offer.
fn is_late(rec: &Record, back: &Record, seg: &Segment) -> bool {
    let least = rec.rx_ack - (65_535 << rec.wscale_in);
    rec.traits & traits::TIMESTAMPS != 0 && echoes(back, seg, LATE_SPAN) && !seg.ack.before(least)
}

/// Returns whether the sender acknowledges so little that no TCP accepts the segment: nothing at all (RFC 9293 section
/// 3.10.7.4), or a number further back than a window (RFC 5961 section 5.2). Raised, the acknowledgement would be
/// accepted.
pub(super) fn acks_too_little(rec: &Record, back: &Record, seg: &Segment) -> bool {
    if !seg.has(flag::ACK) {
        return !seg.has(flag::SYN | flag::RST);
    }
    is_long_known(rec, seg.ack) && !is_late(rec, back, seg)
}

/// Returns whether the sender echoes a TSval from the last `span` values that it was sent.
fn echoes(back: &Record, seg: &Segment, span: u32) -> bool {
    seg.ts
        .is_some_and(|ts| !ts.ecr.after(back.ts_high) && !ts.ecr.before(back.ts_high - span))
}

/// Returns whether the sender can have sent this TSecr: once agreed, each segment has the option (RFC 7323 section
/// 3.2).
fn is_echo(rec: &Record, back: &Record, seg: &Segment) -> bool {
    rec.traits & traits::TIMESTAMPS == 0 || echoes(back, seg, ECHO_SPAN)
}

/// Notes the fields of a segment of the sender in any mode that has a slot.
pub(super) fn note_peer(from: &mut Leg, seg: &Segment, in_place: bool) {
    if !in_place {
        return;
    }
    note_ack(&mut from.rec, seg);
    if seg.has(flag::ACK) && !seg.ack.before(from.rec.rx_ack) {
        from.rx_shrunk = (from.rec.rx_edge - seg.edge(from.rec.wscale_in)) as u32;
    }
    if let Some(ts) = seg.ts {
        from.rx_ts = from.rx_ts.max(ts.val);
    }
}

/// Admission of a segment to forward: dropped by a verdict, or passed on, and noted (`true`) or not.
pub(super) type Admission = Result<bool, Verdict>;

/// Admits or refuses a reset: `admit_reset` of `admit.h`. `challenge` tells whether it may be moved into the far end's
/// window now, to be challenged there.
fn admit_reset(rec: &Record, back: &Record, offered: Seq, seg: &mut Segment, challenge: bool) -> Admission {
    let (acked, edge) = (back.rx_ack + back.ack_off, back.rx_edge + back.ack_off);
    if !is_held_back(rec, back, acked, seg) {
        let furthest = acked + (65_535 << (back.wscale_out & 15));
        if seg.seq.before(acked - 1) || seg.seq.after(furthest) {
            return Err(Verdict::DropWindow);
        }
        if !seg.seq.after(edge) {
            return Ok(false);
        }
    }
    // A smaller window may have no number that counts for nothing.
    if !edge.after(acked + 2) {
        let is_far = seg.seq.after(offered + 1);
        return if is_far {
            Err(Verdict::DropWindow)
        } else {
            Ok(false)
        };
    }
    if !challenge {
        return Err(Verdict::DropWindow);
    }
    let counts = edge - 1 == rec.end();
    seg.seq = edge - if counts { 2 } else { 1 };
    Ok(false)
}

/// Admits or refuses a segment of a spliced flow: it may be the sender's own, or not (RFC 9293 section 3.10.7.4, RFC 5961):
/// `admit_against` of `admit.h`. `offered` is the edge up to which the sender may send. `challenge` tells whether a SYN
/// may provoke a challenge now, as in [`admit_reset`].
fn admit_against(rec: &Record, back: &Record, offered: Seq, seg: &mut Segment, challenge: bool) -> Admission {
    let acked = back.rx_ack + back.ack_off;
    let limit = offered + 1;
    if seg.has(flag::RST) {
        return admit_reset(rec, back, offered, seg, challenge);
    }
    if seg.has(flag::SYN) {
        return if challenge {
            Ok(false)
        } else {
            Err(Verdict::DropSyn)
        };
    }
    if acks_too_little(rec, back, seg) || seg.ack.after(back.end() + back.seq_off) {
        return Err(Verdict::DropAck);
    }
    // The far end may have acknowledged this much since the sender last heard of it.
    // A segment that begins in the window passes whole: only the far end's answer tells its sender of the window.
    if (seg.seq.after(offered) && seg.end().after(limit)) || ends_too_early(seg, acked, back.wscale_in) {
        return Err(Verdict::DropWindow);
    }
    if is_held_back(rec, back, acked, seg) {
        seg.seq = acked;
    }
    if seg.end().before(acked) {
        return Ok(false);
    }
    if seg.seq.after(rec.end()) && !is_echo(rec, back, seg) {
        return if seg.occupies() {
            Err(Verdict::DropEcho)
        } else {
            Ok(false)
        };
    }
    Ok(true)
}

/// Returns whether a segment without payload has an old number because its sender's window was taken back below what it
/// had sent, and is neither late nor a probe: `is_held_back` of `admit.h`.
fn is_held_back(rec: &Record, back: &Record, acked: Seq, seg: &Segment) -> bool {
    seg.seq.before(acked)
        && seg.seq.before(rec.end() - 1)
        && !seg.occupies()
        && seg.has(flag::ACK)
        && !seg.ack.before(rec.rx_ack)
        && !seg.edge(rec.wscale_in).before(rec.rx_edge)
        && is_echo(rec, back, seg)
}

/// Returns whether a segment ends further below `acked` than a window of this scale reaches.
fn ends_too_early(seg: &Segment, acked: Seq, scale: u8) -> bool {
    seg.end().before(acked - 1 - (65_535 << (scale & 15)))
}

/// Returns whether the far end is to learn what a segment acknowledges and offers, while the sockets are in the path:
/// `tells` of `admit.h`.
pub(super) fn tells(from: &Leg, to: &Leg, seg: &Segment, in_place: bool) -> bool {
    in_place
        || is_held_back(&from.rec, &to.rec, from.tx_ack, seg)
            && !ends_too_early(seg, from.tx_ack, to.rec.wscale_out)
}

/// Returns whether a reset stands where it counts: at the end of the stream, where the far end expects it, or at an
/// acknowledged FIN (`ends_stream` of `track.h`).
pub(super) fn ends_stream(rec: &Record, acked: Seq, seg: &Segment) -> bool {
    let is_at_fin = rec.seen & seen::FIN != 0 && acked == rec.end() && seg.seq == rec.rx_end;
    seg.seq == acked || seg.seq == rec.end() || is_at_fin
}

/// Notes the end of the sender's stream: a reset counts only where it can be in place (RFC 5961 sections 3.2 and 4.2).
pub(super) fn note_end(rec: &mut Record, back: &Record, seg: &Segment) {
    if seg.has(flag::RST) {
        if ends_stream(rec, back.rx_ack + back.ack_off, seg) {
            rec.seen |= seen::RST;
        }
    } else if !(seg.seq + seg.len).before(rec.rx_end) {
        rec.seen |= seen::FIN;
    }
}

/// Notes the end of the sender's payload; a FIN counts once its segment is claimed. No end reads payload behind a FIN.
pub(super) fn note_end_of(rec: &mut Record, seg: &Segment, in_place: bool) {
    // The number of an empty segment may be ahead of payload that is late, lost or held.
    let ends = seg.occupies() && !seg.has(flag::SYN | flag::RST);
    if in_place && ends && rec.seen & seen::FIN == 0 {
        seq_advance(&mut rec.rx_end, seg.seq + seg.len);
    }
}

/// Notes the TSval that the far end is about to see: before the claim, so that code that moves the flow has it.
pub(super) fn note_timestamp(rec: &mut Record, seg: &Segment, in_place: bool) {
    if let Some(ts) = seg.ts
        && in_place
    {
        seq_advance(&mut rec.ts_high, ts.val + rec.tsval_off);
    }
}

impl Flow {
    /// Notes a FIN or RST: `note_fin_or_rst` of `track.h`.
    pub(super) fn note_fin_or_rst(&mut self, side: Side, slotted: bool, seg: &Segment, in_place: bool) {
        let ends = seg.has(flag::RST) || (in_place && seg.has(flag::FIN));
        if !ends {
            return;
        }
        let Some(back) = self.record(side.other()).copied() else {
            return;
        };
        if let Some(rec) = self.record_at(side, slotted) {
            note_end(rec, &back, seg);
        }
    }

    /// Admits a segment, to be noted or not, or refuses it by a verdict (`admit_segment` of `admit.h`).
    pub(super) fn admit_segment(
        &mut self,
        side: Side,
        slotted: bool,
        seg: &mut Segment,
        challenge: bool,
    ) -> Admission {
        let Some(rec) = self.record_at(side, slotted).copied() else {
            return Ok(false);
        };
        let plain = seg.has(flag::ACK) && !seg.has(flag::SYN | flag::RST);
        let beside = match slotted {
            true => Some(self.leg(side.other()).rec),
            false => self.records[side.other()],
        };
        let fits = beside.is_some_and(|back| {
            let sent = back.end() + back.seq_off;
            !seg.ack.after(sent) && !seg.end().after(back.rx_edge + back.ack_off + 1)
        });
        let has_ended = rec.seen & seen::FIN != 0;
        if seg.seq == rec.rx_end && !has_ended && plain && !is_long_known(&rec, seg.ack) && fits {
            return Ok(true);
        }
        let news = seg.len > 0 && (seg.seq + seg.len).after(rec.rx_end);
        let admission = match self.record(side.other()).copied() {
            None => Ok(false),
            Some(back) => {
                let mut offered = back.rx_edge + back.ack_off;
                // A local socket may have offered more before, by a window at most.
                let edge = self.leg(side).tx_edge;
                if slotted && (edge - offered) as u32 <= LARGEST_WINDOW {
                    offered = edge;
                }
                admit_against(&rec, &back, offered, seg, challenge)
            }
        };
        match admission {
            // A segment that is not noted, or behind a FIN, must not have new payload.
            Ok(in_place) if news && !seg.has(flag::RST) && (!in_place || has_ended) => {
                Err(Verdict::DropWindow)
            }
            other => other,
        }
    }
}
