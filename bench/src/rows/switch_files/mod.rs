//! Rows 5.1 to 5.4: paper 003's table 3 rebuilt. Files of one size at a time through a switch, over new connections and
//! over persistent ones.
//!
//! The middle has a core for itself, the ends have the other one, and are mostly the bottleneck. So the comparison is
//! by requests for each second that the middle's core was busy; the table also has those by the clock, and the cost of
//! both cores. It also has the ends without a switch.

mod judge;

use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_lab::cores::Pinned;

use super::Scope;
use crate::cores::{self, Watch, Work};
use crate::fetch::Load;
use crate::report::Results;
use crate::switches::{Apart, Switch};

/// Switches, in the order of the table.
const SWITCHES: [Switch; 7] = [
    Switch::Direct,
    Switch::Splicing,
    Switch::Eager,
    Switch::Relaying,
    Switch::HaProxyHttp,
    Switch::HaProxyTcp,
    Switch::Nginx,
];

/// Lengths of files in bytes: the paper's 1 KB to 300 KB, and on to 10 MB.
const SIZES: [u64; 5] = [1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20];

/// Largest number of attempts at a measurement in which the middle's work is too short to be seen.
const ATTEMPTS: u32 = 5;

/// Number of connections at a time.
const CONNECTIONS: usize = 32;

/// Case to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    size: u64,
    persistent: bool,
}

/// Results of files of one size through one switch.
#[derive(Debug)]
struct Sample {
    switch: Switch,
    case: Case,
    requests: u64,
    /// Work of the cores meanwhile.
    work: Work,
    /// Number of splices for each request.
    splices: f64,
}

/// Measures rows 5.1 to 5.4.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let mut all = Vec::new();
    // Use new namespaces for each size, without TIME-WAIT of the last one.
    for size in SIZES {
        of_size(scope, size, &mut all).with_context(|| format!("files of {size} bytes"))?;
    }
    Ok(judge::judge(&all))
}

fn cases() -> impl Iterator<Item = Case> {
    SIZES.into_iter().flat_map(cases_of)
}

fn cases_of(size: u64) -> impl Iterator<Item = Case> {
    [false, true]
        .into_iter()
        .map(move |persistent| Case { size, persistent })
}

/// Measures files of one size through all switches. The switches run side by side, so that compared figures are
/// measured within seconds: the machine's speed changes by the minute.
fn of_size(scope: &Scope<'_>, size: u64, all: &mut Vec<Sample>) -> Result<()> {
    let start = |switch: Switch| Apart::start(scope.room, switch, &[size]).with_context(|| switch.title());
    let standing: Vec<Apart> = SWITCHES.into_iter().map(start).collect::<Result<_>>()?;
    let _ends = Pinned::to(cores::ENDS)?;
    let background = scope.background()?;
    for _ in 0..scope.count(7, 1) {
        for case in cases_of(size) {
            for (switch, apart) in SWITCHES.into_iter().zip(&standing) {
                let sample = one(scope, background, apart, case)
                    .with_context(|| format!("{}, persistent: {}", switch.title(), case.persistent))?;
                let sample = Sample { switch, ..sample };
                sample.tell();
                all.push(sample);
            }
        }
    }
    for (switch, apart) in SWITCHES.into_iter().zip(&standing) {
        if let Some(reasons) = apart.standing.reasons()? {
            eprintln!("   {:<26} {reasons}", switch.title());
        }
    }
    Ok(())
}

fn one(scope: &Scope<'_>, background: Work, apart: &Apart, case: Case) -> Result<Sample> {
    let ms = Duration::from_millis;
    let (client, standing) = (apart.client(), &apart.standing);
    let path = format!("/{}", case.size);
    let load = Load {
        at: standing.at,
        path: &path,
        length: case.size,
        connections: CONNECTIONS,
        persistent: case.persistent,
        rate: None,
        duration: ms(scope.count(1_000, 300)),
    };
    // Warm up caches, pools, and the daemon's own measurements.
    let warm_up = Load {
        duration: ms(scope.count(200, 50)),
        ..load
    };
    warm_up.run(client)?;
    let mut attempts = 0;
    let (before, fetched, work) = loop {
        let before = standing.splices()?;
        let watch = Watch::start()?;
        let fetched = load.run(client)?;
        let work = watch.stop(background)?;
        attempts += 1;
        match standing.pid() {
            None => break (before, fetched, work.at_least_a_tick()),
            Some(_) => match work.seen() {
                // The machine stood still: measure again rather than lose all the others.
                Err(_) if attempts < ATTEMPTS => {}
                work => break (before, fetched, work?),
            },
        }
    };
    Ok(Sample {
        switch: Switch::Direct,
        case,
        requests: fetched.requests,
        work,
        splices: (standing.splices()? - before) as f64 / fetched.requests.max(1) as f64,
    })
}

impl Sample {
    fn tell(&self) {
        eprintln!(
            "   {:<26} {:>8} bytes, {:<10} {:8.0} requests/s, {:8.0} for each busy second, middle {:3.0} % busy, {:.2} splices each",
            self.switch.title(),
            self.case.size,
            if self.case.persistent { "persistent" } else { "new" },
            self.by_the_clock(),
            self.rate(),
            self.busy(cores::MIDDLE),
            self.splices
        );
    }

    /// Returns the requests for each second that the middle's core was busy.
    fn rate(&self) -> f64 {
        self.requests as f64 / self.work.busy[cores::MIDDLE]
    }

    /// Returns the requests for each second.
    fn by_the_clock(&self) -> f64 {
        self.requests as f64 / self.work.seconds
    }

    /// Returns the time of both cores for a request on the whole path, in microseconds.
    fn whole_us(&self) -> f64 {
        self.work.busy.iter().sum::<f64>() * 1e6 / self.requests as f64
    }

    /// Returns the busy share of a core, in percent.
    fn busy(&self, core: usize) -> f64 {
        100.0 * self.work.busy[core] / self.work.seconds
    }
}
