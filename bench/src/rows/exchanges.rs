//! Row 3.3: requests and replies of 1 KB over persistent connections, whose pairs come back for each request and are
//! spliced again for its reply, beside the relay.

use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_engine::Counters;
use longsplice_lab::topology::Nodes;
use longsplice_lab::{
    ConnectionSpec, Direction, Emulated, Exchanges, Line, LineOptions, LinkSpec, Outcome, Traffic,
    TrafficSpec,
};

use super::Scope;
use super::middle::{Middle, all_ok};
use crate::cores;
use crate::daemon::Policy;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Length of a request, and of a reply.
const LENGTH: u64 = 1024;

const POLICIES: [Policy<'_>; 2] = [
    Policy::new("now", "never").until("data=client"),
    Policy::new("never", "never"),
];

/// Case to measure.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    connections: usize,
    /// Round-trip time of each of two emulated links; `None`: veth.
    link: Option<Duration>,
    /// Number of requests on each connection of a round.
    requests: u32,
}

const CASES: [Case; 4] = [
    Case {
        name: "one connection",
        connections: 1,
        link: None,
        requests: 20_000,
    },
    Case {
        name: "8 connections",
        connections: 8,
        link: None,
        requests: 5_000,
    },
    Case {
        name: "one connection over 2 + 2 ms",
        connections: 1,
        link: Some(Duration::from_millis(2)),
        requests: 400,
    },
    Case {
        name: "8 connections over 2 + 2 ms",
        connections: 8,
        link: Some(Duration::from_millis(2)),
        requests: 200,
    },
];

/// One round of one kind.
#[derive(Debug)]
struct Round {
    per_second: f64,
    /// Time of an exchange, median and 99th percentile.
    median_us: f64,
    p99_us: f64,
    /// Per request: splices, returns, and packets that the kernel half forwarded, forwarded and copied.
    splices: f64,
    returns: f64,
    forwarded: f64,
    shared: f64,
    /// Share of the replies' bytes that bypassed the relay.
    replies_spliced: f64,
}

/// All rounds of a case.
#[derive(Debug)]
struct Rounds {
    case: &'static str,
    spliced: Vec<Round>,
    relayed: Vec<Round>,
    /// Number of rounds in which the emulator was late.
    discarded: usize,
}

/// Measures row 3.3.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let one = |case: &Case| {
        scope.found(
            Row::back(3),
            &format!("requests and replies, {}", case.name),
            measure(scope, case),
        )
    };
    Ok(CASES.iter().map(one).fold(Results::default(), Results::join))
}

fn measure(scope: &Scope<'_>, case: &Case) -> Result<Results> {
    let Some(rtt) = case.link else {
        let net = Line::new("bench", LineOptions::default())?;
        return rounds(scope, case, &net, None);
    };
    let link = LinkSpec::symmetric(Direction {
        delay: rtt / 2,
        rate: Some(100_000_000),
        ..Direction::default()
    });
    let net = cores::emulated(link.clone(), link)?;
    rounds(scope, case, &net, Some(&net))
}

fn rounds(scope: &Scope<'_>, case: &Case, net: &Nodes, emulated: Option<&Emulated>) -> Result<Results> {
    let middle = Middle::start(scope, net, &POLICIES)?;
    let requests = scope.count(case.requests, case.requests / 20);
    let [mut spliced, mut relayed] = [Vec::new(), Vec::new()];
    let mut discarded = 0;
    // The first round only warms up the caches.
    one(case, net, &middle, 1, requests / 4)?;
    for _ in 0..scope.count(7, 2) {
        for (kind, rounds) in [&mut spliced, &mut relayed].into_iter().enumerate() {
            let round = loop {
                emulated.inspect(|net| net.emulator().reset());
                let round = one(case, net, &middle, kind, requests)?;
                let verdict = emulated.map(Emulated::verdict).unwrap_or_default();
                if scope.counts(&verdict, &mut discarded)? {
                    break round;
                }
            };
            eprintln!(
                "   {}, {}: {}",
                case.name,
                ["spliced", "relayed"][kind],
                round.show()
            );
            rounds.push(round);
        }
    }
    let rounds = Rounds {
        case: case.name,
        spliced,
        relayed,
        discarded,
    };
    judge(&rounds, &middle.tell_stuck())
}

/// Runs one round through one of the listeners.
fn one(case: &Case, net: &Nodes, middle: &Middle, kind: usize, requests: u32) -> Result<Round> {
    let exchanges = Exchanges::new(requests, LENGTH, LENGTH);
    let spec = TrafficSpec::same(case.connections, ConnectionSpec::exchanges(exchanges));
    let before = middle.counted()?;
    let outcome = Traffic::run(&net.client, middle.at[kind], &spec)?;
    all_ok(&outcome)?;
    let after = middle.counted()?;
    Round::of(&outcome, &before, &after)
}

impl Round {
    fn of(outcome: &Outcome, before: &Counters, after: &Counters) -> Result<Self> {
        let requests: u64 = outcome
            .connections
            .iter()
            .map(|one| one.client.received / LENGTH)
            .sum();
        let times = outcome.connections.iter().flat_map(|one| &one.client.exchanges);
        let times = Spread::of(times.map(|time| time.last_byte_ns as f64 / 1e3)).context("no exchanges")?;
        let each = |count: u64| count as f64 / requests.max(1) as f64;
        let segments = |name: &str| {
            let of = |counters: &Counters| counters.segments.get(name).copied().unwrap_or(0);
            each(of(after) - of(before))
        };
        // Requests pass the relay, whole: they are trapped.
        let relayed_replies =
            (after.relay_bytes_total - before.relay_bytes_total).saturating_sub(requests * LENGTH);
        Ok(Round {
            per_second: requests as f64 * 1e6 / outcome.duration_us.max(1) as f64,
            median_us: times.median,
            p99_us: times.p99,
            splices: each(after.spliced_total - before.spliced_total),
            returns: each(after.resumed_total - before.resumed_total),
            forwarded: segments("forwarded"),
            shared: segments("duplicated"),
            replies_spliced: (1.0 - each(relayed_replies) / LENGTH as f64).max(0.0),
        })
    }

    fn show(&self) -> String {
        format!(
            "{:.0} requests/s, median {:.0} µs, p99 {:.0} µs; for each request {:.2} splices, {:.2} returns, {:.2} \
             packets forwarded, {:.2} forwarded and copied; {:.0} % of the replies' bytes past the sockets",
            self.per_second,
            self.median_us,
            self.p99_us,
            self.splices,
            self.returns,
            self.forwarded,
            self.shared,
            self.replies_spliced * 100.0
        )
    }
}

fn judge(rounds: &Rounds, stuck: &str) -> Result<Results> {
    let of = |rounds: &[Round], of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of)).context("no rounds");
    let speed: fn(&Round) -> f64 = |round| round.per_second;
    let (spliced, relayed) = (of(&rounds.spliced, speed)?, of(&rounds.relayed, speed)?);
    let pairs = rounds.spliced.iter().zip(&rounds.relayed);
    let ratios = Spread::of(pairs.map(|(spliced, relayed)| spliced.per_second / relayed.per_second));
    let median = |which: fn(&Round) -> f64| Ok::<_, anyhow::Error>(of(&rounds.spliced, which)?.median);
    let detail = format!(
        "rounds {}; spliced {:.0} ({:.0}–{:.0}) requests/s, {:.0} µs each; relayed {:.0} ({:.0}–{:.0}), {:.0} µs; \
         for each request {:.2} splices and {:.2} returns; {:.0} % of the replies' bytes passed spliced; {} discarded \
         because the emulator was late{stuck}",
        ratios.context("no rounds")?.show(),
        spliced.median,
        spliced.p10,
        spliced.p90,
        median(|round| round.median_us)?,
        relayed.median,
        relayed.p10,
        relayed.p90,
        of(&rounds.relayed, |round| round.median_us)?.median,
        median(|round| round.splices)?,
        median(|round| round.returns)?,
        median(|round| round.replies_spliced)? * 100.0,
        rounds.discarded
    );
    let [ours, relay] = ["longsplice, spliced for each", "longsplice, relayed"];
    let figure = "requests per second";
    let splices = median(|round| round.splices)?;
    let series = [(ours, &rounds.spliced), (relay, &rounds.relayed)].map(|(name, rounds_of)| {
        let of = |figure, value: fn(&Round) -> f64| {
            let series = Series::new(name, figure, rounds_of.iter().map(value)).case(rounds.case);
            if name == ours {
                series.splices(splices)
            } else {
                series
            }
        };
        [
            of(figure, |round| round.per_second),
            of("median of an exchange, µs", |round| round.median_us),
            of("p99 of an exchange, µs", |round| round.p99_us),
            of("splices for each request", |round| round.splices),
            of("share of the replies' bytes past the sockets", |round| {
                round.replies_spliced
            }),
        ]
    });
    let target = Target::AtLeast { must: 0.9, aim: 1.0 };
    Ok(Results::of(series.into_iter().flatten()).find(Finding::new(
        Row::back(3),
        format!(
            "requests of 1 KB with replies of 1 KB for each second, spliced and back for each / relayed, {}",
            rounds.case
        ),
        Comparison::of(target, ours, figure)
            .to([relay])
            .worst([rounds.case]),
        detail,
    )))
}
