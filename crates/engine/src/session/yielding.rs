//! Lets an accelerated pair leave room in a bottleneck that it fills and shares, before it is spliced.

use std::{sync::atomic::Ordering, time::Duration};

use longsplice_core::{
    advisor::{Crowd, LegSample},
    reason::{RelayReason, SpliceReason},
};
use longsplice_dataplane::Side;
use longsplice_repair::options;
use tokio::time::Instant;

use super::pair::Session;
use crate::relay::{gate::Due, yielding::Counted};

/// Longest time between two looks at a pair that leaves room: there may be others no more.
const LOOK: Duration = Duration::from_millis(500);

impl Session<'_> {
    /// Counts the pair among those that have a queue, while it has one or leaves room behind one.
    pub(super) fn count_queues(&mut self, samples: &[LegSample]) {
        let has_queue = samples.iter().any(|leg| leg.standing_queue.is_some());
        if !has_queue && self.yielding.paced.is_none() {
            self.yielding.leave();
        } else if self.yielding.counted.is_none() {
            self.yielding.counted = Some(Counted::new(&self.context.queued));
        }
    }

    /// Begins to leave room to others, if they have less than a fair share; returns that a splice is due otherwise.
    pub(super) fn yields(&mut self, now: Instant, plain_percent: u32, samples: &[LegSample]) -> Due {
        let queues = Side::BOTH.into_iter().zip(samples);
        let longest = queues.max_by_key(|(_, leg)| leg.standing_queue.map(|queue| queue.time));
        let sender = longest.map_or(Side::Client, |(side, leg)| match leg.receives {
            true => side,
            false => side.other(),
        });
        let crowd = Crowd {
            rate: self.pace.rates()[sender],
            relayed: self.context.queued.load(Ordering::Relaxed),
            plain_percent,
            path: samples.iter().filter_map(|leg| leg.min_rtt).sum(),
        };
        let pacing = crowd.make_room().filter(|room| {
            let rate = u32::try_from(room.rate).unwrap_or(u32::MAX);
            options::set_max_pacing_rate(self.pump.socket(sender.other()), rate).is_ok()
        });
        let Some(room) = pacing else {
            self.note_splice_reason(SpliceReason::StandingQueue);
            return Due::Splice;
        };
        tracing::debug!(flow = %self.id(), ?crowd, ?room, "an accelerated pair leaves room to others");
        self.yielding.paced = Some((sender.other(), now + room.time));
        self.goes_on_yielding(now, plain_percent).unwrap_or(Due::Splice)
    }

    /// Returns what is due of a pair that leaves room: the next look, or the splice. Returns `None` if it leaves none, or need
    /// not any longer as there are no others.
    pub(super) fn goes_on_yielding(&mut self, now: Instant, plain_percent: u32) -> Option<Due> {
        let (_, until) = self.yielding.paced?;
        if plain_percent == 0 {
            self.lift_pacing();
            return None;
        }
        if now < until {
            self.entry.set_reason(Some(RelayReason::AdvisedYield));
            let next = self.gate.wait(now, (until - now).min(LOOK));
            return Some(Due::NotBefore(Some(next)));
        }
        self.note_splice_reason(SpliceReason::StandingQueue);
        Some(Due::Splice)
    }

    /// Lifts the limit of a socket's rate. The sockets of a pair that was spliced meanwhile may be others.
    pub(super) fn lift_pacing(&mut self) {
        if let Some((side, _)) = self.yielding.paced.take()
            && let Err(error) = options::set_max_pacing_rate(self.pump.socket(side), u32::MAX)
        {
            tracing::debug!(flow = %self.id(), %error, "the pacing of a leg is not lifted");
        }
    }
}
