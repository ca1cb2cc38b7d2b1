//! The one timer of a connection. Most waits end long before it, so it is moved as seldom as possible.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

/// It took too long, or the connection is to end before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing came or went for too long")]
pub(super) struct Late;

/// Limits of time, one after the other.
#[derive(Debug)]
pub(super) struct Clock<'a> {
    /// Whether the connection is to end now: then nothing is waited for.
    is_told: &'a AtomicBool,
    /// Made at the first wait. It may ring before the limit, and is moved then.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<'a> Clock<'a> {
    pub(super) fn new(is_told: &'a AtomicBool) -> Clock<'a> {
        Clock { is_told, sleep: None }
    }

    /// Whether the connection is to end now.
    pub(super) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }

    /// What the future gives, if it does so within `limit`.
    ///
    /// (Of all three: pinned by who calls, a future takes its place in the connection's memory once, and is not moved.)
    pub(super) fn within<F: Future + Unpin>(
        &mut self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Late>> {
        let mut deadline = None;
        self.race(future, move || {
            Some(*deadline.get_or_insert_with(|| Instant::now() + limit))
        })
    }

    /// What the future gives, if it does so before `deadline`.
    pub(super) fn by<F: Future + Unpin>(
        &mut self,
        deadline: Instant,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Late>> {
        self.race(future, move || Some(deadline))
    }

    /// What the future gives, which has limits of its own.
    pub(super) fn told<F: Future + Unpin>(
        &mut self,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Late>> {
        self.race(future, || None)
    }

    /// The deadline is not asked for where the future is ready at once.
    fn race<F: Future + Unpin>(
        &mut self,
        mut future: F,
        mut deadline: impl FnMut() -> Option<Instant>,
    ) -> impl Future<Output = Result<F::Output, Late>> {
        poll_fn(move |cx| match Pin::new(&mut future).poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if self.is_told() => Poll::Ready(Err(Late)),
            Poll::Pending => match deadline() {
                Some(deadline) => self.poll_until(deadline, cx).map(|()| Err(Late)),
                None => Poll::Pending,
            },
        })
    }

    fn poll_until(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= deadline || Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, pin::pin};

    use super::*;

    #[tokio::test]
    async fn limits_of_all_lengths_hold_one_after_the_other() {
        let is_told = AtomicBool::new(false);
        let mut clock = Clock::new(&is_told);
        for ms in [30, 100, 10, 10, 0, 50] {
            let limit = Duration::from_millis(ms);
            let before = Instant::now();
            assert_eq!(clock.within(limit, pending::<()>()).await, Err(Late));
            assert!(before.elapsed() >= limit, "{ms}: {:?}", before.elapsed());
            assert_eq!(clock.within(limit, pin!(async { 7 })).await, Ok(7));
        }
        is_told.store(true, Ordering::Relaxed);
        let long = Duration::from_secs(1_000_000);
        assert_eq!(clock.within(long, pending::<()>()).await, Err(Late));
        assert_eq!(clock.told(pending::<()>()).await, Err(Late));
        assert_eq!(clock.told(pin!(async { 7 })).await, Ok(7));
    }
}
