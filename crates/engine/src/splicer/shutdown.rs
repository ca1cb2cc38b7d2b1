//! Shuts a splicer down.

use std::time::Duration;

use tokio::time::Instant;

use super::Splicer;
use crate::{api::Shutdown, context::Context, recovery::reaper};

/// Longest time until pairs have noticed that they must reset.
const RESET_TIME: Duration = Duration::from_millis(500);

impl Splicer {
    async fn wait_empty(&self, longest: Duration) {
        let until = Instant::now() + longest;
        while self.context.registry.len() > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
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
    pub async fn shutdown(&self, how: Shutdown, timeout: Duration) {
        self.end_relayed(timeout).await;
        let context = self.context.clone();
        let ended = tokio::task::spawn_blocking(move || context.leave_kernel(how)).await;
        if let Err(error) = ended {
            tracing::error!(%error, "the shutdown was cut off");
        }
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
