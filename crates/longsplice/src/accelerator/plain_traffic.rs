//! Watches whether other TCP connections pass the node beside those that are taken over: a queue that they share is theirs,
//! too.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use longsplice_engine::rules::{RuleInfo, RulesInfo};

use super::Accelerator;
use crate::config::AccelerateConfig;

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
    /// Packets that pass and are for this host, since its rules were set.
    own: u64,
}

impl Packets {
    /// Sums the counters of the verdicts and of the rules (`rules list`), and those of segments (`status`).
    fn of(rules: &RulesInfo, segments: &BTreeMap<String, u64>) -> Packets {
        let is_own = |info: &&RuleInfo| AccelerateConfig::is_for_this_host(&info.rule);
        let own = rules.rules.iter().filter(is_own).map(|info| info.packets).sum();
        let rules = &rules.verdicts;
        let sum = |counts: &BTreeMap<String, u64>, names: &[&str]| {
            names.iter().filter_map(|name| counts.get(*name)).sum::<u64>()
        };
        Packets {
            taken_over: sum(rules, &["followed"]),
            plain: sum(rules, &["unmatched", "foreign", "passed"])
                + sum(segments, &["forwarded", "forwarded_xdp"]),
            own,
        }
    }

    /// Returns the share of the plain packets since `before`, in percent; 0 if they are too few to share a queue.
    fn plain_percent(self, before: Packets) -> u32 {
        // Rules that were set anew count from zero.
        let own = self.own.checked_sub(before.own).unwrap_or(self.own);
        let plain = self.plain.saturating_sub(before.plain).saturating_sub(own);
        let all = plain + self.taken_over.saturating_sub(before.taken_over);
        let percent = plain.saturating_mul(100) / all.max(1);
        match plain >= LEAST && percent >= LEAST_PERCENT {
            true => percent as u32,
            false => 0,
        }
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
            let now = Packets::of(&splicer.rules(), &splicer.counters().segments);
            let before = last.replace(now).unwrap_or(now);
            splicer.set_plain_traffic(now.plain_percent(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_packets_counts_and_a_few_do_not() {
        let packets = |taken_over, plain| Packets {
            taken_over,
            plain,
            own: 0,
        };
        let before = packets(1_000, 1_000);
        for (now, expected) in [
            (packets(1_000, 1_000), 0),
            (packets(2_000, 1_009), 0),
            (packets(2_000, 1_030), 0),
            (packets(2_000, 1_031), 3),
            (packets(2_000, 2_000), 50),
            (packets(1_000, 1_010), 100),
        ] {
            assert_eq!(now.plain_percent(before), expected, "{now:?}");
        }
    }

    #[test]
    fn what_is_for_this_host_shares_no_queue() {
        let packets = |plain, own| Packets {
            taken_over: 0,
            plain,
            own,
        };
        let before = packets(1_000, 700);
        for (now, expected) in [
            (packets(2_000, 1_700), 0),
            (packets(2_000, 1_690), 100),
            // The rules were set anew.
            (packets(1_500, 500), 0),
        ] {
            assert_eq!(now.plain_percent(before), expected, "{now:?}");
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
        let own = AccelerateConfig::between(vec!["eth1".into()], vec!["eth0".into()]);
        let own = own.rules(&["198.18.1.1".parse().unwrap()]).into_iter();
        let info = RulesInfo {
            verdicts: rules,
            rules: own
                .map(|rule| RuleInfo {
                    rule,
                    packets: 16,
                    bytes: 0,
                    flows: 0,
                    dropped: 0,
                })
                .collect(),
            ..RulesInfo::default()
        };
        let packets = Packets::of(&info, &counts(&[("forwarded", 8), ("emitted", 1_000)]));
        assert_eq!(
            packets,
            Packets {
                taken_over: 1,
                plain: 14,
                own: 2 * 16,
            }
        );
    }
}
