//! Judges the table by the demands of the issue.

use super::{Case, SWITCHES, Sample, cases};
use crate::cores;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;
use crate::switches::Switch;

/// Figure that is compared.
const RATE: &str = "requests for each busy second of the middle's core";

/// Returns all samples, and the four rows.
pub(super) fn judge(all: &[Sample]) -> Results {
    let small = |case: &Case| !case.persistent && case.size <= 10 << 10;
    let large = |case: &Case| case.size >= 100 << 10;
    let ten = |case: &Case| case.persistent && case.size == 10 << 10;
    let finding = |row, measure, target, (ours, theirs): (Switch, &[Switch]), cases: Vec<Case>| {
        let comparison =
            Comparison::of(target, ours.title(), RATE).to(theirs.iter().map(|switch| switch.title()));
        let comparison = comparison.worst(cases.into_iter().map(name));
        Finding::new(
            Row::switch(row),
            measure,
            comparison,
            "by busy seconds of the middle's core",
        )
    };
    let with = |wanted: fn(&Case) -> bool| cases().filter(wanted).collect::<Vec<_>>();
    Results::of(series(all))
        .find(finding(
            1,
            "files of 1 KB to 10 MB: splice = auto / splice = never, the worst case",
            Target::AtLeast { must: 0.97, aim: 1.0 },
            (Switch::Splicing, &[Switch::Relaying]),
            with(|_| true),
        ))
        .find(finding(
            2,
            "1 KB and 10 KB over new connections: longsplice / HAProxy in HTTP mode, the worse case",
            Target::AtLeast { must: 1.0, aim: 1.3 },
            (Switch::Splicing, &[Switch::HaProxyHttp]),
            with(small),
        ))
        .find(finding(
            3,
            "100 KB and more: longsplice / the better of HAProxy (HTTP, TCP) and nginx, the worst case",
            Target::AtLeast { must: 1.5, aim: 2.5 },
            (
                Switch::Splicing,
                &[Switch::HaProxyHttp, Switch::HaProxyTcp, Switch::Nginx],
            ),
            with(large),
        ))
        .find(finding(
            4,
            "10 KB over persistent connections, relayed: longsplice / HAProxy in HTTP mode",
            Target::AtLeast { must: 1.0, aim: 1.3 },
            (Switch::Relaying, &[Switch::HaProxyHttp]),
            with(ten),
        ))
}

/// Returns the name of a case.
fn name(case: Case) -> String {
    let length = match case.size {
        n if n >= 1 << 20 => format!("{} MB", n >> 20),
        n => format!("{} KB", n >> 10),
    };
    format!("{length} {}", if case.persistent { "kept" } else { "new" })
}

fn series(all: &[Sample]) -> impl Iterator<Item = Series> {
    let each = SWITCHES
        .into_iter()
        .flat_map(|switch| cases().map(move |case| (switch, case)));
    each.flat_map(move |(switch, case)| {
        let mine = || {
            all.iter()
                .filter(move |one| one.switch == switch && one.case == case)
        };
        let splices = mine().map(|one| one.splices).sum::<f64>() / mine().count().max(1) as f64;
        let of = |figure, value: fn(&Sample) -> f64| {
            let series = Series::new(switch.title(), figure, mine().map(value)).case(name(case));
            match switch {
                Switch::Splicing => series.chose(splices),
                Switch::Eager => series.splices(splices),
                _ => series,
            }
        };
        [
            of(RATE, Sample::rate),
            of("requests per second by the clock", Sample::by_the_clock),
            of("CPU of the whole path for a request, µs", Sample::whole_us),
            of("middle's core busy, %", |one| one.busy(cores::MIDDLE)),
            of("ends' core busy, %", |one| one.busy(cores::ENDS)),
        ]
    })
}
