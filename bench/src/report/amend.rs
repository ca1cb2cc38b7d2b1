//! Corrects what committed runs say of their samples. Their files stay as they were written.
//!
//! | finding | correction |
//! |---|---|
//! | row 2 beside “HAProxy (splice)” | the contender copied (`splice-auto`); the other peers of the run are compared, too |
//! | row 4.4 alone | row 4 is of the same series |
//! | row 15.5, connections per second | they passed through: the required value is that of connections that are taken over |

use super::finding::{Comparison, Finding, Outcome, Results};
use super::target::Target;
use crate::contender::Contender;
use crate::row::Row;

/// Rows of the stream without offloads, and their targets.
pub(crate) const WIRE_SIZE: [(Row, Target); 2] = [
    (Row::splice(4), Target::AtLeast { must: 0.95, aim: 1.1 }),
    (Row::translation(4), Target::AtLeast { must: 1.0, aim: 1.15 }),
];

/// Measure of the rate of connections that the accelerator leaves alone.
pub(crate) const PASSED_RATE: &str = "connections per second of one core that pass through, as those on a short path do, a message each way / nginx as \
     a transparent relay";

/// Words of row 2 in runs before 2026-11-28, 06:00 UTC.
const BESIDE_SPLICE: &str = "the same / best of HAProxy (splice) and nginx stream";
/// Words of row 15.5 in the same runs.
const RATE: &str = "connections per second of one core, a message each way / nginx as a transparent relay";

/// Corrects the findings of an experiment.
pub(crate) fn amend(results: &mut Results) {
    let Results { series, findings } = results;
    for finding in findings.iter_mut() {
        let Outcome::Measured(comparison) = &mut finding.outcome else {
            continue;
        };
        if finding.row == Row::splice(2) && finding.measure == BESIDE_SPLICE {
            finding.measure =
                "the same / best of HAProxy (splice-auto, which copied; copying) and nginx stream".to_owned();
            let others = [Contender::HaProxyCopy, Contender::NginxDefault].map(Contender::title);
            let measured = |title: &&str| series.iter().any(|one| one.contender == *title);
            comparison
                .to
                .extend(others.into_iter().filter(measured).map(str::to_owned));
        }
        if finding.row == Row::accelerator(5) && finding.measure == RATE {
            finding.measure = PASSED_RATE.to_owned();
            comparison.target = Target::Shown { aim: 2.0 };
        }
    }
    let of = |row: Row| findings.iter().find(|finding| finding.row == row);
    if let (Some(later), None) = (of(Row::translation(4)), of(Row::splice(4)))
        && let Outcome::Measured(comparison) = &later.outcome
    {
        let [(row, target), _] = WIRE_SIZE;
        let comparison = Comparison {
            target,
            ..comparison.clone()
        };
        let finding = Finding::new(row, &*later.measure, comparison, &*later.detail);
        findings.push(finding);
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::Series;
    use super::*;

    fn amended(row: Row, measure: &str, peers: &[&str]) -> Vec<Finding> {
        let comparison = Comparison::of(Target::AtLeast { must: 1.0, aim: 2.0 }, "ours", "s");
        let comparison = comparison.to(peers.iter().take(1).copied());
        let series = peers.iter().map(|peer| Series::new(*peer, "s", [1.0]));
        let mut results = Results::of(series).find(Finding::new(row, measure, comparison, ""));
        amend(&mut results);
        results.findings
    }

    fn comparison(finding: &Finding) -> &Comparison {
        match &finding.outcome {
            Outcome::Measured(comparison) => comparison,
            Outcome::Failed(why) => panic!("{why}"),
        }
    }

    #[test]
    fn row_2_is_beside_all_peers_of_its_run() {
        let peers = ["HAProxy, splice-auto", "HAProxy, copying"];
        let found = amended(Row::splice(2), BESIDE_SPLICE, &peers);
        assert!(found[0].measure.contains("which copied"), "{found:?}");
        assert_eq!(comparison(&found[0]).to, peers);
    }

    #[test]
    fn connections_that_passed_through_meet_nothing() {
        let found = amended(Row::accelerator(5), RATE, &["nginx stream, transparent"]);
        assert_eq!(found[0].measure, PASSED_RATE);
        assert!(matches!(comparison(&found[0]).target, Target::Shown { .. }));
    }

    #[test]
    fn a_run_of_row_4_4_has_row_4() {
        let found = amended(Row::translation(4), "m", &["kernel router"]);
        let rows: Vec<Row> = found.iter().map(|finding| finding.row).collect();
        assert_eq!(rows, [Row::translation(4), Row::splice(4)]);
        assert_eq!(comparison(&found[1]).target, WIRE_SIZE[0].1);
    }
}
