//! Row 10: memory of a detached connection, beside HAProxy's and nginx's.
//!
//! Both ends of every connection are on this machine and cost it memory, too. So the same connections are first made
//! through the kernel's router, which keeps no state of them, and their memory is subtracted.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::{Context, Result};
use longsplice_dataplane::FLOW_BYTES;
use longsplice_lab::{Line, LineOptions};

use super::Scope;
use crate::contender::{Contender, Rig, Standing};
use crate::holder::Held;
use crate::memory::{Growth, Usage};
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;
use crate::stats::Spread;

const CONTENDERS: [Contender; 4] = [
    Contender::Router,
    Contender::Spliced,
    Contender::HaProxy,
    Contender::NginxDefault,
];

/// Number of connections that come and go before any are measured.
const FIRST: usize = 100;

/// One measurement.
#[derive(Debug)]
pub(super) struct Sample<C> {
    /// Contender.
    pub(super) contender: C,
    pub(super) connections: usize,
    pub(super) growth: Growth,
}

impl<C> Sample<C> {
    /// Formats it in one line.
    pub(super) fn show(&self) -> String {
        let connections = self.connections as f64;
        format!(
            "{:>7.0} bytes of kernel and {:>6.0} of process for each connection, ends included",
            self.growth.kernel.values().sum::<f64>() / connections,
            self.growth.process / connections
        )
    }
}

/// Measures row 10.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let (connections, rounds) = scope.count((8000, 5), (1000, 1));
    let all = in_turn(&CONTENDERS, Contender::title, rounds, |contender| {
        measure(scope, contender, connections, |standing, count| {
            standing.detached(count)
        })
    })?;
    judge(&all)
}

/// Measures each in turn, for so many rounds.
pub(super) fn in_turn<C: Copy>(
    contenders: &[C],
    title: fn(C) -> &'static str,
    rounds: u32,
    measure: impl Fn(C) -> Result<Sample<C>>,
) -> Result<Vec<Sample<C>>> {
    // Exclude the kernel's caches that the first connections fill.
    contenders
        .first()
        .map(|&first| measure(first))
        .transpose()
        .context("warm up")?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        for &contender in contenders {
            let one = measure(contender).with_context(|| title(contender))?;
            eprintln!("   {:<26} {}", title(contender), one.show());
            all.push(one);
        }
    }
    Ok(all)
}

/// Measures the growth by so many connections through a contender, once `settled` has seen that number as they are to
/// be.
pub(super) fn measure(
    scope: &Scope<'_>,
    contender: Contender,
    connections: usize,
    settled: impl Fn(&Standing<'_>, usize) -> Result<()>,
) -> Result<Sample<Contender>> {
    // Use new namespaces, without remains of the last ones.
    let net = Line::new("bench", LineOptions::router())?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let standing = rig.start(contender)?;
    Ok(Sample {
        contender,
        connections,
        growth: growth(
            standing.pid(),
            connections,
            |count| Held::open(&net, rig.server(), standing.at, count),
            |count| settled(&standing, count),
        )?,
    })
}

/// Returns the growth by so many connections that `open` opens, once `detached` has seen that number detached
/// in all.
pub(super) fn growth(
    pid: Option<u32>,
    connections: usize,
    open: impl Fn(usize) -> Result<Held>,
    detached: impl Fn(usize) -> Result<()>,
) -> Result<Growth> {
    // Exclude what the first connections leave for good: mostly code that is read for the first time.
    let first = open(FIRST)?;
    detached(FIRST)?;
    drop(first);
    let before = Usage::settled(pid)?;
    let held = open(connections)?;
    detached(FIRST + connections)?;
    let after = Usage::settled(pid)?;
    drop(held);
    Ok(after.since(&before))
}

/// Returns the median of a value of one contender, per connection, in bytes.
pub(super) fn median<C: Copy + Debug + PartialEq>(
    all: &[Sample<C>],
    contender: C,
    of: impl Fn(&Growth) -> f64,
) -> Result<f64> {
    let mine = all.iter().filter(|one| one.contender == contender);
    let spread = Spread::of(mine.map(|one| of(&one.growth) / one.connections as f64));
    Ok(spread
        .with_context(|| format!("{contender:?} was not measured"))?
        .median)
}

/// Returns the kernel memory per connection. The medians are of each cache by itself: other work of the machine touches
/// one of them for a moment, and seldom the same one in most rounds.
pub(super) fn kernel<C: Copy + Debug + PartialEq>(all: &[Sample<C>], contender: C) -> Result<f64> {
    let names = all.iter().flat_map(|one| one.growth.kernel.keys());
    let names: BTreeSet<_> = names.collect();
    let of = |name: &String| {
        median(all, contender, |growth| {
            growth.kernel.get(name).copied().unwrap_or(0.0)
        })
    };
    names.into_iter().map(of).sum()
}

/// Returns the bytes for each connection, less those of both ends: of the kernel, of the process, by the available memory.
/// `table` are bytes that were there before the first connection.
pub(super) fn per_connection<C: Copy + Debug + PartialEq>(
    all: &[Sample<C>],
    [contender, direct]: [C; 2],
    table: f64,
) -> Result<[f64; 3]> {
    let unavailable = |contender| median(all, contender, |growth| growth.unavailable);
    Ok([
        kernel(all, contender)? - kernel(all, direct)? + table,
        median(all, contender, |growth| growth.process)?,
        unavailable(contender)? - unavailable(direct)?,
    ])
}

/// Figure of rows 10 and 5.6. It is one sample, since the kernel's share is made of each cache's median over the rounds.
pub(super) const BYTES: &str = "bytes for each connection";

/// Returns the series of a contender: the sum, its parts, and each round's growth with both ends.
pub(super) fn series<C: Copy + Debug + PartialEq>(
    all: &[Sample<C>],
    (contender, title): (C, &str),
    [kernel, process, unavailable]: [f64; 3],
) -> [Series; 5] {
    let rounds = |figure, of: fn(&Growth) -> f64| {
        let mine = all.iter().filter(move |one| one.contender == contender);
        Series::new(
            title,
            figure,
            mine.map(|one| of(&one.growth) / one.connections as f64),
        )
    };
    let one = |figure, bytes| Series::new(title, figure, [bytes]);
    [
        one(BYTES, kernel + process),
        one("of them the kernel's", kernel),
        one("by MemAvailable", unavailable),
        rounds("of them the process's", |growth| growth.process),
        rounds("the kernel's with both ends'", |growth| {
            growth.kernel.values().sum()
        }),
    ]
}

fn judge(all: &[Sample<Contender>]) -> Result<Results> {
    let connections = all.first().map_or(0, |one| one.connections);
    let mut results = Results::default();
    for &contender in &CONTENDERS[1..] {
        let splices = contender == Contender::Spliced;
        let table = if splices { FLOW_BYTES as f64 } else { 0.0 };
        let parts = per_connection(all, [contender, Contender::Router], table)?;
        let series = series(all, (contender, contender.title()), parts).map(|series| match splices {
            true => series.splices(connections as f64),
            false => series,
        });
        results = results.join(Results::of(series));
    }
    let target = Target::AtMost {
        must: 0.05,
        aim: 0.01,
    };
    let [_, spliced, peers @ ..] = CONTENDERS.map(Contender::title);
    Ok(results.find(Finding::new(
        Row::splice(10),
        format!("memory of a detached connection, {connections} held / the smaller of HAProxy's and nginx's"),
        Comparison::of(target, spliced, BYTES).to(peers),
        format!(
            "both ends together {:.0}, subtracted",
            kernel(all, Contender::Router)?
        ),
    )))
}
