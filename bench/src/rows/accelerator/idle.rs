//! Rows 15.3 and 15.6: memory of an idle connection that is taken over, alone and beside a transparent relay's.
//!
//! It is measured as in row 10: what the same connections cost through the kernel's router is subtracted.

use anyhow::{Context, Result, ensure};
use longsplice_lab::Line;

use super::super::Scope;
use super::super::memory::{BYTES, Sample, growth, in_turn, kernel, per_connection, series};
use super::routing;
use crate::contender::{Contender, Rig};
use crate::holder::Held;
use crate::report::{Comparison, Finding, Results, Target};
use crate::row::Row;

const CONTENDERS: [Contender; 3] = [
    Contender::Router,
    Contender::TakenOver,
    Contender::NginxTransparent,
];

/// Measures the rows.
pub(in crate::rows) fn run(scope: &Scope<'_>) -> Result<Results> {
    let (connections, rounds) = scope.count((4000, 3), (500, 1));
    let all = in_turn(&CONTENDERS, Contender::title, rounds, |contender| {
        measure(scope, contender, connections)
    })?;
    judge(&all, connections)
}

fn measure(scope: &Scope<'_>, contender: Contender, connections: usize) -> Result<Sample<Contender>> {
    let net = Line::new("bench", routing())?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let standing = rig.start(contender)?;
    let all_are_kept = |count: usize| {
        if contender != Contender::TakenOver {
            return Ok(());
        }
        let status = standing.status()?.accelerator.context("it is an accelerator")?;
        ensure!(
            status.taken_over_total as usize >= count && status.released_total == 0,
            "{count} connections should be taken over and stay so: {status:?}"
        );
        Ok(())
    };
    Ok(Sample {
        contender,
        connections,
        growth: growth(
            standing.pid(),
            connections,
            |count| Held::open(&net, rig.server(), standing.at, count),
            all_are_kept,
        )?,
    })
}

fn judge(all: &[Sample<Contender>], connections: usize) -> Result<Results> {
    let [router, ours, theirs] = CONTENDERS;
    let mut results = Results::default();
    for contender in [ours, theirs] {
        let parts = per_connection(all, [contender, router], 0.0)?;
        results = results.join(Results::of(series(all, (contender, contender.title()), parts)));
    }
    let detail = format!("both ends together {:.0}, subtracted", kernel(all, router)?);
    let alone = Target::AtMost {
        must: 16_384.0,
        aim: 8_192.0,
    };
    let beside = Target::AtMost { must: 1.0, aim: 0.5 };
    let memory = format!("memory of an idle connection that is taken over, {connections} held");
    Ok(results
        .find(Finding::new(
            Row::accelerator(3),
            format!("{memory}, bytes"),
            Comparison::of(alone, ours.title(), BYTES),
            detail.clone(),
        ))
        .find(Finding::new(
            Row::accelerator(6),
            format!("{memory} / nginx as a transparent relay"),
            Comparison::of(beside, ours.title(), BYTES).to([theirs.title()]),
            detail,
        )))
}
