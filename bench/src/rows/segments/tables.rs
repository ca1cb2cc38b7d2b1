//! Tables, in the papers' order.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::{CONTENDERS, MIDDLES, SIZES, case};
use crate::contender::Contender;
use crate::report::{Results, Series};

/// Numbers of segments that one acknowledgement covers, as in table III.
pub(super) const RATIOS: [u32; 3] = [3, 2, 1];

/// Returns the name of a configuration in the papers, and here.
pub(super) fn name(contender: Contender) -> &'static str {
    match contender {
        Contender::Relay => "2-path (relay)",
        Contender::Spliced => "FWD (spliced, tc)",
        Contender::Router => "IP router (kernel)",
        Contender::FilteringRouter => "filtering IP router (nftables)",
        _ => "HAProxy, as the TIS firewall",
    }
}

/// Measured cost of one configuration.
#[derive(Debug)]
pub(super) struct Cost {
    pub(super) name: &'static str,
    /// Microseconds of the middle's core for a segment of either size: medians.
    pub(super) middle: [f64; 2],
}

/// Costs of all configurations.
#[derive(Debug)]
pub(super) struct Costs(pub(super) Vec<Cost>);

impl Cost {
    /// Estimates the most that one core could carry if it did nothing else, in 10^6 bytes per second. `ratio` full
    /// segments come with one empty one, which is assumed to cost as much as one of a single byte.
    pub(super) fn most(&self, ratio: u32) -> f64 {
        let [small, large] = self.middle;
        let segments = f64::from(ratio);
        segments * SIZES[1] as f64 / (segments * large + small)
    }
}

impl Costs {
    /// Returns the costs of committed samples.
    pub(super) fn of(results: &Results) -> Result<Self> {
        let cost = |contender| {
            let name = name(contender);
            let median = |size| {
                let series = results.series(name, MIDDLES, case(size)).and_then(Series::value);
                series.with_context(|| format!("{name} was not measured"))
            };
            Ok(Cost {
                name,
                middle: [median(SIZES[0])?, median(SIZES[1])?],
            })
        };
        CONTENDERS.into_iter().map(cost).collect::<Result<_>>().map(Costs)
    }
}

/// Formats table III in Markdown.
pub(super) fn third(costs: &Costs) -> String {
    let mut out = "| segments for each acknowledgement | 3:1 | 2:1 | 1:1 |\n|---|--:|--:|--:|\n".to_owned();
    for cost in &costs.0 {
        let [three, two, one] = RATIOS.map(|ratio| cost.most(ratio));
        let _ = writeln!(out, "| {} | {three:.0} | {two:.0} | {one:.0} |", cost.name);
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the papers' own figures: 2-path, and IP/FWD in the place of the rest.
    pub(in super::super) fn of_the_papers() -> Costs {
        let cost = |contender| Cost {
            name: name(contender),
            middle: if contender == Contender::Relay {
                [68.5, 101.1]
            } else {
                [24.0; 2]
            },
        };
        Costs(CONTENDERS.map(cost).into())
    }

    #[test]
    fn the_papers_third_table_follows_from_their_second() {
        let costs = of_the_papers();
        let shown = |cost: &Cost| RATIOS.map(|ratio| format!("{:.1}", cost.most(ratio)));
        assert_eq!(shown(&costs.0[0]), ["11.8", "10.8", "8.6"]);
        assert_eq!(shown(&costs.0[1]), ["45.6", "40.6", "30.4"]);
        let table = third(&costs);
        assert!(table.contains("| 2-path (relay) | 12 | 11 | 9 |"), "{table}");
    }
}
