//! How much of a reply is relayed before its splice takes hold: what its server sends meanwhile. No measurement at the start can
//! tell that of the paths that replies will take, so it is learned from those that were spliced.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use longsplice_engine::reason::RelayReason;

/// Before anything was seen: what a socket lets its peer send at first.
const AT_FIRST: u64 = 64 << 10;
/// More is not believed: another client's path, or a moment's load.
const MOST: u64 = 1 << 20;
/// One reply in so many moves the mean.
const WEIGHT: u64 = 8;
/// One in so many of those that were not worth it is spliced to see whether that has changed.
const PROBE: u32 = 128;

/// The mean of late, of one listener.
#[derive(Debug)]
pub struct Lead {
    bytes: AtomicU64,
    passed_over: AtomicU32,
}

impl Default for Lead {
    fn default() -> Self {
        Lead {
            bytes: AtomicU64::new(AT_FIRST),
            passed_over: AtomicU32::new(0),
        }
    }
}

impl Lead {
    /// In bytes; 64 KiB before anything was seen, 1 MiB at most.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a reply of which so many bytes follow is worth a splice that pays from `least` bytes on: it is, if so many are
    /// left when it takes hold.
    pub fn pays(&self, follow: u64, least: u64) -> bool {
        match follow {
            n if n < least.max(1) => false,
            n if n >= least.saturating_add(self.bytes()) => true,
            _ => (self.passed_over.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(PROBE),
        }
    }

    /// Of a reply that was to be spliced, so many bytes of `follow` were relayed; `why_not`: if it was not spliced at all.
    pub fn learn(&self, follow: u64, relayed: u64, why_not: Option<RelayReason>) {
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
        // One that was over first says only that it takes longer.
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
        let (lead, least) = (Lead::default(), 100 * KIB);
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
        // Things have changed: a few probes show it.
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
        let lead = Lead::default();
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
