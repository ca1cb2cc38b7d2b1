//! Row 15.2: duration of a take-over in user space: from the server's answer until both sockets are built and the client has
//! heard, and from the client's acknowledgement until the server has; the daemon measures it.

use anyhow::{Result, ensure};
use longsplice_engine::TransitionTimes;
use longsplice_lab::{Line, LineOptions};

use super::super::Scope;
use crate::contender::{Contender, Rig};
use crate::cores;
use crate::holder::Held;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;

/// Measures row 15.2.
pub(in crate::rows) fn run(scope: &Scope<'_>) -> Result<Results> {
    let connections = scope.count(4000, 200);
    let rounds = (0..scope.count(7, 1)).map(|_| one(scope, connections));
    let rounds = rounds.collect::<Result<Vec<TransitionTimes>>>()?;
    let contender = Contender::TakenOver.title();
    // The daemon tells these two of its samples.
    let of = |figure, ns: fn(&TransitionTimes) -> u64| {
        Series::new(
            contender,
            figure,
            rounds.iter().map(|times| ns(times) as f64 / 1e3),
        )
    };
    let median = "daemon's median, µs";
    let series = [
        of(median, |times| times.median_ns),
        of("daemon's 99th percentile, µs", |times| times.p99_ns),
    ];
    let target = Target::AtMost {
        must: 90.0,
        aim: 30.0,
    };
    Ok(Results::of(series).find(Finding::new(
        Row::accelerator(2),
        "a take-over, median, µs",
        Comparison::of(target, contender, median),
        format!("{connections} take-overs, one after the other, in each round"),
    )))
}

/// Measures so many take-overs of one daemon.
fn one(scope: &Scope<'_>, connections: usize) -> Result<TransitionTimes> {
    let net = Line::new("bench", LineOptions::router())?;
    // Part the cores: the kernel of an end works as in another machine, and is no part of the node's time.
    cores::part(&net)?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let (standing, _ends) = rig.start_apart(Contender::TakenOver)?;
    let held = Held::open(&net, rig.server(), standing.at, connections)?;
    let times = standing.status()?.counters.take_over;
    drop(held);
    ensure!(
        times.samples as usize >= connections,
        "only {} of {connections} connections were taken over",
        times.samples
    );
    Ok(times)
}
