//! Counts what the accelerator takes over, releases, and passes through.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use longsplice_engine::reason::SpliceReason;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// Reason why a connection is not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum PassReason {
    /// An end has options that a built socket does not support, or payload in its SYN.
    Options,
    /// So many connections are taken over already (`max_connections`).
    Limit,
    /// There is no memory for it.
    Memory,
    /// The kernel's buffers here are too small beside the windows of the ends.
    Buffers,
    /// Both ends are on one side of the node.
    OneSide,
    /// An end is an address of this host.
    OwnAddress,
    /// The kernel would not forward its SYN.
    NotForwarded,
    /// A firewall of this host drops the segments of taken-over connections.
    Firewall,
    /// Only one direction of its handshake passes this node.
    Asymmetric,
    /// The client has not acknowledged the answer of its server for 20 s.
    Unconfirmed,
    /// Both legs together are as short as `min_rtt`.
    ShortPath,
    /// One leg is nearly all of the path: less than `min_gain` is to be gained.
    NoGain,
    /// The daemon shuts down.
    Shutdown,
    /// The system refused a socket or a packet.
    System,
}

longsplice_core::named!(pub(crate) PassReason);

/// Reason why a released connection is taken over again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum AgainReason {
    /// A command, `longsplice unsplice`.
    Command,
    /// Its path loses segments.
    Losses,
}

/// State and counters of the accelerator, since the start of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceleratorStatus {
    /// Connections that a task carries now: taken over, or released a moment ago.
    pub open: usize,
    /// Times that a connection was taken over.
    pub taken_over_total: u64,
    /// Times that a released connection was taken over again, by reason; they count in `taken_over_total`, too.
    #[serde(default)]
    pub taken_over_again_total: BTreeMap<String, u64>,
    /// Times that one was released.
    pub released_total: u64,
    /// Releases by the policy, by its reason. The others were asked for, or made room.
    #[serde(default)]
    pub released_by_reason: BTreeMap<String, u64>,
    /// Connections that were not taken over, by reason.
    pub passed_through_total: BTreeMap<String, u64>,
    /// Legs for which the kernel does not have the configured congestion control.
    pub congestion_failures_total: u64,
    /// Clients that were answered early, and reset because the server refused or did not answer.
    #[serde(default)]
    pub early_failures_total: u64,
}

/// Counts of a running accelerator.
#[derive(Debug, Default)]
pub(super) struct Counts {
    taken_over: AtomicU64,
    taken_over_again: [AtomicU64; AgainReason::VARIANTS.len()],
    released: AtomicU64,
    released_by: [AtomicU64; SpliceReason::VARIANTS.len()],
    passed_through: [AtomicU64; PassReason::VARIANTS.len()],
    congestion_failures: AtomicU64,
    early_failures: AtomicU64,
}

impl Counts {
    pub(super) fn taken_over(&self) {
        self.taken_over.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn taken_over_again(&self, reason: AgainReason) {
        self.taken_over();
        self.taken_over_again[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn released(&self, reason: Option<SpliceReason>) {
        self.released.fetch_add(1, Ordering::Relaxed);
        if let Some(reason) = reason {
            self.released_by[reason as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn passed_through(&self, reason: PassReason) {
        self.passed_through[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_congestion_failure(&self) {
        self.congestion_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_early_failure(&self) {
        self.early_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self, open: usize) -> AcceleratorStatus {
        AcceleratorStatus {
            open,
            taken_over_total: get(&self.taken_over),
            taken_over_again_total: by_reason::<AgainReason>(&self.taken_over_again),
            released_total: get(&self.released),
            released_by_reason: by_reason::<SpliceReason>(&self.released_by),
            passed_through_total: by_reason::<PassReason>(&self.passed_through),
            congestion_failures_total: get(&self.congestion_failures),
            early_failures_total: get(&self.early_failures),
        }
    }
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Returns the counts by the names of their reasons.
fn by_reason<R>(counts: &[AtomicU64]) -> BTreeMap<String, u64>
where
    R: VariantArray + Copy + Into<&'static str>,
{
    let named = |(reason, count): (&R, &AtomicU64)| ((*reason).into().to_owned(), get(count));
    R::VARIANTS.iter().zip(counts).map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_count_of_its_own() {
        let counts = Counts::default();
        for (n, reason) in PassReason::VARIANTS.iter().enumerate() {
            (0..=n).for_each(|_| counts.passed_through(*reason));
        }
        for (n, reason) in SpliceReason::VARIANTS.iter().enumerate() {
            (0..=n).for_each(|_| counts.released(Some(*reason)));
        }
        counts.released(None);
        let released = counts.snapshot(0);
        for (n, reason) in SpliceReason::VARIANTS.iter().enumerate() {
            assert_eq!(released.released_by_reason[reason.as_str()], n as u64 + 1);
        }
        let by_reason: u64 = released.released_by_reason.values().sum();
        assert_eq!(released.released_total, by_reason + 1);
        let shown = counts.snapshot(0).passed_through_total;
        for (n, reason) in PassReason::VARIANTS.iter().enumerate() {
            assert_eq!(shown[reason.as_str()], n as u64 + 1);
        }
    }
}
