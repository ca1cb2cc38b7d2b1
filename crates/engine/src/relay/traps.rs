//! Tracks the conditions of one call of `splice`.

use std::time::Duration;

use longsplice_dataplane::{PerSide, Side, SuccessorAction, SuccessorPlan};
use tokio::time::Instant;

use crate::{
    api::{Trap, Until},
    relay::pump::Pump,
};

/// Distance of a trap, in bytes from the next one to be read on, and the plan for a successor of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Distance {
    pub(crate) bytes: u32,
    pub(crate) plan: SuccessorPlan,
}

/// Progress of a pair toward its traps.
#[derive(Debug)]
pub(crate) struct Traps {
    until: Until,
    successor: SuccessorAction,
    since: Instant,
    active: Instant,
    asked: bool,
    /// Payload bytes that bypassed the sockets.
    past: PerSide<u64>,
}

impl Traps {
    pub(crate) fn new(until: Until, successor: SuccessorAction, now: Instant) -> Traps {
        Traps {
            until,
            successor,
            since: now,
            active: now,
            asked: false,
            past: PerSide::both(0),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.until.is_closed()
    }

    /// Returns true if the payload of either side is limited.
    pub(crate) fn has_budgets(&self) -> bool {
        Side::BOTH.iter().any(|&side| self.until.budget(side).is_some())
    }

    /// Notes activity.
    pub(crate) fn note_activity(&mut self, now: Instant) {
        self.active = now;
    }

    /// Counts payload bytes of a side that bypassed the sockets.
    pub(crate) fn note_past(&mut self, side: Side, bytes: u64) {
        self.past[side] += bytes;
    }

    /// Returns the payload bytes of both sides that bypassed the sockets.
    pub(crate) fn past(&self) -> u64 {
        self.past.iter().sum()
    }

    /// Notes a request to give the pair back.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// Returns the payload bytes of each side that have passed in all.
    pub(crate) fn passed(&self, pump: &Pump) -> PerSide<u64> {
        PerSide::from_fn(|side| self.past[side] + pump.bytes(side) - pump.held(side) as u64)
    }

    /// Returns the number of bytes that the pump may read of a side, in the pump's count.
    pub(crate) fn pump_limit(&self, side: Side) -> Option<u64> {
        self.until.budget(side).map(|b| b.saturating_sub(self.past[side]))
    }

    /// Returns the number of bytes of a side behind which all is the caller's, in the pump's count.
    pub(crate) fn pump_end(&self, side: Side) -> Option<u64> {
        // With a condition of data, an end of the stream passes.
        self.pump_limit(side).filter(|_| !self.until.is_data(side))
    }

    /// Returns the bytes from the next one to be read on that bring control back, once they have passed or are there. A
    /// trap that is too far for a sequence number is approached in steps.
    pub(crate) fn distance(&self, side: Side, pump: &Pump) -> Option<Distance> {
        let left = self.pump_limit(side)?.saturating_sub(pump.bytes(side));
        let (plan, bytes) = SuccessorPlan::of(self.successor, left, self.until.is_data(side));
        Some(Distance { bytes, plan })
    }

    /// Returns true if the pump may read no more of a side.
    pub(crate) fn is_used_up(&self, side: Side, pump: &Pump) -> bool {
        self.pump_limit(side)
            .is_some_and(|limit| pump.bytes(side) >= limit)
    }

    /// Returns the bytes of a side that may still be read, if payload beyond them brings control back.
    pub(crate) fn left_before_data(&self, side: Side, pump: &Pump) -> Option<u64> {
        let limit = self.pump_limit(side).filter(|_| self.until.is_data(side))?;
        Some(limit.saturating_sub(pump.bytes(side)))
    }

    /// Returns the bytes of the nearer budget of bytes that were not read yet; read ones may not all be written. At 0
    /// there is nothing to splice for: an end of the stream behind it is the caller's, and would pass.
    pub(crate) fn left(&self, pump: &Pump) -> Option<u64> {
        let budgets = Side::BOTH.into_iter().filter(|&side| !self.until.is_data(side));
        budgets
            .filter_map(|side| Some(self.pump_limit(side)?.saturating_sub(pump.bytes(side))))
            .min()
    }

    /// Returns the trap if the rest of a predecessor's budgets has passed. Data beyond it belongs to no caller.
    fn rest_is_over(&self, pump: &Pump) -> Option<Trap> {
        let spent = |side| self.is_used_up(side, pump) && pump.held(side) == 0;
        let over = |side| spent(side) || pump.passed_eof(side);
        let last = Side::BOTH
            .into_iter()
            .find(|&side| spent(side) && !self.until.is_data(side));
        let all = Side::BOTH.into_iter().all(over).then_some(Side::Server);
        last.or(all).map(Trap::of)
    }

    /// Returns the condition of payload that is met.
    fn met(&self, pump: &Pump) -> Option<Trap> {
        if self.until.is_rest() {
            return self.rest_is_over(pump);
        }
        for side in Side::BOTH {
            let used_up = self.is_used_up(side, pump);
            let is_data = self.until.is_data(side);
            if used_up
                && if is_data {
                    pump.stopped(side)
                } else {
                    pump.held(side) == 0
                }
            {
                return Some(Trap::of(side));
            }
        }
        None
    }

    /// Returns the condition that is met.
    pub(crate) fn fired(&self, now: Instant, pump: &Pump) -> Option<Trap> {
        if let Some(trap) = self.met(pump) {
            return Some(trap);
        }
        if self.asked {
            return Some(Trap::Admin);
        }
        if self.until.time().is_some_and(|t| now >= self.since + t) {
            return Some(Trap::Elapsed);
        }
        if self.until.idleness().is_some_and(|t| now >= self.active + t) {
            return Some(Trap::Idle);
        }
        None
    }

    /// Returns the time at which a condition of time may be met next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let at = |from: Instant, t: Option<Duration>| t.map(|t| from + t);
        let (end, idle) = (
            at(self.since, self.until.time()),
            at(self.active, self.until.idleness()),
        );
        match (end, idle) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::relay::loopback::connection;

    #[tokio::test]
    async fn a_budget_is_spent_before_its_bytes_are_written() {
        let ([_client, client], [mut peer, server]) = (connection().await, connection().await);
        let mut pump = Pump::new(client, server);
        let now = Instant::now();
        let bytes = Traps::new(
            Until::bytes_from(Side::Server, 4),
            SuccessorAction::default(),
            now,
        );
        let data = Traps::new(Until::data_from(Side::Server), SuccessorAction::default(), now);
        pump.set_limit(Side::Server, Some(4));
        assert_eq!(bytes.left(&pump), Some(4));
        peer.write_all(b"more").await.unwrap();
        while pump.bytes(Side::Server) < 4 {
            pump.ready().await;
            pump.step(1).unwrap();
        }
        assert_eq!(bytes.left(&pump), Some(0));
        // With a condition of payload, an end of the stream before it may pass.
        assert_eq!(data.left(&pump), None);
    }
}
