//! Row 13.5: an ordinary client's requests beside thousands of slow readers, and the memory of these readers.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longsplice_lab::cores::Pinned;

use super::Scope;
use crate::cores;
use crate::fetch::Load;
use crate::memory::resident;
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;
use crate::slow::SlowReaders;
use crate::stats::Spread;
use crate::switches::{Apart, Switch};

const SWITCHES: [Switch; 4] = [
    Switch::Splicing,
    Switch::Relaying,
    Switch::HaProxyHttp,
    Switch::Nginx,
];

/// Lengths of the slow readers' file and of the ordinary client's, in bytes.
const LONG: u64 = 1_000_000;
const SHORT: u64 = 10 << 10;
/// Connections and request rate of the ordinary client.
const CONNECTIONS: usize = 4;
const RATE: f64 = 200.0;
/// Number of connections that come and go before any measurement: code that is read for the first time does not count
/// for the others.
const WARM_UP: usize = 100;

/// Results of one switch.
#[derive(Debug)]
struct Sample {
    switch: Switch,
    /// Times from the moment at which a request was due to the last byte of its answer, in milliseconds.
    alone_ms: Spread,
    beside_ms: Spread,
    /// Memory in bytes: before, the most while the readers were there, and a minute after they had gone.
    before: u64,
    during: u64,
    after: Option<u64>,
    /// Reasons for relaying, of Longsplice.
    reasons: Option<String>,
}

/// Measures row 13.5.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let mut all = Vec::new();
    for switch in SWITCHES {
        let sample = measure(scope, switch).with_context(|| switch.title())?;
        let mib = |bytes: u64| bytes >> 20;
        eprintln!(
            "   {:<26} alone {:.2} ms, beside {:.2} ms (p99 {:.2}, worst {:.2}); RSS {} MiB, {} MiB, {:?} MiB later",
            switch.title(),
            sample.alone_ms.median,
            sample.beside_ms.median,
            sample.beside_ms.p99,
            sample.beside_ms.max,
            mib(sample.before),
            mib(sample.during),
            sample.after.map(mib),
        );
        if let Some(reasons) = &sample.reasons {
            eprintln!("   {:<26} {reasons}", "");
        }
        all.push(sample);
    }
    judge(scope, &all)
}

fn measure(scope: &Scope<'_>, switch: Switch) -> Result<Sample> {
    let readers = scope.count(4000, 300);
    let apart = Apart::start(scope.room, switch, &[LONG, SHORT])?;
    let pid = apart.standing.pid().context("a switch is a process")?;
    let _ends = Pinned::to(cores::ENDS)?;
    let slow = |count| SlowReaders::start(apart.client(), apart.standing.at, &format!("/{LONG}"), count);
    let first = slow(WARM_UP)?;
    let alone = ordinary(&apart, scope.count(2_000, 500))?;
    first.end()?;
    thread::sleep(Duration::from_secs(scope.count(5, 1)));
    let before = resident(pid)?;

    let slow = slow(readers)?;
    // Let the buffers fill.
    thread::sleep(Duration::from_secs(scope.count(10, 2)));
    let mut during = resident(pid)?;
    let (mut beside, rounds) = (Vec::new(), scope.count(10, 2));
    for _ in 0..rounds {
        beside.extend(ordinary(&apart, 1_000)?);
        during = during.max(resident(pid)?);
    }
    let lived = slow.end()?;
    // Let the switch notice their resets.
    thread::sleep(Duration::from_secs(1));
    let reasons = apart.standing.reasons()?;
    ensure!(
        lived == readers,
        "{} of {readers} slow readers were cut off",
        readers - lived
    );
    let after = match switch {
        Switch::Splicing => {
            thread::sleep(Duration::from_secs(scope.count(60, 5)));
            Some(resident(pid)?)
        }
        _ => None,
    };
    let spread = |times: Vec<f64>| Spread::of(times).context("no request was answered");
    Ok(Sample {
        switch,
        alone_ms: spread(alone)?,
        beside_ms: spread(beside)?,
        before,
        during,
        after,
        reasons,
    })
}

/// Fetches for so many milliseconds as an ordinary client; returns the times of its requests, in milliseconds.
fn ordinary(apart: &Apart, ms: u64) -> Result<Vec<f64>> {
    let load = Load {
        at: apart.standing.at,
        path: &format!("/{SHORT}"),
        length: SHORT,
        connections: CONNECTIONS,
        persistent: true,
        rate: Some(RATE),
        duration: Duration::from_millis(ms),
    };
    let fetched = load.run(apart.client())?;
    Ok(fetched.times_us.iter().map(|us| us / 1e3).collect())
}

fn judge(scope: &Scope<'_>, all: &[Sample]) -> Result<Results> {
    let readers = scope.count(4000, 300);
    let [time, most, memory] = [
        "an ordinary client's median, ms",
        "an ordinary client's worst, ms",
        "RSS, MiB",
    ];
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut results = Results::default();
    for one in all {
        let of = |figure, case, value| {
            let series = Series::new(one.switch.title(), figure, [value]).case(case);
            series.by(Statistic::Median)
        };
        results = results.join(Results::of([
            of(time, "alone", one.alone_ms.median),
            of(time, "beside", one.beside_ms.median),
            of(most, "beside", one.beside_ms.max),
            of(memory, "before", mib(one.before)),
            of(memory, "meanwhile", mib(one.during)),
        ]));
    }
    let [ours, relay, theirs, _] = SWITCHES.map(Switch::title);
    let auto = all.iter().find(|one| one.switch == Switch::Splicing);
    let auto = auto.context("longsplice was not measured")?;
    let after = auto.after.context("it was not looked at a minute later")?;
    let later = "RSS a minute later / before";
    let series = Series::new(ours, later, [after as f64 / auto.before as f64]).by(Statistic::Median);
    let finding = |measure: &str, comparison| {
        Finding::new(
            Row::review(5),
            format!("{measure}, {readers} slow readers of 1 MB"),
            comparison,
            "",
        )
    };
    let compare = |must, aim, figure| Comparison::of(Target::AtMost { must, aim }, ours, figure);
    Ok(results
        .join(Results::of([series]))
        .find(finding(
            "an ordinary client's median, longsplice / the better of `never` and HAProxy",
            compare(1.5, 1.0, time).to([relay, theirs]).worst(["beside"]),
        ))
        .find(finding(
            "RSS, longsplice / HAProxy",
            compare(1.2, 1.0, memory).to([theirs]).worst(["meanwhile"]),
        ))
        .find(finding("RSS a minute later / before", compare(1.5, 1.1, later))))
}
