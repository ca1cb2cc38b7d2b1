//! Row 5: duration of the switch to final, once a pair is drained; the daemon measures it.

use anyhow::{Result, ensure};
use longsplice_engine::SwitchTimes;
use longsplice_lab::{ConnectionSpec, Three, ThreeOptions, Traffic, TrafficSpec};

use super::Scope;
use super::middle::{Middle, all_ok};
use crate::daemon::Policy;
use crate::report::{Finding, Target};
use crate::row::Row;

const BYTES: u64 = 4 << 20;
const PARALLEL: usize = 2;

/// Measures row 5, for both depths.
pub(super) fn run(scope: &Scope<'_>) -> Result<Vec<Finding>> {
    let splices: u32 = scope.count(300, 30);
    let net = Three::new("bench", ThreeOptions::default())?;
    let policies = ["never", "now"].map(|detach| Policy::new("after=256KiB", detach));
    let middle = Middle::start(scope, &net, &policies)?;
    for &at in &middle.at {
        let spec = TrafficSpec::same(splices as usize, ConnectionSpec::both_ways(BYTES)).parallel(PARALLEL);
        all_ok(&Traffic::run(&net.client, at, &spec)?)?;
    }
    let counters = middle.daemon.status()?.counters;
    let finding = |depth: &str, must, aim, times: SwitchTimes| {
        let least = splices * 2 / 3;
        ensure!(
            times.samples >= least,
            "only {} switches to {depth} were timed",
            times.samples
        );
        Finding::new(
            Row::splice(5),
            format!("the switch to final once drained, median, {depth}, ns"),
            Target::AtMost { must, aim },
            times.median_ns as f64,
            format!("p99 {} ns, {} switches", times.p99_ns, times.samples),
            &times,
        )
    };
    Ok(vec![
        finding("dormant", 1_000.0, 300.0, counters.switch_to_dormant)?,
        finding("detached", 40_000.0, 12_000.0, counters.switch_to_detached)?,
    ])
}
