//! Learns how much of a reply is relayed before its splice takes effect: the bytes that its server sends meanwhile. No
//! measurement at the start can tell that for the paths of later replies, so it is learned from replies that were
//! spliced.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use longsplice_engine::reason::RelayReason;

/// Initial estimate: the bytes that a socket lets its peer send at first.
const AT_FIRST: u64 = 64 << 10;
/// Limit of the estimate: a larger value comes from one client's path, or from a moment of load.
const MOST: u64 = 1 << 20;
/// Weight of the mean: one reply moves it by an eighth.
const WEIGHT: u64 = 8;
/// Splices one of so many replies that do not seem worth it, to see whether that has changed.
const PROBE: u32 = 128;

/// Moving average over the recent replies of one listener.
#[derive(Debug)]
pub(crate) struct SpliceDelay {
    bytes: AtomicU64,
    passed_over: AtomicU32,
}

impl Default for SpliceDelay {
    fn default() -> Self {
        SpliceDelay {
            bytes: AtomicU64::new(AT_FIRST),
            passed_over: AtomicU32::new(0),
        }
    }
}

impl SpliceDelay {
    /// Returns the estimate, in bytes: 64 KiB at first, 1 MiB at most.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether to splice a reply of which `follow` bytes are to come. A splice pays from `least` bytes on, so
    /// that many must be left when it takes effect. Call it once for each reply or chunk: a "no" counts towards the next
    /// probe.
    pub(crate) fn pays(&self, follow: u64, least: u64) -> bool {
        match follow {
            n if n < least.max(1) => false,
            n if n >= least.saturating_add(self.bytes()) => true,
            _ => (self.passed_over.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(PROBE),
        }
    }

    /// Learns from a reply that was to be spliced: `relayed` of its `follow` bytes were relayed. `why_not` is the
    /// reason if it was not spliced.
    pub(crate) fn learn(&self, follow: u64, relayed: u64, why_not: Option<RelayReason>) {
        let over_before = matches!(
            why_not,
            None | Some(
                RelayReason::EndedBeforePolicy
                    | RelayReason::AdvisedSlowStart
                    | RelayReason::AdvisedWait
                    | RelayReason::Unsettled
            )
        );
        let mean = self.bytes();
        // A reply that was relayed completely gives a lower bound only: do not lower the mean by it.
        if !over_before || (relayed >= follow && relayed <= mean) {
            return;
        }
        let mean = mean - mean / WEIGHT + relayed.min(MOST) / WEIGHT;
        self.bytes.store(mean.min(MOST), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn replies_that_are_over_first_are_relayed_after_a_few() {
        let (lead, least) = (SpliceDelay::default(), 100 * KIB);
        let length = 300 * KIB;
        let mut spliced = 0;
        for _ in 0..PROBE {
            if lead.pays(length, least) {
                spliced += 1;
                lead.learn(length, length, Some(RelayReason::EndedBeforePolicy));
            }
        }
        assert!((2..20).contains(&spliced), "{spliced}");
        assert!(lead.pays(10 << 20, least), "long ones are spliced still");
        assert!(!lead.pays(99 * KIB, least));
        // The conditions change: a few probes show it.
        let mut replies = 0;
        while !lead.pays(length, least) || !lead.pays(length, least) {
            replies += 1;
            assert!(replies < 40 * PROBE, "it is not forgotten: {}", lead.bytes());
            if lead.pays(length, least) {
                lead.learn(length, 20 * KIB, None);
            }
        }
    }

    #[test]
    fn the_mean_follows_and_stays_within_bounds() {
        let lead = SpliceDelay::default();
        for _ in 0..100 {
            lead.learn(10 << 20, 200 * KIB, None);
        }
        assert!(lead.bytes().abs_diff(200 * KIB) < 2 * KIB, "{}", lead.bytes());
        let mean = lead.bytes();
        lead.learn(100 * KIB, 100 * KIB, Some(RelayReason::EndedBeforePolicy));
        assert_eq!(lead.bytes(), mean, "it could not have shown more");
        lead.learn(10 << 20, 10 << 20, Some(RelayReason::AdvisedLoss));
        assert_eq!(lead.bytes(), mean, "that was its path");
        for _ in 0..100 {
            lead.learn(u64::MAX, u64::MAX, None);
        }
        assert!((MOST - KIB..=MOST).contains(&lead.bytes()));
        assert!(lead.pays(u64::MAX, u64::MAX - 1) || lead.bytes() > 1);
    }
}
