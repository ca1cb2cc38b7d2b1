//! Tables, in the papers' order.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::{CONTENDERS, SIZES, Sample};
use crate::contender::Contender;
use crate::cores::ENDS;
use crate::stats::Spread;

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
    pub(super) contender: Contender,
    /// Microseconds of the middle's core for a segment of either size.
    pub(super) middle: [Spread; 2],
    /// Microseconds of the core of both ends: medians.
    ends: [f64; 2],
}

/// Costs of all configurations.
#[derive(Debug)]
pub(super) struct Costs(pub(super) Vec<Cost>);

impl Cost {
    /// Estimates the most that one core could carry if it did nothing else, in 10^6 bytes per second. `ratio` full
    /// segments come with one empty one, which is assumed to cost as much as one of a single byte.
    pub(super) fn most(&self, ratio: u32) -> f64 {
        let [small, large] = self.middle.map(|spread| spread.median);
        let segments = f64::from(ratio);
        segments * SIZES[1] as f64 / (segments * large + small)
    }
}

impl Costs {
    pub(super) fn of(all: &[Sample]) -> Result<Self> {
        let cost = |contender| {
            let spread = |size, of: fn(&Sample) -> f64| {
                let mine = all
                    .iter()
                    .filter(|one| one.contender == contender && one.size == size);
                Spread::of(mine.map(of)).with_context(|| format!("{contender:?} was not measured"))
            };
            let middle = |size| spread(size, |one| one.echo.microseconds());
            let ends = |size| {
                spread(size, |one| {
                    one.echo.work.busy[ENDS] * 1e6 / one.echo.segments as f64
                })
            };
            Ok(Cost {
                contender,
                middle: [middle(SIZES[0])?, middle(SIZES[1])?],
                ends: [ends(SIZES[0])?.median, ends(SIZES[1])?.median],
            })
        };
        CONTENDERS.into_iter().map(cost).collect::<Result<_>>().map(Costs)
    }

    /// Returns the microseconds for a segment of this size.
    pub(super) fn median(&self, contender: Contender, size: usize) -> Result<f64> {
        let cost = self.0.iter().find(|cost| cost.contender == contender);
        let at = SIZES.iter().position(|&one| one == size);
        let (cost, at) = cost.zip(at).context("it was not measured")?;
        Ok(cost.middle[at].median)
    }

    /// Formats all in one line.
    pub(super) fn line(&self) -> Result<String> {
        let one = |cost: &Cost| {
            let [small, large] = cost.middle.map(|spread| spread.show());
            format!("{} {small} and {large} µs", name(cost.contender))
        };
        Ok(self.0.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// Formats the tables in Markdown.
pub(super) fn show(costs: &Costs) -> String {
    let mut out = "# Processing of a segment\n\nTables I to III of “Optimizing TCP Forwarder Performance”, for this machine. \
                   Medians of the rounds (10th to 90th percentile); offloads off, no timestamps.\n"
        .to_owned();
    out += "\n## I. What is not the middle's: time of the ends' core, µs for a segment\n\n\
            | configuration | 1 byte | 1,460 bytes |\n|---|--:|--:|\n";
    for cost in &costs.0 {
        let [small, large] = cost.ends;
        let _ = writeln!(out, "| {} | {small:.2} | {large:.2} |", name(cost.contender));
    }
    out += "\n## II. Processing of a segment in the middle, µs of one core\n\n\
            | configuration | 1 byte | speedup | 1,460 bytes | speedup |\n|---|--:|--:|--:|--:|\n";
    // The first one is the papers' 2-path case, with which the others are compared.
    let slowest = costs
        .0
        .first()
        .map_or([f64::NAN; 2], |cost| cost.middle.map(|spread| spread.median));
    for cost in &costs.0 {
        let [small, large] = [0, 1].map(|size| {
            let spread = cost.middle[size];
            format!("{} | {:.2}", spread.show(), slowest[size] / spread.median)
        });
        let _ = writeln!(out, "| {} | {small} | {large} |", name(cost.contender));
    }
    // veth runs XDP on the processor of the sender, which is not the middle's: its time cannot be separated from the
    // ends'.
    out += "| IP/FWD (XDP) | see row 4.2 | | see row 4.2 | |\n";
    out += "\n## III. Estimated maximum throughput of one core, MB/s, by segments for each acknowledgement\n\n\
            | configuration | 3:1 | 2:1 | 1:1 |\n|---|--:|--:|--:|\n";
    for cost in &costs.0 {
        let [three, two, one] = RATIOS.map(|ratio| cost.most(ratio));
        let _ = writeln!(
            out,
            "| {} | {three:.0} | {two:.0} | {one:.0} |",
            name(cost.contender)
        );
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the papers' own figures: 2-path, and IP/FWD in the place of the rest.
    pub(in super::super) fn of_the_papers() -> Costs {
        let exactly = |value| Spread::of([value]).unwrap();
        let cost = |contender| {
            let times = if contender == Contender::Relay {
                [68.5, 101.1]
            } else {
                [24.0; 2]
            };
            Cost {
                contender,
                middle: times.map(exactly),
                ends: [1.0; 2],
            }
        };
        Costs(CONTENDERS.map(cost).into())
    }

    #[test]
    fn the_papers_third_table_follows_from_their_second() {
        let costs = of_the_papers();
        let shown = |cost: &Cost| RATIOS.map(|ratio| format!("{:.1}", cost.most(ratio)));
        assert_eq!(shown(&costs.0[0]), ["11.8", "10.8", "8.6"]);
        assert_eq!(shown(&costs.0[1]), ["45.6", "40.6", "30.4"]);
        let table = show(&costs);
        assert!(
            table.contains("| 2-path (relay) | 68.50 (68.50–68.50) | 1.00 |"),
            "{table}"
        );
        assert!(table.contains("| 2.85 | 24.00 (24.00–24.00) | 4.21 |"), "{table}");
    }
}
