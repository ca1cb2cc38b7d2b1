//! Row 5: duration of the switch to final, once a pair is drained; the daemon measures it.

use anyhow::{Result, ensure};
use longsplice_engine::TransitionTimes;
use longsplice_lab::{ConnectionSpec, Line, LineOptions, Traffic, TrafficSpec};

use super::Scope;
use super::middle::{Middle, all_ok};
use crate::daemon::Policy;
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;

const BYTES: u64 = 4 << 20;
const PARALLEL: usize = 2;

/// Measures row 5, for both depths.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let splices: u32 = scope.count(300, 30);
    let net = Line::new("bench", LineOptions::default())?;
    let policies = ["never", "now"].map(|detach| Policy::new("after=256KiB", detach));
    let middle = Middle::start(scope, &net, &policies)?;
    for &at in &middle.at {
        let spec = TrafficSpec::same(splices as usize, ConnectionSpec::both_ways(BYTES)).parallel(PARALLEL);
        all_ok(&Traffic::run(&net.client, at, &spec)?)?;
    }
    let counters = middle.daemon.status()?.counters;
    let mut all = Results::default();
    for (depth, must, aim, times) in [
        ("dormant", 1_000.0, 300.0, counters.transition_to_dormant),
        ("detached", 40_000.0, 12_000.0, counters.transition_to_detached),
    ] {
        all = all.join(judge(
            depth,
            Target::AtMost { must, aim },
            times,
            splices * 2 / 3,
        )?);
    }
    Ok(all)
}

fn judge(depth: &str, target: Target, times: TransitionTimes, least: u32) -> Result<Results> {
    ensure!(
        times.samples >= least,
        "only {} switches to {depth} were timed",
        times.samples
    );
    // The daemon tells these two of its samples.
    let of = |figure: &str, ns: u64| {
        let series = Series::new("longsplice", figure, [ns as f64]).case(depth);
        series.by(Statistic::Median).splices(f64::from(times.samples))
    };
    let [median, p99] = ["daemon's median, ns", "daemon's 99th percentile, ns"];
    let series = [of(median, times.median_ns), of(p99, times.p99_ns)];
    Ok(Results::of(series).find(Finding::new(
        Row::splice(5),
        format!("the switch to final once drained, median, {depth}, ns"),
        Comparison::of(target, "longsplice", median).worst([depth]),
        format!("{} switches", times.samples),
    )))
}
