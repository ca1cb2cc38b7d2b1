//! Row 14.4: one bulk stream, spliced and relayed, beside an earlier version of Longsplice in the same run.
//!
//! `LONGSPLICE_BEFORE` names the earlier program. Without it the row is not run.

use anyhow::Result;
use longsplice_lab::{Line, LineOptions};

use super::Scope;
use crate::contender::{BEFORE, Contender, Rig};
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;

const CONTENDERS: [Contender; 4] = [
    Contender::Spliced,
    Contender::SplicedBefore,
    Contender::Relay,
    Contender::RelayBefore,
];

/// Measures the row.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    if std::env::var_os(BEFORE).is_none() {
        eprintln!("   not run: {BEFORE} names no earlier program");
        return Ok(Results::default());
    }
    let (mut series, mut findings) = (Vec::new(), Vec::new());
    for (offloads, kind) in [(true, "large segments"), (false, "wire-size segments")] {
        let options = LineOptions {
            router: true,
            offloads,
            ..LineOptions::default()
        };
        let net = Line::new("bench", options)?;
        let rig = Rig {
            room: scope.room,
            nodes: &net,
        };
        let (rounds, seconds) = scope.count((7, 3), (2, 1));
        let measured = rig.in_turn(&CONTENDERS, rounds, seconds, |contender, bulk| {
            eprintln!("   {:<22} {:6.2} Gbit/s, {kind}", contender.title(), bulk.gbps);
        })?;
        let figure = |what| format!("Gbit/s, {what}, {kind}");
        for (pair, what) in measured.chunks(2).zip(["spliced", "relayed"]) {
            let [now, before] = pair else { continue };
            for one in [now, before] {
                let rates = one.rounds.iter().map(|round| round.gbps);
                series.push(Series::new(one.contender.title(), figure(what), rates));
            }
            let target = Target::AtLeast {
                must: 0.97,
                aim: 1.03,
            };
            let comparison =
                Comparison::of(target, now.contender.title(), figure(what)).to([before.contender.title()]);
            findings.push(Finding::new(
                Row::middle(4),
                format!("one bulk stream, {what}, {kind}: now / before"),
                comparison,
                String::new(),
            ));
        }
    }
    Ok(findings.into_iter().fold(Results::of(series), Results::find))
}
