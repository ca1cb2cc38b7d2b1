//! Row 5.5: latency that a switch adds at half load, beside HAProxy's.
//!
//! Requests are due at equal distances, even while earlier ones are unanswered, and their time begins when they are
//! due: a switch that stops for a moment is charged for all requests that wait. The latency of the ends without a
//! switch is subtracted.

use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_lab::cores::Pinned;

use super::Scope;
use crate::cores;
use crate::fetch::Load;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;
use crate::stats::Spread;
use crate::switches::{Apart, Switch};

const SWITCHES: [Switch; 3] = [Switch::Direct, Switch::Splicing, Switch::HaProxyHttp];

/// Length of the file, fetched over persistent connections, in bytes.
const SIZE: u64 = 10 << 10;
const PATH: &str = "/10240";
const CONNECTIONS: usize = 32;

/// One round of one switch.
#[derive(Debug)]
struct Sample {
    switch: Switch,
    /// Time from the moment at which a request was due to the last byte of its answer, in microseconds.
    median_us: f64,
    p99_us: f64,
}

/// Measures row 5.5.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let rate = half_load(scope)?;
    eprintln!("   half of what HAProxy carries is {rate:.0} requests/s");
    let mut all = Vec::new();
    for _ in 0..scope.count(7, 1) {
        for switch in SWITCHES {
            let duration = scope.count(3_000, 300);
            let times = through(scope, switch, Some(rate), duration).with_context(|| switch.title())?;
            eprintln!(
                "   {:<26} median {:6.0} µs, p99 {:6.0} µs",
                switch.title(),
                times.median,
                times.p99
            );
            all.push(Sample {
                switch,
                median_us: times.median,
                p99_us: times.p99,
            });
        }
    }
    Ok(judge(rate, &all))
}

/// Returns half of the requests that HAProxy carries in a second, with the ends on a core of their own.
fn half_load(scope: &Scope<'_>) -> Result<f64> {
    let ms = scope.count(2_000, 300);
    let times = through(scope, Switch::HaProxyHttp, None, ms)?;
    Ok(times.n as f64 * 1e3 / ms as f64 / 2.0)
}

/// Measures the times of requests through one switch, in microseconds.
fn through(scope: &Scope<'_>, switch: Switch, rate: Option<f64>, ms: u64) -> Result<Spread> {
    // Use new namespaces, without TIME-WAIT of the last ones.
    let apart = Apart::start(scope.room, switch, &[SIZE])?;
    let _ends = Pinned::to(cores::ENDS)?;
    let load = Load {
        at: apart.standing.at,
        path: PATH,
        length: SIZE,
        connections: CONNECTIONS,
        persistent: true,
        rate,
        duration: Duration::from_millis(ms),
    };
    let warm_up = Load {
        duration: Duration::from_millis(ms / 10),
        ..load
    };
    warm_up.run(apart.client())?;
    let fetched = load.run(apart.client())?;
    Spread::of(fetched.times_us).context("no request was answered")
}

fn judge(rate: f64, all: &[Sample]) -> Results {
    let added = "p99 of a request above that without a switch, µs";
    let series = SWITCHES.into_iter().flat_map(|switch| {
        // They were measured in turn. Less than a microsecond added counts as one.
        let rounds = all.chunks(SWITCHES.len()).filter_map(|round| {
            let of = |switch| {
                round
                    .iter()
                    .find(|one| one.switch == switch)
                    .map(|one| one.p99_us)
            };
            Some((of(switch)? - of(Switch::Direct)?).max(1.0))
        });
        let above = (switch != Switch::Direct).then(|| Series::new(switch.title(), added, rounds));
        let of = |figure, value: fn(&Sample) -> f64| {
            let mine = all.iter().filter(|one| one.switch == switch);
            Series::new(switch.title(), figure, mine.map(value))
        };
        let whole = [
            of("p99 of a request, µs", |one| one.p99_us),
            of("median of a request, µs", |one| one.median_us),
        ];
        above.into_iter().chain(whole)
    });
    let [_, ours, theirs] = SWITCHES.map(Switch::title);
    Results::of(series).find(Finding::new(
        Row::switch(5),
        "latency added to a request for 10 KB at half load, p99, longsplice / HAProxy in HTTP mode",
        Comparison::of(Target::AtMost { must: 1.0, aim: 0.5 }, ours, added).to([theirs]),
        format!("{rate:.0} requests/s over {CONNECTIONS} connections"),
    ))
}
