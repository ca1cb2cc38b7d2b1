//! Handles requests about a flow.

use std::{
    collections::HashSet,
    ops::ControlFlow::{self, Break, Continue},
    sync::Arc,
    time::Duration,
};

use longsplice_core::reason::RelayReason;
use tokio::time::{Instant, sleep, timeout};

use super::Splicer;
use crate::{
    api::{FlowId, FlowState, RequestError, Returned},
    recovery::orphans,
    services::registry::Entry,
};

/// Longest time to wait for an attempt to splice: less than a client of the admin interface waits.
const PATIENCE: Duration = Duration::from_secs(8);

/// Time to retry an attempt that failed for a momentary reason, and the interval of retries.
const MOMENT: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(10);

/// Time to wait for a number that is not listed: a pair that came back is not, until its handler passes it on.
const BETWEEN_CALLS: Duration = Duration::from_millis(100);

impl Splicer {
    /// Asks for a relayed pair to be spliced now, whatever its policy. Returns once its drain has begun: new segments
    /// bypass the sockets then. That is one attempt, which takes some round trips, a second or 20 of them at most. If
    /// other pairs, unacknowledged bytes from before the pair came back, or a loss that is being repaired are in its way for
    /// the moment, it is retried for a second.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::AlreadySpliced`], [`RequestError::Ending`], [`RequestError::StaysRelayed`],
    /// [`RequestError::CannotSplice`].
    pub async fn request_splice(&self, id: FlowId) -> Result<(), RequestError> {
        if let Some((why, _)) = &self.context.why_not {
            return Err(RequestError::CannotSplice(why.clone()));
        }
        let begun = Instant::now();
        loop {
            let Continue(entry) = self.entry_or(id, orphans::find(&self.context, id)).await? else {
                return Err(RequestError::AlreadySpliced(id));
            };
            let told = entry.ask_and_wait().ok_or(RequestError::AlreadySpliced(id))?;
            let told = timeout(PATIENCE, told).await;
            match told {
                Ok(Ok(Ok(()))) => return Ok(()),
                Ok(Ok(Err(reason))) if is_for_a_moment(reason) && begun.elapsed() < MOMENT => {
                    sleep(AGAIN).await;
                }
                Ok(Ok(Err(reason))) => return Err(RequestError::StaysRelayed(id, reason)),
                // Ask again: the call ended, and if the pair came back, another one begins.
                Ok(Err(_)) if begun.elapsed() < MOMENT => {}
                Ok(Err(_)) => return Err(RequestError::NoSuchFlow(id)),
                Err(_) => {
                    let reason = entry.reason().unwrap_or(RelayReason::CouplingTimeout);
                    return Err(RequestError::StaysRelayed(id, reason));
                }
            }
        }
    }

    /// Asks for a spliced pair to come back to control mode now (papers' section III-D). A pair that a task waits for
    /// comes back to that task ([`Ended::Returned`] with [`crate::Trap::Admin`]), whatever its conditions; then this
    /// returns `None`, once it is under way. A flow that no task waits for is returned to the caller, with sockets built
    /// for it; dropping them ends it. A flow whose end a predecessor has set ([`Pair::with_successor`]) comes to that
    /// end: `None`, too. Cancel-safe: a flow that is still looked for stays as it is.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::NotSpliced`], [`RequestError::Ending`], [`RequestError::CannotReturn`].
    pub async fn request_unsplice(&self, id: FlowId) -> Result<Option<Returned>, RequestError> {
        let entry = match self.entry_or(id, orphans::take_back(&self.context, id)).await? {
            Continue(entry) => entry,
            Break(taken) => return Ok(taken),
        };
        if matches!(entry.state(), FlowState::Relay | FlowState::Undraining) {
            return Err(RequestError::NotSpliced(id));
        }
        entry.ask_back();
        Ok(None)
    }

    /// Ends a pair or flow by resetting both its ends. If a detached flow cannot have sockets now, the next segment of
    /// each end is answered by a reset. If a call of [`Splicer::splice`] has the pair, that call ends soon: this returns
    /// before.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::Ending`].
    pub async fn request_end(&self, id: FlowId) -> Result<(), RequestError> {
        if let Continue(entry) = self.entry_or(id, orphans::end(&self.context, id)).await? {
            entry.end();
        }
        Ok(())
    }

    /// Ends pairs and flows as [`Splicer::request_end`] does, with one walk over all records for all of them. Returns the
    /// number of those that end; the others have ended by themselves.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub async fn request_ends(&self, ids: impl IntoIterator<Item = FlowId>) -> usize {
        let mut left: HashSet<FlowId> = ids.into_iter().collect();
        let mut ended = self.end_listed(&mut left);
        if left.is_empty() {
            return ended;
        }
        let wanted = left.clone();
        let found = orphans::find_all(&self.context, move |id| wanted.contains(&id)).await;
        for (id, legs) in found {
            left.remove(&id);
            match orphans::end_at(&self.context, id, legs) {
                Ok(()) => ended += 1,
                Err(error) => tracing::debug!(flow = %id, %error, "it ends by itself"),
            }
            // Each takes a dozen system calls, and there may be thousands.
            tokio::task::yield_now().await;
        }
        // A pair that came back is listed once its handler passes it on.
        let until = Instant::now() + BETWEEN_CALLS;
        while !left.is_empty() && Instant::now() < until {
            sleep(AGAIN).await;
            ended += self.end_listed(&mut left);
        }
        ended
    }

    /// Ends those of these pairs that are listed, takes them out of the set, and returns their number.
    fn end_listed(&self, ids: &mut HashSet<FlowId>) -> usize {
        let before = ids.len();
        ids.retain(|&id| match self.context.registry.get(id) {
            Some(entry) => {
                entry.end();
                false
            }
            None => true,
        });
        before - ids.len()
    }

    /// Returns the entry of a pair, or else what `detached` does with the flow of this number. If there is no such
    /// flow, the next call of a pair that has come back is waited for first.
    async fn entry_or<T>(
        &self,
        id: FlowId,
        detached: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<ControlFlow<T, Arc<Entry>>, RequestError> {
        if let Some(entry) = self.context.registry.get(id) {
            return Ok(Continue(entry));
        }
        match detached.await {
            Ok(done) => Ok(Break(done)),
            Err(none @ RequestError::NoSuchFlow(_)) => self.next_call(id).await.map(Continue).ok_or(none),
            Err(error) => Err(error),
        }
    }

    /// Waits for the next call of a pair that has come back, for a moment; `None`: there is none.
    async fn next_call(&self, id: FlowId) -> Option<Arc<Entry>> {
        let until = Instant::now() + BETWEEN_CALLS;
        loop {
            match self.context.registry.get(id) {
                None if Instant::now() < until => sleep(AGAIN).await,
                found => return found,
            }
        }
    }
}

/// Returns true if the obstacle to a splice goes away soon by itself.
fn is_for_a_moment(reason: RelayReason) -> bool {
    matches!(
        reason,
        RelayReason::Unsettled | RelayReason::Busy | RelayReason::Recovery
    )
}
