//! Shuts a splicer down.

use std::time::Duration;

use longsplice_dataplane::{Leg, PerSide};
use tokio::time::Instant;

use super::Splicer;
use crate::{
    api::{FlowId, RequestError, Shutdown},
    context::Context,
    recovery::{orphans, reaper},
};

/// Longest time until pairs have noticed that they must reset.
const RESET_TIME: Duration = Duration::from_millis(500);

/// Longest time in which detached flows are given sockets that reset their ends, and interval of the attempts.
const END_TIME: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(5);

impl Splicer {
    async fn wait_empty(&self, longest: Duration) {
        let until = Instant::now() + longest;
        while self.context.registry.len() > 0 && Instant::now() < until {
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Begins a shutdown: dormant pairs are detached, and relayed ones go on until [`Splicer::end_relayed`] or
    /// [`Splicer::shutdown`] gives them up.
    pub fn begin_shutdown(&self) {
        self.context.closing.cancel();
    }

    /// Waits up to `timeout` for relayed pairs to end, and resets the others, which takes half a second at most. Detaches
    /// dormant pairs at once. Sockets that a handler holds are its business until [`Splicer::shutdown`].
    pub async fn end_relayed(&self, timeout: Duration) {
        self.begin_shutdown();
        self.wait_empty(timeout).await;
        self.context.ended.cancel();
        // A pair that is in its drain now ends with the process.
        self.wait_empty(RESET_TIME).await;
    }

    /// Ends relayed pairs as [`Splicer::end_relayed`] does. Leaves or ends spliced flows. Removes the pins when nothing is
    /// left that needs them. Make no calls to the splicer afterwards; close sockets that a handler holds before it.
    ///
    /// To end spliced flows takes five seconds at most. If there are too many for that, the ends of the others are reset by their
    /// next segment.
    pub async fn shutdown(&self, how: Shutdown, timeout: Duration) {
        self.end_relayed(timeout).await;
        if how == Shutdown::EndSpliced {
            self.end_detached().await;
        }
        let context = self.context.clone();
        let ended = tokio::task::spawn_blocking(move || context.leave_kernel(how)).await;
        if let Err(error) = ended {
            tracing::error!(%error, "the shutdown was cut off");
        }
    }

    /// Resets both ends of all detached flows. Nothing reports that: the process ends.
    async fn end_detached(&self) {
        let until = Instant::now() + END_TIME;
        let mut left = orphans::find_all(&self.context, |_| true).await;
        while !left.is_empty() && Instant::now() < until {
            for (id, legs) in std::mem::take(&mut left) {
                if Instant::now() >= until || !self.reset_detached(id, legs) {
                    left.insert(id, legs);
                }
                // Each takes a dozen system calls, and there may be thousands.
                tokio::task::yield_now().await;
            }
            // Slots become free again meanwhile.
            tokio::time::sleep(AGAIN).await;
        }
        if !left.is_empty() {
            tracing::warn!(
                flows = left.len(),
                "there was no time to reset the ends of these: each is reset by its next segment"
            );
        }
    }

    /// Resets both ends of a detached flow. Returns false if it cannot have sockets now.
    fn reset_detached(&self, id: FlowId, legs: PerSide<Leg>) -> bool {
        match orphans::reset_at(&self.context, id, legs) {
            Err(RequestError::CannotReturn(..)) => return false,
            Err(error) => tracing::debug!(flow = %id, %error, "it ends by itself"),
            Ok(()) => {}
        }
        // A walk must not take it for one whose records another connection has taken.
        self.context.ends.not_left(id.0);
        true
    }
}

impl Context {
    /// Leaves the kernel half to a successor, or removes it: if no flow is left, or none is to be.
    fn leave_kernel(&self, how: Shutdown) {
        // End it first: programs that are put on an interface after the pins are gone would stay there.
        self.maintenance.end();
        self.rules.end();
        let Some(kernel) = &self.kernel else { return };
        let plane = &kernel.plane;
        self.unpaired.part_all();
        kernel.quarantine.free(plane, Duration::ZERO);
        if how == Shutdown::EndSpliced || !reaper::is_in_use(plane) {
            plane.remove();
        }
        plane.leave();
    }
}
