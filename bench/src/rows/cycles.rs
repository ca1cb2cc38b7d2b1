//! Row 3.2: streams that are spliced and come back again and again, both ways at full rate, beside streams of the same
//! run that are relayed.
//!
//! A round runs two kinds of streams at the same time: cycling ones, which come back and are spliced again, and relayed
//! ones; in a control round both are relayed. The retransmissions of both ends are separated by the streams' own
//! counts. Those of the forwarder's sockets are known of the namespace only, and are compared with the control round's.

use anyhow::{Context, Result, ensure};
use longsplice_engine::FlowState;
use longsplice_lab::topology::Nodes;
use longsplice_lab::traffic::Transfer;
use longsplice_lab::{ConnectionSpec, Line, LineOptions, Outcome, TrafficSpec};

use super::Scope;
use super::depth::Depth;
use super::middle::{Middle, all_ok, longest_ms, side_by_side};
use crate::daemon::Policy;
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Number of cycles that figures refer to.
const CYCLES: f64 = 200.0;
/// Contenders, and figures of each depth.
const CYCLING: &str = "longsplice, spliced again and again";
const RELAYED: &str = "longsplice, relayed";
const AGAIN: &str = "segments sent again for 200 cycles, shares of rounds";
const PAUSE: &str = "longest pause of a stream, ms";
const GBPS: &str = "Gbit/s each way";

/// Number of streams of each kind at a time.
const PARALLEL: usize = 2;
/// Largest number of rounds: a stream may end before it comes back.
const MOST_ROUNDS: usize = 30;

/// Speed of the streams.
#[derive(Debug, Clone, Copy)]
struct Load {
    name: &'static str,
    /// Rate of each end of each stream, in byte/s; `None`: as fast as it can.
    rate: Option<u64>,
    /// Bytes sent by each end of each stream.
    bytes: u64,
    chunk: usize,
    /// Condition of a return: bytes of either side. The pair is spliced again at once.
    until: &'static str,
    /// Number of streams of each kind in a round.
    streams: usize,
}

const LOADS: [Load; 2] = [
    Load {
        name: "full rate",
        rate: None,
        bytes: 256 << 20,
        chunk: 256 << 10,
        until: "bytes=client:32MiB,bytes=server:32MiB",
        streams: 12,
    },
    Load {
        name: "1 Gbit/s each way each",
        rate: Some(125_000_000),
        bytes: 125_000_000 / 2,
        // Large pieces would leave gaps of their own between them.
        chunk: 64 << 10,
        until: "bytes=client:8MiB,bytes=server:8MiB",
        streams: 24,
    },
];

/// View of one kind of streams in a round.
#[derive(Debug)]
struct Streams {
    /// Longest pause of each stream, at either end.
    longest_ms: Vec<f64>,
    /// Number of segments that both ends retransmitted.
    sent_again: u64,
    /// Rate each way, all streams of the kind together.
    gbps_each_way: f64,
}

/// Results of one round.
#[derive(Debug)]
struct Round {
    load: &'static str,
    /// Depth; `None` for a control round.
    depth: Option<Depth>,
    /// Number of returns of spliced pairs.
    cycles: u64,
    /// Number of pairs that had reached the depth; other returns are from drains.
    reached: u64,
    /// Cycling streams; in a control round relayed ones.
    cycling: Streams,
    relayed: Streams,
    /// Number of segments that the forwarder's sockets retransmitted, of any stream.
    forwarder_sent_again: i64,
}

/// Summary of the rounds of one load and depth.
#[derive(Debug)]
struct Sum {
    cycles: u64,
    reached: u64,
    /// Retransmissions for 200 cycles, at both ends and at the forwarder, above those of relayed streams.
    ends: f64,
    forwarder: f64,
    /// Longest pauses of cycling streams, and of relayed ones beside them.
    cycling: Spread,
    relayed: Spread,
    gbps: [f64; 2],
}

/// Measures row 3.2.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let one = |load: &Load| {
        let part = format!("200 splices and returns, {}", load.name);
        scope.found(Row::back(2), &part, measure(scope, load))
    };
    Ok(LOADS.iter().map(one).fold(Results::default(), Results::join))
}

fn measure(scope: &Scope<'_>, load: &Load) -> Result<Results> {
    let wanted: u64 = scope.count(200, 8);
    let net = Line::new("bench", LineOptions::default())?;
    let policies = [
        Policy::new("now", Depth::Dormant.option()).until(load.until),
        Policy::new("now", Depth::Detached.option()).until(load.until),
        Policy::new("never", "now"),
        // The control round has a listener of its own.
        Policy::new("never", "now"),
    ];
    let middle = Middle::start(scope, &net, &policies)?;
    let streams = scope.count(load.streams, 4);
    let mut rounds: Vec<Round> = Vec::new();
    let cycles = |rounds: &[Round], depth| -> u64 {
        let of_it = rounds.iter().filter(|round| round.depth == depth);
        of_it.map(|round| round.cycles).sum()
    };
    for _ in 0..MOST_ROUNDS {
        for depth in [None, Some(Depth::Dormant), Some(Depth::Detached)] {
            let round = one(&net, &middle, load, depth, streams)
                .with_context(|| format!("a round of {}", depth.map_or("control", Depth::title)))?;
            eprintln!("   {}", round.show());
            rounds.push(round);
        }
        if Depth::BOTH
            .into_iter()
            .all(|depth| cycles(&rounds, Some(depth)) >= wanted)
        {
            break;
        }
    }
    for depth in Depth::BOTH {
        let cycles = cycles(&rounds, Some(depth));
        ensure!(
            cycles >= wanted,
            "only {cycles} of {wanted} cycles ({}) came about",
            depth.title()
        );
    }
    judge(load, &rounds, &middle.tell_stuck())
}

/// Runs one round: so many streams of each of two kinds.
fn one(net: &Nodes, middle: &Middle, load: &Load, depth: Option<Depth>, streams: usize) -> Result<Round> {
    let [dormant, detached, relayed, control] = middle.at[..] else {
        anyhow::bail!("not every listener was started");
    };
    let at = match depth {
        Some(Depth::Dormant) => dormant,
        Some(Depth::Detached) => detached,
        None => control,
    };
    let transfer = Transfer {
        send_rate: load.rate,
        chunk: load.chunk,
        ..Transfer::of(load.bytes)
    };
    let spec = ConnectionSpec::new(transfer.clone(), transfer);
    let spec = TrafficSpec::same(streams, spec).parallel(PARALLEL);
    let before = middle.counted()?;
    let sent_again = || anyhow::Ok(net.forwarder.snmp()?.tally().sent_again);
    let forwarder = sent_again()?;
    let outcomes = side_by_side(&net.client, [at, relayed], &spec)?;
    if let Err(error) = outcomes.iter().try_for_each(all_ok) {
        // The daemon's view helps to find the reason.
        for flow in middle
            .daemon
            .flows()?
            .iter()
            .filter(|flow| flow.state != FlowState::Closing)
        {
            eprintln!("   {flow:?}");
        }
        return Err(error);
    }
    let forwarder_sent_again = sent_again()? - forwarder;
    let after = middle.counted()?;
    let reached = |depth: Depth| depth.reached(&after) - depth.reached(&before);
    Ok(Round {
        load: load.name,
        depth,
        forwarder_sent_again,
        cycles: after.resumed_total - before.resumed_total,
        reached: depth.map_or(0, reached),
        cycling: Streams::of(&outcomes[0]),
        relayed: Streams::of(&outcomes[1]),
    })
}

impl Streams {
    fn of(outcome: &Outcome) -> Self {
        Streams {
            longest_ms: outcome.connections.iter().map(longest_ms).collect(),
            sent_again: outcome.total_retrans(),
            gbps_each_way: outcome.bits_per_second() / 2e9,
        }
    }

    fn longest(&self) -> f64 {
        self.longest_ms.iter().copied().fold(0.0, f64::max)
    }
}

impl Round {
    fn show(&self) -> String {
        format!(
            "{}, {:<8} {:>4} cycles ({} of the depth); streams that come back {:.2} Gbit/s each way, longest pause {:.1} ms, {} sent \
             again; relayed beside them {:.2} Gbit/s, {:.1} ms, {}; forwarder {} sent again",
            self.load,
            self.depth.map_or("control", Depth::title),
            self.cycles,
            self.reached,
            self.cycling.gbps_each_way,
            self.cycling.longest(),
            self.cycling.sent_again,
            self.relayed.gbps_each_way,
            self.relayed.longest(),
            self.relayed.sent_again,
            self.forwarder_sent_again
        )
    }
}

impl Sum {
    fn of(rounds: &[Round], depth: Depth) -> Result<Self> {
        let mine: Vec<&Round> = rounds.iter().filter(|round| round.depth == Some(depth)).collect();
        let control = rounds.iter().filter(|round| round.depth.is_none());
        let cycles: u64 = mine.iter().map(|round| round.cycles).sum();
        let for_all = |segments: f64| segments * CYCLES / cycles.max(1) as f64;
        let again =
            |of: fn(&Round) -> &Streams| mine.iter().map(|round| of(round).sent_again as f64).sum::<f64>();
        // There are as many control rounds as others.
        let forwarder: i64 = mine.iter().map(|round| round.forwarder_sent_again).sum();
        let control: i64 = control.map(|round| round.forwarder_sent_again).sum();
        let longest = |of: fn(&Round) -> &Streams| {
            let pauses = mine.iter().flat_map(|round| of(round).longest_ms.iter().copied());
            Spread::of(pauses).context("no streams")
        };
        let gbps = |of: fn(&Round) -> &Streams| {
            let rates = Spread::of(mine.iter().map(|round| of(round).gbps_each_way));
            rates.map_or(0.0, |rates| rates.median)
        };
        let [cycling, relayed]: [fn(&Round) -> &Streams; 2] = [|r| &r.cycling, |r| &r.relayed];
        Ok(Sum {
            cycles,
            reached: mine.iter().map(|round| round.reached).sum(),
            ends: for_all(again(cycling) - again(relayed)),
            forwarder: for_all((forwarder - control) as f64),
            cycling: longest(cycling)?,
            relayed: longest(relayed)?,
            gbps: [gbps(cycling), gbps(relayed)],
        })
    }
}

fn judge(load: &Load, rounds: &[Round], stuck: &str) -> Result<Results> {
    let sums = Depth::BOTH.map(|depth| Sum::of(rounds, depth).map(|sum| (depth, sum)));
    let sums: Vec<(Depth, Sum)> = sums.into_iter().collect::<Result<_>>()?;
    let resent: Vec<_> = sums
        .iter()
        .map(|(depth, sum)| {
            format!(
                "{}: both ends {:+.1}, forwarder {:+.1}, for 200 of {} cycles ({} of the depth, the others from drains); {:.2} Gbit/s each way, relayed beside \
                 them {:.2}",
                depth.title(),
                sum.ends,
                sum.forwarder,
                sum.cycles,
                sum.reached,
                sum.gbps[0],
                sum.gbps[1]
            )
        })
        .collect();
    let pauses: Vec<_> = sums
        .iter()
        .map(|(depth, sum)| {
            format!(
                "{}: p99 {:.2} ms, median {}, max {:.2}, {} streams; relayed beside them p99 {:.2} ms, median {}, max {:.2}",
                depth.title(),
                sum.cycling.p99,
                sum.cycling.show(),
                sum.cycling.max,
                sum.cycling.n,
                sum.relayed.p99,
                sum.relayed.show(),
                sum.relayed.max
            )
        })
        .collect();
    let cases = Depth::BOTH.map(|depth| case(load, depth));
    Ok(Results::of(series(load, rounds, &sums))
        .find(Finding::new(
            Row::back(2),
            format!(
                "200 splices and returns, {}: segments sent again because of them, the worse depth",
                load.name
            ),
            Comparison::of(Target::AtMost { must: 10.0, aim: 0.0 }, CYCLING, AGAIN)
                .less(RELAYED)
                .worst(cases.clone()),
            resent.join("; ") + stuck,
        ))
        .find(Finding::new(
            Row::back(2),
            format!(
                "the same: longest pause of a stream, p99 / that of relayed streams, {}, the worse depth",
                load.name
            ),
            Comparison::of(Target::AtMost { must: 2.0, aim: 1.0 }, CYCLING, PAUSE)
                .to([RELAYED])
                .worst(cases),
            pauses.join("; "),
        )))
}

/// Returns the name of a case.
fn case(load: &Load, depth: Depth) -> String {
    format!("{} {}", depth.title(), load.name)
}

/// Returns all samples. Those of a round's forwarder are the cycling streams'; those of as many control rounds are the
/// relayed streams'.
fn series<'a>(load: &'a Load, rounds: &'a [Round], sums: &'a [(Depth, Sum)]) -> impl Iterator<Item = Series> {
    let control = || rounds.iter().filter(|round| round.depth.is_none());
    sums.iter().flat_map(move |(depth, sum)| {
        let case = case(load, *depth);
        let mine = || rounds.iter().filter(|round| round.depth == Some(*depth));
        let scaled = CYCLES / sum.cycles.max(1) as f64;
        let cycling = mine().map(|round| round.cycling.sent_again as f64 + round.forwarder_sent_again as f64);
        let forwarder = control().map(|round| round.forwarder_sent_again as f64);
        let relayed = mine()
            .zip(forwarder)
            .map(|(round, forwarder)| round.relayed.sent_again as f64 + forwarder);
        let longest =
            |of: fn(&Round) -> &Streams| mine().flat_map(move |round| of(round).longest_ms.iter().copied());
        let gbps = |of: fn(&Round) -> &Streams| mine().map(move |round| of(round).gbps_each_way);
        let reached = sum.reached as f64;
        [
            Series::new(CYCLING, AGAIN, cycling.map(|segments| segments * scaled))
                .by(Statistic::Sum)
                .splices(reached),
            Series::new(RELAYED, AGAIN, relayed.map(|segments| segments * scaled)).by(Statistic::Sum),
            Series::new(CYCLING, PAUSE, longest(|round| &round.cycling))
                .by(Statistic::P99)
                .splices(reached),
            Series::new(RELAYED, PAUSE, longest(|round| &round.relayed)).by(Statistic::P99),
            Series::new(CYCLING, GBPS, gbps(|round| &round.cycling)).splices(reached),
            Series::new(RELAYED, GBPS, gbps(|round| &round.relayed)),
        ]
        .map(|series| series.case(case.clone()))
    })
}
