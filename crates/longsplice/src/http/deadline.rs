//! Limits the waits of a connection with one timer. Most waits end long before their limit, so the timer is moved as
//! rarely as possible.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::buffered_stream::{BufferedStream, NotWritten, Readable};

/// Error: the limit has passed, or the connection was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing came or went for too long")]
pub(super) struct Late;

/// Timer for the waits of one connection, one after the other.
#[derive(Debug)]
pub(super) struct Deadline<'a> {
    /// True once the connection is cancelled: then every wait fails at once.
    is_cancelled: &'a AtomicBool,
    /// Timer, created at the first wait. It may fire before the deadline, and is then moved.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<'a> Deadline<'a> {
    pub(super) fn new(is_cancelled: &'a AtomicBool) -> Deadline<'a> {
        Deadline {
            is_cancelled,
            sleep: None,
        }
    }

    /// Returns whether the connection is cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Returns the future's output if it is ready within `limit`.
    ///
    /// (`within`, `by` and `unless_cancelled` take pinned futures: then a future has one place in the connection's memory, and is
    /// never moved.)
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

    /// Returns the future's output if it is ready before `deadline`.
    pub(super) fn by<F: Future + Unpin>(
        &mut self,
        deadline: Instant,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Late>> {
        self.race(future, move || Some(deadline))
    }

    /// Returns the output of a future that has limits of its own.
    pub(super) fn unless_cancelled<F: Future + Unpin>(
        &mut self,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Late>> {
        self.race(future, || None)
    }

    /// Writes `first`, then `second`. Each write that takes some of their bytes renews the limit.
    pub(super) async fn write_both<S: Readable>(
        &mut self,
        limit: Duration,
        to: &mut BufferedStream<S>,
        first: &[u8],
        second: &[u8],
    ) -> Result<Result<(), NotWritten>, Late> {
        let mut written = 0;
        loop {
            let step = poll_fn(|cx| to.poll_write_behind(cx, [first, second], &mut written));
            match self.within(limit, step).await? {
                Ok(false) => {}
                Ok(true) => return Ok(Ok(())),
                Err(_) => return Ok(Err(NotWritten { written })),
            }
        }
    }

    /// Waits for the future or the deadline. Does not compute the deadline if the future is ready at once.
    fn race<F: Future + Unpin>(
        &mut self,
        mut future: F,
        mut deadline: impl FnMut() -> Option<Instant>,
    ) -> impl Future<Output = Result<F::Output, Late>> {
        poll_fn(move |cx| match Pin::new(&mut future).poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if self.is_cancelled() => Poll::Ready(Err(Late)),
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
        let is_cancelled = AtomicBool::new(false);
        let mut deadline = Deadline::new(&is_cancelled);
        for ms in [30, 100, 10, 10, 0, 50] {
            let limit = Duration::from_millis(ms);
            let before = Instant::now();
            assert_eq!(deadline.within(limit, pending::<()>()).await, Err(Late));
            assert!(before.elapsed() >= limit, "{ms}: {:?}", before.elapsed());
            assert_eq!(deadline.within(limit, pin!(async { 7 })).await, Ok(7));
        }
        is_cancelled.store(true, Ordering::Relaxed);
        let long = Duration::from_secs(1_000_000);
        assert_eq!(deadline.within(long, pending::<()>()).await, Err(Late));
        assert_eq!(deadline.unless_cancelled(pending::<()>()).await, Err(Late));
        assert_eq!(deadline.unless_cancelled(pin!(async { 7 })).await, Ok(7));
    }
}
