//! Row 3: splices of connections at full rate in both directions, with every byte compared on arrival.

use anyhow::{Result, ensure};
use longsplice_engine::FlowInfo;
use longsplice_lab::traffic::Failure;
use longsplice_lab::{ConnectionSpec, Line, LineOptions, Outcome, Traffic, TrafficSpec};

use super::Scope;
use super::middle::{Middle, longest_ms, settled};
use crate::daemon::{Daemon, Policy};
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Time and depth of the splice: each policy is used in turn.
const POLICIES: [Policy<'_>; 9] = [
    Policy::new("after=64KiB", "now"),
    Policy::new("after=256KiB", "never"),
    Policy::new("after=1MiB", "now"),
    Policy::new("after=1MiB", "never"),
    Policy::new("after=4MiB", "now"),
    Policy::new("after=3ms", "now"),
    Policy::new("after=7ms", "never"),
    Policy::new("after=10ms", "after=5ms"),
    // Unspliced streams, whose pauses are compared.
    Policy::new("never", "now"),
];
/// Bytes sent by each end of each connection.
const BYTES: u64 = 8 << 20;
const PARALLEL: usize = 4;
/// Largest number of turns through all policies: a connection may end before it could be spliced.
const MOST_TURNS: u32 = 4;

/// Contender of all series but one.
const OURS: &str = "longsplice, spliced";

/// Results of the connections of one policy.
#[derive(Debug)]
struct Batch {
    splice: String,
    detach: String,
    connections: usize,
    spliced: u64,
    gigabytes: f64,
    gbps: f64,
    /// Longest pause of each connection.
    longest_ms: Option<Spread>,
    retransmissions: u64,
    failures: Vec<String>,
}

/// Measures row 3.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let wanted: u64 = scope.count(1000, 40);
    let each = (wanted as usize).div_ceil(POLICIES.len() - 1);
    let net = Line::new("bench", LineOptions::default())?;
    let middle = Middle::start(scope, &net, &POLICIES)?;
    let mut batches: Vec<Batch> = Vec::new();
    for _ in 0..MOST_TURNS {
        for (policy, &at) in POLICIES.iter().zip(&middle.at) {
            let before = splices(&middle.daemon)?;
            let spec = TrafficSpec::same(each, ConnectionSpec::both_ways(BYTES)).parallel(PARALLEL);
            let outcome = Traffic::run(&net.client, at, &spec)?;
            let spliced = splices(&middle.daemon)? - before;
            let batch = Batch::new(policy, &outcome, spliced, &middle.daemon.flows()?);
            eprintln!("   {}", batch.show());
            batches.push(batch);
        }
        if total(&batches) >= wanted {
            break;
        }
    }
    let spliced = total(&batches);
    let failures: usize = batches.iter().map(|batch| batch.failures.len()).sum();
    let gigabytes: f64 = batches.iter().map(|batch| batch.gigabytes).sum();
    ensure!(
        failures > 0 || spliced >= wanted,
        "only {spliced} of {wanted} splices came about"
    );
    let pause = |spliced: bool| {
        let kind = batches
            .iter()
            .filter(|batch| (batch.splice != "never") == spliced);
        let longest = kind.filter_map(|batch| Some(batch.longest_ms?.max));
        longest.fold(0.0, f64::max)
    };
    let first = batches.iter().find_map(|batch| batch.failures.first());
    let detail = format!(
        "{spliced} splices, {gigabytes:.1} GB compared byte by byte at both ends; longest pause {:.0} ms, \
         unspliced {:.0} ms{}",
        pause(true),
        pause(false),
        first.map_or_else(String::new, |first| format!("; the first failure: {first}"))
    );
    let of = |figure: &str, value: fn(&Batch) -> f64| {
        Series::new(OURS, figure, batches.iter().map(value)).by(Statistic::Sum)
    };
    let pauses = |kind: &str, spliced: bool| {
        let of_it = batches
            .iter()
            .filter(|batch| (batch.splice != "never") == spliced);
        let longest = of_it.filter_map(|batch| Some(batch.longest_ms?.max));
        Series::new(kind, "longest pause of a batch, ms", longest).by(Statistic::Max)
    };
    let failed = "failed connections of a batch";
    let series = [
        of(failed, |batch| batch.failures.len() as f64).splices(spliced as f64),
        of("splices of a batch", |batch| batch.spliced as f64),
        of("GB compared in a batch", |batch| batch.gigabytes),
        of("segments sent again in a batch", |batch| {
            batch.retransmissions as f64
        }),
        pauses(OURS, true),
        pauses("longsplice, never spliced", false),
    ];
    Ok(Results::of(series).find(Finding::new(
        Row::splice(3),
        "splices at full rate, both ways: connections with bytes lost, wrong or reordered",
        Comparison::of(Target::AtMost { must: 0.0, aim: 0.0 }, OURS, failed),
        detail,
    )))
}

impl Batch {
    fn new(policy: &Policy<'_>, outcome: &Outcome, spliced: u64, flows: &[FlowInfo]) -> Self {
        // The daemon's view helps to find the reason.
        let failure = |(number, why): (usize, &Failure)| {
            let port = outcome.connections[number].client_port();
            let flow = flows.iter().find(|flow| Some(flow.client.peer.port()) == port);
            format!("connection {number} from port {port:?}: {why}; {flow:?}")
        };
        Batch {
            splice: policy.splice.to_owned(),
            detach: policy.detach.to_owned(),
            connections: outcome.connections.len(),
            spliced,
            gigabytes: outcome.bytes() as f64 / 1e9,
            gbps: outcome.bits_per_second() / 1e9,
            longest_ms: Spread::of(outcome.connections.iter().map(longest_ms)),
            retransmissions: outcome.total_retrans(),
            failures: outcome.failures().map(failure).collect(),
        }
    }

    fn show(&self) -> String {
        let pause = self.longest_ms.map_or(0.0, |longest| longest.max);
        format!(
            "--splice {:<12} --detach {:<9} {:>4} of {} spliced, {:.2} GB compared at {:.1} Gbit/s, longest pause \
             {pause:.0} ms, {} sent again, {} failed",
            self.splice,
            self.detach,
            self.spliced,
            self.connections,
            self.gigabytes,
            self.gbps,
            self.retransmissions,
            self.failures.len()
        )
    }
}

/// Returns the number of splices so far, once no connection is on its way to one.
fn splices(daemon: &Daemon) -> Result<u64> {
    Ok(settled(daemon)?.spliced_total)
}

fn total(batches: &[Batch]) -> u64 {
    batches.iter().map(|batch| batch.spliced).sum()
}
