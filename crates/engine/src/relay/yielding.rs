//! Keeps the part of an accelerated pair in a full bottleneck: whether it is counted there, and whether it leaves room.

use std::sync::atomic::{AtomicU32, Ordering};

use longsplice_dataplane::Side;
use tokio::time::Instant;

/// Part of a pair in a full bottleneck.
#[derive(Debug, Default)]
pub(crate) struct Yielding<'a> {
    /// Count of the pair among those that have a queue.
    pub(crate) counted: Option<Counted<'a>>,
    /// Leg whose socket is paced, and the time until which the pair leaves room.
    pub(crate) paced: Option<(Side, Instant)>,
}

impl Yielding<'_> {
    /// Counts the pair no longer: it is relayed no more.
    pub(crate) fn leave(&mut self) {
        self.counted = None;
    }
}

/// Counts one for as long as it lives.
#[derive(Debug)]
pub(crate) struct Counted<'a>(&'a AtomicU32);

impl Counted<'_> {
    /// Adds one to a count.
    pub(crate) fn new(count: &AtomicU32) -> Counted<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
