//! Rows 15.3 and 15.6: memory of an idle connection that is taken over, alone and beside a transparent relay's.
//!
//! It is measured as in row 10: what the same connections cost through the kernel's router is subtracted.

use anyhow::Result;

use super::super::Scope;
use super::super::memory::{BYTES, Sample, in_turn, kernel, measure, per_connection, series};
use crate::contender::Contender;
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
        measure(scope, contender, connections, |standing, count| {
            standing.all_kept(contender, count)
        })
    })?;
    judge(&all, connections)
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
