//! Row 15.1: what a connection costs the router that no rule of the accelerator concerns, beside a router without a program.
//!
//! The stream and the cores are those of rows 14.1 and 14.2. A gigabyte is not the same number of packets for both: how
//! often a receiver acknowledges depends on how they come. The BPF test run of a segment that is not ours stands in row
//! 4.3.

use anyhow::Result;

use super::super::Scope;
use super::super::middle_cost::{PACKET, packet_cost, rounds, series};
use crate::contender::Contender;
use crate::report::{Comparison, Finding, Results, Target};
use crate::row::Row;

const CONTENDERS: [Contender; 2] = [Contender::Router, Contender::PassedThrough];

/// Kinds of segments: whether devices have offloads, and the name of the case.
const KINDS: [(bool, &str); 2] = [(true, "large segments"), (false, "wire-size segments")];

/// Measures row 15.1.
pub(in crate::rows) fn run(scope: &Scope<'_>) -> Result<Results> {
    let mut results = Results::default();
    for (offloads, case) in KINDS {
        let all = rounds(scope, offloads, &CONTENDERS)?;
        let of = |contender| {
            let shown = series(contender, &all).into_iter();
            shown
                .chain([packet_cost(contender, &all)])
                .map(|one| one.case(case))
        };
        results = results.join(Results::of(CONTENDERS.into_iter().flat_map(of)));
    }
    let [router, passed] = CONTENDERS.map(Contender::title);
    let target = Target::AtMost { must: 1.05, aim: 1.0 };
    Ok(results.find(Finding::new(
        Row::accelerator(1),
        "CPU of the middle's core for a packet that passes through / kernel router",
        Comparison::of(target, passed, PACKET)
            .to([router])
            .worst(KINDS.map(|(_, case)| case)),
        "an accelerator between both sides, for another port",
    )))
}
