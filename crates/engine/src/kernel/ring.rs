//! Reads a ring of the kernel half in a task.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    task::coop::consume_budget,
};

/// Holds a ring whose descriptor is readable when there is data.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    ring: longsplice_dataplane::Ring<T>,
    ready: AsyncFd<OwnedFd>,
}

impl<T: Send + 'static> Ring<T> {
    pub(crate) fn new(ring: longsplice_dataplane::Ring<T>) -> io::Result<Self> {
        // The deprecation is about closed descriptors; this duplicate is ours alone. (Its successor is `unsafe`.)
        #[allow(deprecated)]
        let ready = AsyncFd::with_interest(ring.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Ring { ring, ready })
    }

    /// Returns the entries that have come, at least one.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<T>> {
        loop {
            // A ring that is never empty leaves other tasks their turn: readiness that is known costs no budget.
            consume_budget().await;
            let mut ready = self.ready.readable().await?;
            let batch = self.ring.take()?;
            if !batch.is_empty() {
                return Ok(batch);
            }
            ready.clear_ready();
        }
    }
}
