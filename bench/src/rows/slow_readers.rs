//! Row 13.5: an ordinary client's requests beside thousands of slow readers, and the memory of these readers.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::Scope;
use crate::cores::{self, Pinned};
use crate::fetch::Load;
use crate::memory::resident;
use crate::report::{Finding, Target};
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
#[derive(Debug, Serialize)]
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
pub(super) fn run(scope: &Scope<'_>) -> Result<Vec<Finding>> {
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

fn judge(scope: &Scope<'_>, all: &[Sample]) -> Result<Vec<Finding>> {
    let of = |switch: Switch| {
        let one = all.iter().find(|one| one.switch == switch);
        one.with_context(|| format!("{} was not measured", switch.title()))
    };
    let [ours, relay, theirs, nginx] = SWITCHES.map(of);
    let (ours, relay, theirs, nginx) = (ours?, relay?, theirs?, nginx?);
    let readers = scope.count(4000, 300);
    let show = |one: &Sample| format!("{:.2} (worst {:.1})", one.beside_ms.median, one.beside_ms.max);
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let after = ours.after.context("it was not looked at a minute later")?;
    let finding = |measure: &str, must, aim, value, detail| {
        let measure = format!("{measure}, {readers} slow readers of 1 MB");
        Finding::new(
            Row::review(5),
            measure,
            Target::AtMost { must, aim },
            value,
            detail,
            &all,
        )
    };
    Ok(vec![
        finding(
            "an ordinary client's median, longsplice / the better of `never` and HAProxy",
            1.5,
            1.0,
            ours.beside_ms.median / relay.beside_ms.median.min(theirs.beside_ms.median),
            format!(
                "ms: auto {}, never {}, HAProxy {}, nginx {}; auto alone {:.2}",
                show(ours),
                show(relay),
                show(theirs),
                show(nginx),
                ours.alone_ms.median
            ),
        )?,
        finding(
            "RSS, longsplice / HAProxy",
            1.2,
            1.0,
            ours.during as f64 / theirs.during as f64,
            format!(
                "auto {}, never {}, HAProxy {}, nginx {}",
                mib(ours.during),
                mib(relay.during),
                mib(theirs.during),
                mib(nginx.during)
            ),
        )?,
        finding(
            "RSS a minute later / before",
            1.5,
            1.1,
            after as f64 / ours.before as f64,
            format!("{} before, {} later", mib(ours.before), mib(after)),
        )?,
    ])
}
