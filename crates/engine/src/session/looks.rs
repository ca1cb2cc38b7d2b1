//! Times the looks at a pair: waits for what a pair on its way to a splice depends on, its sockets and the acknowledgements
//! that only the programs see; and looks at others ever less often.

use std::time::Duration;

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

/// Interval between two looks at a spliced pair on which something passes: its end and its idleness show in the records.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// Longest interval between two looks at a spliced pair. Sequence numbers tell no more than 2 GiB: those pass within it at
/// 34 Gbit/s.
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// Times the looks at a pair of which no event tells enough: each wait is twice the one before, up to the longest.
#[derive(Debug)]
pub(super) struct Look {
    first: Duration,
    longest: Duration,
    after: Duration,
}

impl Look {
    fn new(first: Duration, longest: Duration) -> Look {
        Look {
            first,
            longest,
            after: first,
        }
    }

    /// Begins for a pair that came back: no socket reports that a far end has acknowledged bytes that bypassed it.
    pub(super) fn returned() -> Look {
        Look::new(Duration::from_millis(1), Duration::from_secs(1))
    }

    /// Begins for a spliced pair.
    pub(super) fn spliced() -> Look {
        Look::new(LOOK, LONGEST_LOOK)
    }

    /// Returns the time of the next look.
    pub(super) fn next(&mut self, now: Instant) -> Instant {
        let after = self.after;
        self.after = (2 * after).min(self.longest);
        now + after
    }

    /// Returns the time of the next look at a pair on which something passed at `active`: if that is now, after the shortest
    /// wait.
    pub(super) fn next_after(&mut self, active: Instant, now: Instant) -> Instant {
        if active == now {
            self.after = self.first;
        }
        self.next(now)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of looks within that time.
    fn looks(look: &mut Look, time: Duration) -> usize {
        let begun = Instant::now();
        let next = |&at: &Instant| Some(look.next(at));
        let all = std::iter::successors(Some(begun), next);
        all.skip(1).take_while(|&at| at <= begun + time).count()
    }

    #[test]
    fn a_spliced_pair_is_looked_at_less_often_while_nothing_passes() {
        let minute = Duration::from_secs(60);
        let mut look = Look::spliced();
        let idle = looks(&mut look, minute);
        assert!((60..=121).contains(&idle), "{idle}");
        let now = Instant::now();
        for _ in 0..3 {
            assert_eq!(
                look.next_after(now, now),
                now + LOOK,
                "it is looked at often while bytes pass"
            );
        }
    }

    #[test]
    fn a_pair_that_came_back_is_looked_at_at_once_and_then_once_a_second() {
        let mut look = Look::returned();
        assert_eq!(looks(&mut look, Duration::from_millis(1023)), 10);
        assert_eq!(looks(&mut look, Duration::from_secs(10)), 10);
    }
}
