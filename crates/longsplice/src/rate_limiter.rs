//! Limits the rate of a connection while the daemon passes its bytes on. The engine continues the same account: neither
//! a splice nor another server allows a new burst.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use longsplice_engine::{
    Pair, PerSide, Returned, Side,
    limit::{Rate, RateLimit},
    monotonic,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// Rate accounts of both directions.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter {
    limit: RateLimit,
    /// Accounts, as [`Rate`] defines them.
    paid: PerSide<u64>,
    /// Timers; each is created at the first wait of its side.
    sleeps: PerSide<Option<Pin<Box<Sleep>>>>,
}

impl RateLimiter {
    /// Creates the accounts of a connection of which no byte has passed.
    pub(crate) fn new(limit: RateLimit) -> RateLimiter {
        RateLimiter {
            limit,
            ..RateLimiter::default()
        }
    }

    /// Changes the limit. Bytes that have passed stay on the account.
    pub(crate) fn set_limit(&mut self, limit: RateLimit) {
        self.paid = limit.carry_over(&self.limit, self.paid, monotonic());
        self.limit = limit;
    }

    fn rate(&self, side: Side) -> Option<Rate> {
        match side {
            Side::Client => self.limit.client,
            Side::Server => self.limit.server,
        }
    }

    /// Ready when bytes of this side may pass. A piece that begins then passes completely.
    pub(crate) fn poll_may(&mut self, side: Side, cx: &mut Context<'_>) -> Poll<()> {
        let Some(rate) = self.rate(side) else {
            return Poll::Ready(());
        };
        loop {
            let wait = rate.wait(self.paid[side], monotonic(), rate.worthwhile());
            if wait == 0 {
                return Poll::Ready(());
            }
            let at = Instant::now() + Duration::from_nanos(wait);
            let sleep = self.sleeps[side].get_or_insert_with(|| Box::pin(sleep_until(at)));
            sleep.as_mut().reset(at);
            ready!(sleep.as_mut().poll(cx));
        }
    }

    /// Waits for [`RateLimiter::poll_may`].
    pub(crate) async fn may(&mut self, side: Side) {
        poll_fn(|cx| self.poll_may(side, cx)).await;
    }

    /// Charges bytes of this side that have passed.
    pub(crate) fn charge(&mut self, side: Side, bytes: u64) {
        if let Some(rate) = self.rate(side) {
            let paid = &mut self.paid[side];
            *paid = rate.charge(*paid, monotonic(), bytes);
        }
    }

    /// Hands the limit and the accounts to the engine.
    #[must_use]
    pub(crate) fn on(&self, pair: Pair) -> Pair {
        pair.with_rate_limit(self.limit).with_paid(self.paid)
    }

    /// Takes the accounts back from the engine.
    pub(crate) fn take_back(&mut self, returned: &Returned) {
        self.paid = returned.paid();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_side_without_a_rate_never_waits_and_one_with_a_rate_is_held_to_it() {
        let mut pace = RateLimiter::new("server=100kB/s,burst=1kB".parse().unwrap());
        pace.charge(Side::Client, 1 << 40);
        pace.may(Side::Client).await;
        let start = Instant::now();
        // These bytes take 50 ms, of which the burst is free.
        for _ in 0..5 {
            pace.may(Side::Server).await;
            pace.charge(Side::Server, 1_000);
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(39), "{took:?}");
    }

    #[test]
    fn a_changed_limit_keeps_what_has_passed_as_bytes() {
        let mut pace = RateLimiter::new("server=100kB/s,burst=1kB".parse().unwrap());
        pace.charge(Side::Server, 1_000_000_000);
        let before = monotonic();
        pace.set_limit("server=200kB/s,burst=100kB".parse().unwrap());
        let half_a_second = 500_000_000;
        let may_be = before + half_a_second..=monotonic() + half_a_second;
        assert!(
            may_be.contains(&pace.paid.server),
            "{}, {may_be:?}",
            pace.paid.server
        );
    }
}
