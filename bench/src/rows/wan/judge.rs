//! Judges rows 8 and 9 by the transfers over emulated links.

use anyhow::{Context, Result};

use super::{KINDS, Kind, PATHS, Run, Runs, Way};
use crate::report::{Finding, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Returns rows 8 and 9, one finding for each path and measure.
pub(super) fn findings(all: &Runs) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for path in &PATHS {
        found.push(pause(all, path.name)?);
        found.push(lost(all, path.name)?);
    }
    for path in &PATHS {
        found.push(goodput(all, path.name)?);
    }
    Ok(found)
}

fn spread(all: &Runs, path: &str, kind: Kind, of: impl Fn(&Run) -> f64) -> Result<Spread> {
    let runs = all.runs.iter().filter(|run| run.path == path && run.kind == kind);
    Spread::of(runs.map(of)).with_context(|| format!("no {kind:?} transfer over {path}"))
}

/// Compares the longest pause of the spliced transfers with that of the unspliced ones.
fn pause(all: &Runs, path: &str) -> Result<Finding> {
    let whole = |kind| spread(all, path, kind, |run| run.longest_ms);
    let mid = |kind| spread(all, path, kind, |run| run.longest_mid_ms);
    let (spliced, never) = (whole(Kind::Spliced)?, whole(Kind::Never)?);
    let (spliced_mid, never_mid) = (mid(Kind::Spliced)?, mid(Kind::Never)?);
    let detail = format!(
        "spliced max {:.1} ms, median {}; unspliced max {:.1} ms, median {}; past the slow start: spliced max {:.1}, \
         unspliced {:.1}; {} transfers each, {} discarded because the emulator was late",
        spliced.max,
        spliced.show(),
        never.max,
        never.show(),
        spliced_mid.max,
        never_mid.max,
        spliced.n,
        all.discarded
    );
    Finding::new(
        Row::splice(8),
        format!("{path}, 100 Mbit/s: longest pause of a transfer spliced midway / unspliced"),
        Target::AtMost { must: 1.2, aim: 1.0 },
        spliced.max / never.max,
        detail,
        // One copy of the samples is enough.
        &all.runs.iter().filter(|run| run.path == path).collect::<Vec<_>>(),
    )
}

/// Compares the mean losses of spliced transfers with those of unspliced ones.
fn lost(all: &Runs, path: &str) -> Result<Finding> {
    let mean = |kind, of: fn(&Run) -> u64| {
        let runs: Vec<_> = all
            .runs
            .iter()
            .filter(|run| run.path == path && run.kind == kind)
            .collect();
        runs.iter().map(|run| of(run)).sum::<u64>() as f64 / runs.len().max(1) as f64
    };
    let [dropped, resent]: [fn(&Run) -> u64; 2] = [|run| run.dropped, |run| run.retransmitted];
    let by_splices = |of| (mean(Kind::Spliced, of) - mean(Kind::Never, of)).max(0.0);
    let detail = format!(
        "for each transfer: spliced {:.1} dropped, {:.1} sent again; unspliced {:.1} and {:.1}",
        mean(Kind::Spliced, dropped),
        mean(Kind::Spliced, resent),
        mean(Kind::Never, dropped),
        mean(Kind::Never, resent)
    );
    Finding::new(
        Row::splice(8),
        format!("{path}: segments lost or sent again by a splice"),
        Target::AtMost { must: 0.0, aim: 0.0 },
        by_splices(dropped).max(by_splices(resent)),
        detail,
        &(),
    )
}

/// Compares the goodput of `auto` with that of `never`: the worse of the two directions.
fn goodput(all: &Runs, path: &str) -> Result<Finding> {
    let mut worst = f64::INFINITY;
    let mut detail = Vec::new();
    for way in [Way::Download, Way::Upload] {
        let median = |kind| -> Result<f64> {
            let runs = all
                .runs
                .iter()
                .filter(|run| run.path == path && run.kind == kind && run.way == way);
            let spread = Spread::of(runs.map(|run| run.mbps));
            Ok(spread
                .with_context(|| format!("no {kind:?} {way:?} over {path}"))?
                .median)
        };
        let [spliced, auto, never] = KINDS.map(median);
        let (auto, never) = (auto?, never?);
        worst = worst.min(auto / never);
        detail.push(format!(
            "{way:?}: auto {auto:.1} Mbit/s, never {never:.1}, after=16MiB {:.1}",
            spliced?
        ));
    }
    let chosen: Vec<_> = all
        .runs
        .iter()
        .filter(|run| run.path == path && run.kind == Kind::Auto)
        .collect();
    let spliced = chosen.iter().filter(|run| run.spliced).count();
    detail.push(format!("auto spliced {spliced} of {}", chosen.len()));
    Finding::new(
        Row::splice(9),
        format!("{path}: goodput of the whole transfer with `auto` / never splicing, the worse way"),
        Target::AtLeast { must: 0.97, aim: 1.0 },
        worst,
        detail.join("; "),
        &(),
    )
}
