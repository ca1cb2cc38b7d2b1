//! The rate limit of a connection while the daemon itself passes its bytes on. What the engine carries meanwhile goes to the
//! same account: a splice is no burst, nor is another server.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use longsplice_engine::{
    Pair, Returned, Side,
    limit::{Rate, RateLimit},
    monotonic,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// The accounts of both directions.
#[derive(Debug, Default)]
pub struct Pace {
    limit: RateLimit,
    /// See [`Rate`].
    paid: [u64; 2],
    /// Made at the first wait of a side.
    sleeps: [Option<Pin<Box<Sleep>>>; 2],
}

impl Pace {
    /// Of a connection of which nothing has passed.
    pub fn new(limit: RateLimit) -> Pace {
        Pace {
            limit,
            ..Pace::default()
        }
    }

    /// From now on this is the limit; what has passed stays on account.
    pub fn set_limit(&mut self, limit: RateLimit) {
        self.limit = limit;
    }

    fn rate(&self, side: Side) -> Option<Rate> {
        match side {
            Side::Client => self.limit.client,
            Side::Server => self.limit.server,
        }
    }

    /// Ready when something that a side sent may pass on. What begins then passes whole.
    pub fn poll_may(&mut self, side: Side, cx: &mut Context<'_>) -> Poll<()> {
        let Some(rate) = self.rate(side) else {
            return Poll::Ready(());
        };
        loop {
            let wait = rate.wait(self.paid[side.index()], monotonic(), rate.worthwhile());
            if wait == 0 {
                return Poll::Ready(());
            }
            let at = Instant::now() + Duration::from_nanos(wait);
            let sleep = self.sleeps[side.index()].get_or_insert_with(|| Box::pin(sleep_until(at)));
            sleep.as_mut().reset(at);
            ready!(sleep.as_mut().poll(cx));
        }
    }

    /// Waits for [`Pace::poll_may`].
    pub async fn may(&mut self, side: Side) {
        poll_fn(|cx| self.poll_may(side, cx)).await;
    }

    /// So many bytes that a side sent have passed.
    pub fn charge(&mut self, side: Side, bytes: u64) {
        if let Some(rate) = self.rate(side) {
            let paid = &mut self.paid[side.index()];
            *paid = rate.charge(*paid, monotonic(), bytes);
        }
    }

    /// Has the engine go on from here.
    #[must_use]
    pub fn on(&self, pair: Pair) -> Pair {
        pair.with_rate_limit(self.limit).with_paid(self.paid)
    }

    /// Goes on where the engine stopped.
    pub fn take_back(&mut self, returned: &Returned) {
        self.paid = returned.paid();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_side_without_a_rate_never_waits_and_one_with_a_rate_is_held_to_it() {
        let mut pace = Pace::new("server=100kB/s,burst=1kB".parse().unwrap());
        pace.charge(Side::Client, 1 << 40);
        pace.may(Side::Client).await;
        let start = Instant::now();
        // 50 ms' worth, of which a burst is free.
        for _ in 0..5 {
            pace.may(Side::Server).await;
            pace.charge(Side::Server, 1_000);
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(39), "{took:?}");
        // Another limit does not forget what has passed.
        pace.charge(Side::Server, 1_000_000_000);
        pace.set_limit("server=200kB/s".parse().unwrap());
        let waits = poll_fn(|cx| Poll::Ready(pace.poll_may(Side::Server, cx).is_pending())).await;
        assert!(waits);
    }
}
