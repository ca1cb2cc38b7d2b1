//! The relay: bytes pass through the process until a splice is due, or the caller wants the pair back.

use std::{io, time::Duration};

use longsplice_core::advisor::{Advice, advise};
use longsplice_dataplane::Side;
use longsplice_repair::{tcp_info, unread};
use tokio::time::Instant;

use crate::{
    api::FlowState,
    driver::{Driver, Over, Woken},
    flow::Flow,
    gate::{Due, Gate},
    legs,
};

/// What is left of a budget, in bytes, when a trap has brought the pair back: mostly the one super-packet that met it.
const LAST: u64 = 64 << 10;

/// When a pair that came back is looked at again: no socket tells that a far end has acknowledged what passed by it.
#[derive(Debug)]
struct Look {
    after: Duration,
}

impl Look {
    const FIRST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_secs(1);

    fn next(&mut self, now: Instant) -> Instant {
        let after = self.after;
        self.after = (2 * after).min(Look::LONGEST);
        now + after
    }
}

impl Driver<'_> {
    /// Relays until a splice is due.
    pub(crate) async fn relay(&mut self, gate: &mut Gate) -> Result<(), Over> {
        let mut look = Look { after: Look::FIRST };
        for side in Side::BOTH {
            self.limit_pump(side, None);
        }
        // A fast sender has much of a long stream ready: what a step takes of it is not spliced.
        match gate.is_urgent() && !self.has_begun() {
            true => self.pump.look_beyond_limits()?,
            false => drop(self.step()?),
        }
        loop {
            if self.pump.finished() {
                return Err(Over::Finished);
            }
            let now = Instant::now();
            if let Some(trap) = self.fired(now) {
                return Err(Over::Trapped(trap));
            }
            let bytes = self.pump.bytes(Side::Client) + self.pump.bytes(Side::Server);
            let asked = self.entry.take_ask();
            let mut due = gate.due(now, bytes);
            if due == Due::Advise {
                due = self.ask_advisor(gate, now, bytes)?;
            }
            let can_splice = self.splicer.plane.is_some() && !self.is_nearly_over();
            let wake = match due {
                _ if asked && can_splice => return Ok(()),
                Due::Splice if can_splice => return Ok(()),
                Due::NotBefore(at) => at.filter(|_| can_splice),
                _ => None,
            };
            let settle = (!self.try_settle()).then(|| look.next(now));
            let wake = [wake, self.traps.next(), settle].into_iter().flatten().min();
            if self.wait(wake).await == Woken::Stop {
                return Err(Over::stopped());
            }
            self.step()?;
        }
    }

    /// Whether too little is left of a budget for another splice.
    fn is_nearly_over(&self) -> bool {
        let least = if self.spliced_here { LAST } else { 0 };
        self.traps.left(&self.pump).is_some_and(|left| left <= least)
    }

    /// Whether the pump has been at work in this call.
    fn has_begun(&self) -> bool {
        Side::BOTH.iter().any(|&side| self.pump.consumed(side) > 0)
    }

    /// Makes it a relay like any other, if nothing that passed by the sockets is under way any more; whether it is one.
    fn try_settle(&self) -> bool {
        if self.entry.state() == FlowState::Relay {
            return true;
        }
        let settled = self.flow.as_ref().is_none_or(Flow::is_settled);
        if settled {
            self.entry.set_state(FlowState::Relay);
            if let Some(flow) = &self.flow {
                flow.settle();
            }
        }
        settled
    }

    fn ask_advisor(&mut self, gate: &mut Gate, now: Instant, bytes: u64) -> Result<Due, Over> {
        let info = |side| tcp_info(self.pump.socket(side)).map_err(io::Error::from);
        let infos = [info(Side::Client)?, info(Side::Server)?];
        let path: u32 = infos.iter().map(|i| i.rtt_us()).sum();
        self.pace
            .sample(now, &self.pump, Duration::from_micros(path.into()));
        let mut samples = Vec::with_capacity(2);
        for side in Side::BOTH {
            let mut sample = legs::sample(self.pump.socket(side), &infos[side.index()]);
            let other = side.other();
            let unread = unread(self.pump.socket(other)).map_err(io::Error::from)?;
            // What waits for the limit does not wait for its receiver's leg.
            if self.throttle.rate_of(other).is_none() {
                sample.waiting += self.pump.held(other) as u64 + u64::from(unread);
            }
            let most = self.throttle.rate_of(side).unwrap_or(u64::MAX);
            sample.received_rate = self.pace.rates()[side.index()].min(most);
            sample.received_peak = self.pace.peaks()[side.index()].min(most);
            samples.push(sample);
        }
        Ok(
            match advise(&samples[0], &samples[1], now.duration_since(self.since), bytes) {
                Advice::Splice => Due::Splice,
                Advice::Wait { reason, again } => {
                    self.entry.set_reason(Some(reason));
                    gate.wait(now, again);
                    Due::NotBefore(Some(now + again))
                }
            },
        )
    }
}
