//! Waits for what a pair on its way to a splice depends on: its sockets, and the acknowledgements that only the programs see.

use longsplice_core::coupling::latest_look;
use tokio::time::{Instant, sleep_until};

use super::pair::{Session, Woken};
use crate::flow::Flow;

/// Times the looks at a pair that couples or drains. An event leads to a look; without one, the looks become rarer.
#[derive(Debug)]
pub(super) struct Looks {
    begun: Instant,
    /// Time of the last event.
    heard: Instant,
}

/// Bounds of a wait.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Earliest end for an acknowledgement: under full load each would cause a look.
    soonest: Instant,
    latest: Instant,
}

impl Looks {
    /// Begins; events count from now on.
    pub(super) fn begin(flow: &Flow, now: Instant) -> Looks {
        flow.slot().watch();
        Looks {
            begun: now,
            heard: now,
        }
    }

    /// Returns the bounds of the next wait. A wait ends at the first of the `deadlines` that is still to come.
    fn bounds(&self, session: &Session<'_>, deadlines: &[Option<Instant>]) -> Bounds {
        let now = Instant::now();
        let soonest = session.context.transitions.soonest_look(now - self.begun);
        let latest = now + latest_look(now - self.heard, soonest);
        let deadlines = deadlines.iter().flatten().filter(|&&at| at > now);
        Bounds {
            soonest: now + soonest,
            latest: deadlines.fold(latest, |latest, &at| latest.min(at)),
        }
    }

    /// Ends a wait: asks for the next event before the caller looks, so that none is missed.
    fn end(&mut self, flow: &Flow, bounds: Bounds) {
        let now = Instant::now();
        if now < bounds.latest {
            self.heard = now;
        }
        flow.slot().watch();
    }
}

/// Waits for an acknowledgement, and then until it may lead to a look.
async fn news(flow: &Flow, bounds: Bounds) {
    flow.held().news().await;
    sleep_until(bounds.soonest).await;
}

impl Session<'_> {
    /// Waits in a coupling, until `give_up` at most.
    pub(super) async fn wait_coupling(&mut self, flow: &Flow, looks: &mut Looks, give_up: Instant) -> Woken {
        let bounds = looks.bounds(self, &[Some(give_up)]);
        let woken = tokio::select! {
            woken = self.wait(Some(bounds.latest)) => woken,
            () = news(flow, bounds) => Woken::Proceed,
        };
        looks.end(flow, bounds);
        woken
    }

    /// Waits in a drain for the sockets, an acknowledgement, a request, a held packet, or the first of the `deadlines`; if it
    /// `stops`, for the end of a shutdown's grace period as well.
    pub(super) async fn wait_draining(
        &self,
        flow: &Flow,
        looks: &mut Looks,
        deadlines: &[Option<Instant>],
        stops: bool,
    ) {
        let bounds = looks.bounds(self, deadlines);
        let throttled = self.throttle.wait(&self.pump).map(|time| Instant::now() + time);
        let until = throttled.map_or(bounds.latest, |at| at.min(bounds.latest));
        tokio::select! {
            () = self.pump.ready() => {}
            () = sleep_until(until) => {}
            () = news(flow, bounds) => {}
            () = self.entry.asked() => {}
            () = flow.held().changed() => {}
            () = self.context.ended.cancelled(), if stops => {}
        }
        looks.end(flow, bounds);
    }
}
