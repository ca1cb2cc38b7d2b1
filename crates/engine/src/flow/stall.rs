//! Limits how long a flow waits for an end's acknowledgements, and gives it up.

use std::sync::Arc;

use longsplice_core::{
    patience::{Stall, Waiter, is_hopeless},
    seq::Seq,
};
use longsplice_dataplane::{LegState, Mode, PerSide, Side};
use tokio::time::Instant;

use super::{Flow, has_heard_all};
use crate::kernel::packet::{question, reset};

/// Last progress of both ends, and the time of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    ends: PerSide<End>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    ack: Seq,
    acked: Instant,
    signs: ([Seq; 2], u32),
    lived: Instant,
}

impl End {
    fn of(x: &LegState, now: Instant) -> End {
        End {
            ack: x.rx_ack,
            acked: now,
            // An answer to a probe changes at least the time.
            signs: ([x.rx_edge, x.rx_end], x.last_seen),
            lived: now,
        }
    }

    fn note(&mut self, x: &LegState, now: Instant) {
        let seen = End::of(x, now);
        if seen.ack != self.ack {
            (self.ack, self.acked) = (seen.ack, now);
        }
        if seen.signs != self.signs || self.acked == now {
            (self.signs, self.lived) = (seen.signs, now);
        }
    }
}

impl Flow {
    /// Returns true if the flow is to be given up: an end has failed to acknowledge for too long. Call it every now and
    /// then; it counts from the first call for which an acknowledgement was due.
    pub(crate) fn is_hopeless(&mut self, now: Instant, waiter: Waiter) -> bool {
        let states = PerSide::from_fn(|side| self.leg(side));
        let due = PerSide::from_fn(|side| self.owes(&states, side));
        if due == PerSide::both(false) {
            self.heard = None;
            return false;
        }
        let mut heard = *self.heard.get_or_insert(Heard {
            ends: states.as_ref().map(|x| End::of(x, now)),
        });
        for side in Side::BOTH {
            let end = &mut heard.ends[side];
            end.note(&states[side], now);
            if !due[side] {
                // Its time begins when an acknowledgement is due.
                (end.acked, end.lived) = (now, now);
            }
        }
        self.heard = Some(heard);
        let short = self.plane().is_short_of_slots();
        heard.ends.iter().zip(due).any(|(end, due)| {
            let stall = Stall {
                stalled: now.duration_since(end.acked),
                silent: now.duration_since(end.lived),
            };
            due && is_hopeless(stall, waiter, short)
        })
    }

    /// Returns true if the end of a side has not acknowledged the old bytes that it was sent.
    fn owes(&self, states: &PerSide<LegState>, side: Side) -> bool {
        let (o, x) = (&states[side], &states[side.other()]);
        let old = match self.mode() {
            Mode::Drain => x.cut,
            _ if x.bypassed => x.base,
            _ => return false,
        };
        o.rx_ack.before(old + x.seq_off)
    }

    /// Returns true if an end, or one of its sockets, was reset in the middle of the return, so that the flow will never
    /// settle. In mode Track no byte bypasses the sockets, and a reset is theirs alone: the end of a stream that came between
    /// assessment and registration is in its socket only, and its sender, which is gone, answers an announcement with one.
    pub(crate) fn is_cut_off(&self) -> bool {
        match self.mode() {
            Mode::Track => false,
            Mode::Undrain => self.was_reset(),
            _ => true,
        }
    }

    /// Ends a flow both of whose sockets were closed by a reset. That of a socket stands behind all that its end was sent. An end
    /// that lacks some of it challenges the reset (RFC 5961 section 3.2), and the kernel resets it in place; but an end challenges
    /// only once in a while. So each end that lacks bytes is asked what it expects, and the kernel answers that with a reset, too.
    pub(crate) fn end_by_reset(self) {
        let lacking = self.lacking();
        self.end_by_questions(lacking);
    }

    /// Returns true for each end that lacks bytes, and was not heard to reset.
    pub(crate) fn lacking(&self) -> PerSide<bool> {
        let states = PerSide::from_fn(|side| self.leg(side));
        PerSide::from_fn(|side| !states[side].reset && !has_heard_all(&states, side))
    }

    /// Ends a flow whose sockets are gone, and asks these ends what they expect: see [`Flow::end_by_reset`].
    pub(crate) fn end_by_questions(self, asked: PerSide<bool>) {
        let ask = |side| {
            (
                self.legs[side],
                self.marked[side],
                question(self.legs[side], &self.leg(side)),
            )
        };
        let questions: Vec<_> = Side::BOTH
            .into_iter()
            .filter(|&side| asked[side])
            .map(ask)
            .collect();
        let kernel = Arc::clone(&self.kernel);
        // Release the flow first: its programs would take the questions for segments of the sockets.
        drop(self);
        for (leg, is_marked, question) in questions {
            if let Err(error) = kernel.announcer.send_as(is_marked, leg.peer.ip(), &question) {
                tracing::debug!(%error, ?leg, "cannot ask an end whether it was reset");
            }
        }
    }

    /// Resets both ends and their sockets: each end is sent a reset as if from the other one. Keep the flow for a moment,
    /// until they have been told.
    pub(crate) fn reset_all(&self) {
        for side in Side::BOTH {
            let leg = self.legs[side];
            let x = self.leg(side);
            let mapping = match self.mode() {
                Mode::Track | Mode::Undrain => x.mapping,
                // Incoming segments are not mapped in other modes.
                _ => Default::default(),
            };
            let hint = self.interfaces[side.other()];
            let (seq, interface) = match self.plane().inspect(leg) {
                Ok(inspection) => (inspection.rcv_nxt - mapping.seq, inspection.ifindex),
                // Its socket is gone; reset the other end all the same.
                Err(_) => (x.end(), hint),
            };
            if interface == 0 {
                continue;
            }
            if let Err(error) = self.plane().inject(interface, &reset(leg, &x, seq)) {
                tracing::debug!(%error, ?leg, "cannot reset a socket: its peer is reset by its next segment");
            }
        }
    }
}
