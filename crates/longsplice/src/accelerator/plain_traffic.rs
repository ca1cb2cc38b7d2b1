//! Watches whether other TCP connections pass the node beside those that are taken over: a queue that they share is theirs,
//! too.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use super::Accelerator;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// Packets between two looks below which other traffic counts as none, and its least share of all packets, in percent.
const LEAST: u64 = 10;
const LEAST_PERCENT: u64 = 3;

/// TCP packets that came in so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Packets {
    /// Packets of taken-over connections.
    taken_over: u64,
    /// Packets that pass: of released connections, and of those that were never taken over.
    plain: u64,
}

impl Packets {
    /// Sums the counters of the rules (`rules list`) and those of segments (`status`).
    fn of(rules: &BTreeMap<String, u64>, segments: &BTreeMap<String, u64>) -> Packets {
        let sum = |counts: &BTreeMap<String, u64>, names: &[&str]| {
            names.iter().filter_map(|name| counts.get(*name)).sum::<u64>()
        };
        Packets {
            taken_over: sum(rules, &["followed"]),
            plain: sum(rules, &["unmatched", "foreign", "passed"])
                + sum(segments, &["forwarded", "forwarded_xdp"]),
        }
    }

    /// Returns true if enough plain packets came since `before` to share a queue.
    fn has_plain_traffic(self, before: Packets) -> bool {
        let plain = self.plain.saturating_sub(before.plain);
        let all = plain + self.taken_over.saturating_sub(before.taken_over);
        plain >= LEAST && plain.saturating_mul(100) >= all.saturating_mul(LEAST_PERCENT)
    }
}

impl Accelerator {
    /// Tells the splicer of plain traffic, until the process ends.
    pub(super) async fn watch_plain_traffic(self: Arc<Self>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Option<Packets> = None;
        loop {
            looks.tick().await;
            if self.carried.lock().is_empty() {
                last = None;
                continue;
            }
            let splicer = self.splicer();
            let now = Packets::of(&splicer.rules().verdicts, &splicer.counters().segments);
            let before = last.replace(now).unwrap_or(now);
            splicer.set_plain_traffic(now.has_plain_traffic(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_packets_counts_and_a_few_do_not() {
        let packets = |taken_over, plain| Packets { taken_over, plain };
        let before = packets(1_000, 1_000);
        for (now, expected) in [
            (packets(1_000, 1_000), false),
            (packets(2_000, 1_009), false),
            (packets(2_000, 1_030), false),
            (packets(2_000, 1_031), true),
            (packets(1_000, 1_010), true),
        ] {
            assert_eq!(now.has_plain_traffic(before), expected, "{now:?}");
        }
    }

    #[test]
    fn what_is_forwarded_and_what_no_rule_concerns_is_plain() {
        let counts = |all: &[(&str, u64)]| all.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let rules = counts(&[
            ("followed", 1),
            ("unmatched", 2),
            ("foreign", 4),
            ("asked", 1_000),
        ]);
        let packets = Packets::of(&rules, &counts(&[("forwarded", 8), ("emitted", 1_000)]));
        assert_eq!(
            packets,
            Packets {
                taken_over: 1,
                plain: 14
            }
        );
    }
}
