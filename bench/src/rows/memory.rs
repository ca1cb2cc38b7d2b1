//! Row 10: memory of a detached connection, beside HAProxy's and nginx's.
//!
//! Both ends of every connection are on this machine and cost it memory, too. So the same connections are first made
//! through the kernel's router, which keeps no state of them, and their memory is subtracted.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::{Context, Result};
use longsplice_dataplane::FLOW_BYTES;
use longsplice_lab::{Three, ThreeOptions};
use serde::Serialize;

use super::Scope;
use crate::contender::{Contender, Rig};
use crate::holder::Held;
use crate::memory::{Growth, Usage};
use crate::report::{Finding, Target};
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
#[derive(Debug, Serialize)]
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
pub(super) fn run(scope: &Scope<'_>) -> Result<Vec<Finding>> {
    let (connections, rounds) = scope.count((8000, 5), (1000, 1));
    let all = in_turn(&CONTENDERS, Contender::title, rounds, |contender| {
        measure(scope, contender, connections)
    })?;
    Ok(vec![judge(&all)?])
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

fn measure(scope: &Scope<'_>, contender: Contender, connections: usize) -> Result<Sample<Contender>> {
    let options = ThreeOptions {
        router: true,
        ..ThreeOptions::default()
    };
    // Use new namespaces, without remains of the last ones.
    let net = Three::new("bench", options)?;
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
            |count| standing.detached(count),
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

fn judge(all: &[Sample<Contender>]) -> Result<Finding> {
    let direct = kernel(all, Contender::Router)?;
    let unavailable = |contender| median(all, contender, |growth| growth.unavailable);
    let direct_unavailable = unavailable(Contender::Router)?;
    let mut detail = Vec::new();
    let mut totals = Vec::new();
    for &contender in &CONTENDERS[1..] {
        let mut kernel = kernel(all, contender)? - direct;
        if contender == Contender::Spliced {
            // The table was there before the first connection.
            kernel += FLOW_BYTES as f64;
        }
        let process = median(all, contender, |growth| growth.process)?;
        let unavailable = unavailable(contender)? - direct_unavailable;
        totals.push(kernel + process);
        detail.push(format!(
            "{} {:.0} bytes (kernel {kernel:.0}, process {process:.0}; by MemAvailable {unavailable:.0})",
            contender.title(),
            kernel + process
        ));
    }
    let [longsplice, haproxy, nginx] = totals[..] else {
        anyhow::bail!("not every contender was measured");
    };
    let connections = all.first().map_or(0, |one| one.connections);
    detail.push(format!("both ends together {direct:.0}, subtracted"));
    Finding::new(
        Row::splice(10),
        format!("memory of a detached connection, {connections} held / the smaller of HAProxy's and nginx's"),
        Target::AtMost {
            must: 0.05,
            aim: 0.01,
        },
        longsplice / haproxy.min(nginx),
        detail.join("; "),
        &all,
    )
}
