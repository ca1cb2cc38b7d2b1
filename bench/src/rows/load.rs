//! Rows 6 and 7: effect of splices under load on their streams, beside streams of the same run that are never
//! spliced.

use anyhow::{Context, Result, ensure};
use longsplice_lab::traffic::Transfer;
use longsplice_lab::{ConnectionSpec, Line, LineOptions, Namespace, Outcome, TrafficSpec};

use super::Scope;
use super::middle::{Middle, all_ok, longest_ms, side_by_side};
use crate::daemon::Policy;
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Rate of each end of each stream, in byte/s. Two streams at a time make 2 Gbit/s each way.
const RATE: u64 = 125_000_000;
/// Bytes sent by each end: half a second of the rate.
const BYTES: u64 = RATE / 2;
/// Size of the pieces: large ones would leave gaps of their own between them.
const CHUNK: usize = 64 << 10;

const POLICIES: [Policy<'_>; 2] = [Policy::new("after=48MiB", "now"), Policy::new("never", "now")];

/// Contenders.
const SPLICED: &str = "longsplice, spliced";
const UNSPLICED: &str = "longsplice, never spliced";

/// Streams of one kind.
#[derive(Debug)]
struct Streams {
    /// Longest pause of each, at either end, in milliseconds.
    longest_ms: Vec<f64>,
    /// Number of segments that the TCPs of both ends retransmitted.
    retransmissions: u64,
    /// Rate each way, in Gbit/s.
    gbps_each_way: f64,
}

/// Results of all streams.
#[derive(Debug)]
struct Run {
    spliced: Streams,
    unspliced: Streams,
    /// Retransmitted segments in the namespaces of client, forwarder and server, of any stream.
    namespaces: [i64; 3],
    splices: u64,
}

/// Measures rows 6 and 7.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let run = measure(scope)?;
    let of = |streams: &Streams| Spread::of(streams.longest_ms.iter().copied()).context("no streams");
    let (spliced, unspliced) = (of(&run.spliced)?, of(&run.unspliced)?);
    let [pause, again] = [
        "longest pause of a stream, ms",
        "segments sent again for 100 splices",
    ];
    let series = [(SPLICED, &run.spliced), (UNSPLICED, &run.unspliced)].map(|(name, streams)| {
        let resent = streams.retransmissions as f64 * 100.0 / run.splices.max(1) as f64;
        let splices = |series: Series| match name {
            SPLICED => series.splices(run.splices as f64),
            _ => series,
        };
        let longest = streams.longest_ms.iter().copied();
        [
            splices(Series::new(name, pause, longest).by(Statistic::P99)),
            splices(Series::new(name, again, [resent])),
        ]
    });
    let [client, forwarder, server] = run.namespaces;
    Ok(Results::of(series.into_iter().flatten())
        .find(Finding::new(
            Row::splice(6),
            "longest pause of a stream around a splice under load, p99 / that of unspliced streams",
            Comparison::of(Target::AtMost { must: 2.0, aim: 1.0 }, SPLICED, pause).to([UNSPLICED]),
            format!(
                "spliced p99 {:.2} ms, median {} ms, max {:.2}; unspliced p99 {:.2} ms, median {} ms, max {:.2}; \
                 {} splices at {:.2} Gbit/s each way",
                spliced.p99,
                spliced.show(),
                spliced.max,
                unspliced.p99,
                unspliced.show(),
                unspliced.max,
                run.splices,
                run.spliced.gbps_each_way + run.unspliced.gbps_each_way,
            ),
        ))
        .find(Finding::new(
            Row::splice(7),
            "segments sent again because of 100 splices under load",
            Comparison::of(Target::AtMost { must: 10.0, aim: 0.0 }, SPLICED, again).less(UNSPLICED),
            format!(
                "both ends of spliced streams {}, of unspliced {}; whole namespaces: client {client}, \
                 forwarder {forwarder}, server {server}",
                run.spliced.retransmissions, run.unspliced.retransmissions
            ),
        )))
}

fn measure(scope: &Scope<'_>) -> Result<Run> {
    let count = scope.count(120, 10);
    let net = Line::new("bench", LineOptions::default())?;
    let middle = Middle::start(scope, &net, &POLICIES)?;
    let [splicing, plain] = middle.at[..] else {
        anyhow::bail!("not every listener was started");
    };
    let spaces = [&net.client, &net.forwarder, &net.server];
    let retransmitted = |space: &Namespace| Ok(space.snmp()?.get("Tcp.RetransSegs"));
    let before = spaces.map(retransmitted);
    let transfer = Transfer {
        send_rate: Some(RATE),
        chunk: CHUNK,
        ..Transfer::of(BYTES)
    };
    // Run one after the other, to both listeners at the same time.
    let spec = TrafficSpec::same(count, ConnectionSpec::new(transfer.clone(), transfer)).parallel(1);
    let outcomes = side_by_side(&net.client, [splicing, plain], &spec)?;
    outcomes.iter().try_for_each(all_ok)?;
    let [spliced, unspliced] = outcomes;
    let mut namespaces = [0; 3];
    for ((space, before), sum) in spaces.iter().zip(before).zip(&mut namespaces) {
        let before: Result<i64> = before;
        *sum = retransmitted(space)? - before?;
    }
    let splices = middle.daemon.status()?.counters.spliced_total;
    ensure!(
        splices as usize * 10 >= count * 9,
        "only {splices} of {count} streams were spliced"
    );
    Ok(Run {
        spliced: Streams::of(&spliced),
        unspliced: Streams::of(&unspliced),
        namespaces,
        splices,
    })
}

impl Streams {
    fn of(outcome: &Outcome) -> Self {
        Streams {
            longest_ms: outcome.connections.iter().map(longest_ms).collect(),
            retransmissions: outcome.total_retrans(),
            gbps_each_way: outcome.bits_per_second() / 2e9,
        }
    }
}
