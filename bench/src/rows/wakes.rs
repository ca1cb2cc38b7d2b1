//! Row 3.4: timeouts of woken sockets, and flows that get stuck, over emulated links with and without loss.
//!
//! Streams run both ways at the rate of the links, and come back from their splices again and again. The count is that
//! of expired retransmission timers of all the forwarder's sockets: in coupling, drain and relay as well as after a
//! wake, which makes it an upper bound. Relayed streams of the same run show the cost of the links themselves.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use longsplice_engine::FlowInfo;
use longsplice_lab::traffic::Failure;
use longsplice_lab::{ConnectionSpec, Direction, Emulated, LinkSpec, Queue, Traffic, TrafficSpec};

use super::Scope;
use super::depth::Depth;
use super::middle::Middle;
use crate::cores;
use crate::daemon::Policy;
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;

/// Rate of both links, in bit/s.
const RATE: u64 = 100_000_000;
/// Longest time for which a stream may stand still.
const STALL: Duration = Duration::from_secs(20);

/// Pair of links.
#[derive(Debug, Clone, Copy)]
struct Path {
    name: &'static str,
    client_rtt: Duration,
    server_rtt: Duration,
    /// Number of streams at a time. More of them wake more often on a long path.
    streams: usize,
    /// Most that a receiver buffers. The queues hold all streams' windows: every loss is the link's configured one.
    window: u64,
    /// Bytes sent by each end of each stream, and the condition of a return; the pair is spliced again at once. Without
    /// loss, and with.
    streams_are: [(u64, &'static str); 2],
}

const PATHS: [Path; 2] = [
    Path {
        name: "2 + 2 ms",
        client_rtt: Duration::from_millis(2),
        server_rtt: Duration::from_millis(2),
        streams: 2,
        window: 256 << 10,
        streams_are: [
            (40 << 20, "bytes=client:512KiB,bytes=server:512KiB"),
            (20 << 20, "bytes=client:256KiB,bytes=server:256KiB"),
        ],
    },
    Path {
        name: "20 + 80 ms",
        client_rtt: Duration::from_millis(20),
        server_rtt: Duration::from_millis(80),
        streams: 8,
        window: 1 << 20,
        streams_are: [
            (12 << 20, "bytes=client:768KiB,bytes=server:768KiB"),
            (4 << 20, "bytes=client:256KiB,bytes=server:256KiB"),
        ],
    },
];

/// Losses of the links, as a fraction.
const LOSSES: [(f64, &str); 2] = [(0.0, "no loss"), (0.005, "0.5 % loss")];

/// Treatment of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Woken(Depth),
    Relayed,
}

const KINDS: [Kind; 3] = [
    Kind::Woken(Depth::Dormant),
    Kind::Woken(Depth::Detached),
    Kind::Relayed,
];

/// Streams of one kind at the same time.
#[derive(Debug)]
struct Batch {
    kind: Kind,
    wakes: u64,
    /// Number of pairs that had reached the depth; other wakes are from drains.
    reached: u64,
    /// Number of timeouts of the forwarder's sockets.
    timeouts: i64,
    /// Number of timeouts of both ends' sockets.
    ends_timeouts: u64,
    /// Numbers of segments that the forwarder, and both ends, retransmitted.
    sent_again: [u64; 2],
    /// Numbers of packets that the links lost, and that found a queue full.
    lost: u64,
    dropped: u64,
    mbps: f64,
    streams: usize,
    /// Streams that failed, with the reasons.
    stuck: Vec<String>,
}

/// Measures row 3.4.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let mut all = Results::default();
    for path in &PATHS {
        for (loss, name) in LOSSES {
            let part = format!("wakes of busy streams, {}, {name}", path.name);
            all = all.join(scope.found(Row::back(4), &part, measure(scope, path, loss, name)));
        }
    }
    Ok(all)
}

fn measure(scope: &Scope<'_>, path: &Path, loss: f64, loss_name: &str) -> Result<Results> {
    let net = cores::emulated(path.link(path.client_rtt, loss), path.link(path.server_rtt, loss))?;
    for space in [&net.client, &net.forwarder, &net.server] {
        space.sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {}", path.window))?;
    }
    let policies = KINDS.map(|kind| match kind {
        Kind::Woken(depth) => Policy::new("now", depth.option()).until(path.streams_are(loss).1),
        Kind::Relayed => Policy::new("never", "now"),
    });
    let middle = Middle::start(scope, &net, &policies)?;
    let mut batches: Vec<Batch> = Vec::new();
    let mut discarded = 0;
    // This number is for each depth.
    let wanted: u64 = scope.count(500, 5);
    let started = Instant::now();
    loop {
        for (kind, &at) in KINDS.into_iter().zip(&middle.at) {
            if kind != Kind::Relayed && wakes(&batches, kind) >= wanted {
                continue;
            }
            let batch = loop {
                net.emulator().reset();
                let batch = streams(scope, &net, &middle, at, (path, loss, kind))?;
                // A stuck stream would be stuck on a punctual link as well.
                if !batch.stuck.is_empty() || scope.counts(&net.verdict(), &mut discarded)? {
                    break batch;
                }
            };
            eprintln!("   {}, {loss_name}, {}", path.name, batch.show());
            batches.push(batch);
        }
        if Depth::BOTH
            .into_iter()
            .all(|depth| wakes(&batches, Kind::Woken(depth)) >= wanted)
        {
            break;
        }
        ensure!(
            started.elapsed() < scope.count(Duration::from_secs(900), Duration::from_secs(120)),
            "only {:?} of {wanted} wakes each came about over {}",
            Depth::BOTH.map(|depth| wakes(&batches, Kind::Woken(depth))),
            path.name
        );
    }
    judge(path, loss, loss_name, &batches, discarded, &middle.stuck())
}

impl Path {
    /// Returns the bytes that each end sends, and the condition of a return.
    fn streams_are(&self, loss: f64) -> (u64, &'static str) {
        self.streams_are[usize::from(loss > 0.0)]
    }

    fn link(&self, rtt: Duration, loss: f64) -> LinkSpec {
        LinkSpec::symmetric(Direction {
            delay: rtt / 2,
            rate: Some(RATE),
            loss,
            queue: Queue::Bytes(self.window * self.streams as u64),
            ..Direction::default()
        })
    }
}

fn streams(
    scope: &Scope<'_>,
    net: &Emulated,
    middle: &Middle,
    at: std::net::SocketAddr,
    (path, loss, kind): (&Path, f64, Kind),
) -> Result<Batch> {
    let (bytes, _) = path.streams_are(loss);
    let mut spec = ConnectionSpec::both_ways(scope.count(bytes, bytes / 4));
    spec.stall = STALL;
    let spec = TrafficSpec::same(path.streams, spec);
    let counted = middle.counted()?;
    let before = net.forwarder.snmp()?;
    let outcome = Traffic::run(&net.client, at, &spec)?;
    let tally = net.forwarder.snmp()?.diff(&before).tally();
    let report = net.report();
    // The daemon's view helps to find the reason.
    let flows = middle.daemon.flows()?;
    let stuck = |(number, why): (usize, &Failure)| {
        let port = outcome.connections[number].client_port();
        let flow = flows.iter().find(|flow| Some(flow.client.peer.port()) == port);
        format!("stream {number} from port {port:?}: {why}; {flow:?}")
    };
    let after = middle.counted()?;
    Ok(Batch {
        kind,
        wakes: after.resumed_total - counted.resumed_total,
        reached: match kind {
            Kind::Woken(depth) => depth.reached(&after) - depth.reached(&counted),
            Kind::Relayed => 0,
        },
        timeouts: tally.timeouts,
        ends_timeouts: outcome.timeouts().unwrap_or(0),
        sent_again: [tally.sent_again.unsigned_abs(), outcome.total_retrans()],
        lost: report.lost,
        dropped: report.dropped,
        mbps: outcome.bits_per_second() / 2e6,
        streams: outcome.connections.len(),
        stuck: outcome.failures().map(stuck).collect(),
    })
}

impl Batch {
    fn show(&self) -> String {
        let kind = match self.kind {
            Kind::Woken(depth) => depth.title(),
            Kind::Relayed => "relayed",
        };
        format!(
            "{kind:<8} {:>3} wakes ({} of the depth), {} timeouts of the forwarder and {} of the ends, {} and {} segments sent again, {} lost, \
             {} dropped, {:.1} Mbit/s each way, {} of {} stuck",
            self.wakes,
            self.reached,
            self.timeouts,
            self.ends_timeouts,
            self.sent_again[0],
            self.sent_again[1],
            self.lost,
            self.dropped,
            self.mbps,
            self.stuck.len(),
            self.streams
        )
    }
}

fn of(batches: &[Batch], kind: Kind) -> impl Iterator<Item = &Batch> {
    batches.iter().filter(move |batch| batch.kind == kind)
}

fn wakes(batches: &[Batch], kind: Kind) -> u64 {
    of(batches, kind).map(|batch| batch.wakes).sum()
}

fn judge(
    path: &Path,
    loss: f64,
    loss_name: &str,
    batches: &[Batch],
    discarded: usize,
    left: &[FlowInfo],
) -> Result<Results> {
    let timeouts = |kind| of(batches, kind).map(|batch| batch.timeouts).sum::<i64>();
    let for_each = |depth| {
        let kind = Kind::Woken(depth);
        timeouts(kind) as f64 / wakes(batches, kind).max(1) as f64
    };
    let mut detail: Vec<String> = Depth::BOTH
        .into_iter()
        .map(|depth| {
            let kind = Kind::Woken(depth);
            format!(
                "{}: {} timeouts of the forwarder's sockets in {} wakes ({:.3}), {} of the depth and the others from drains",
                depth.title(),
                timeouts(kind),
                wakes(batches, kind),
                for_each(depth),
                of(batches, kind).map(|batch| batch.reached).sum::<u64>()
            )
        })
        .collect();
    let of_ends = |kind| of(batches, kind).map(|batch| batch.ends_timeouts).sum::<u64>();
    let count = |kind| of(batches, kind).map(|batch| batch.streams).sum::<usize>();
    detail.push(format!(
        "of both ends: {} and {}; {} relayed streams beside them: {} and {} of both ends; {discarded} batches discarded \
         because the emulator was late",
        of_ends(Kind::Woken(Depth::Dormant)),
        of_ends(Kind::Woken(Depth::Detached)),
        count(Kind::Relayed),
        timeouts(Kind::Relayed),
        of_ends(Kind::Relayed)
    ));
    let stuck = batches.iter().flat_map(|batch| batch.stuck.iter().cloned());
    let left = left
        .iter()
        .map(|flow| format!("in the daemon, its ends gone: {flow:?}"));
    let stuck: Vec<String> = stuck.chain(left).collect();
    let streams: usize = batches.iter().map(|batch| batch.streams).sum();
    let (must, aim) = if loss > 0.0 { (0.1, 0.02) } else { (0.02, 0.0) };
    let case = |depth: Depth| format!("{}, {loss_name}, {}", path.name, depth.title());
    let [timeouts, flows] = ["timeouts for each wake, shares of batches", "flows stuck"];
    let woken = Depth::BOTH.map(|depth| {
        let kind = Kind::Woken(depth);
        let wakes = wakes(batches, kind).max(1) as f64;
        let shares = of(batches, kind).map(|batch| batch.timeouts as f64 / wakes);
        let reached = of(batches, kind).map(|batch| batch.reached).sum::<u64>();
        Series::new("longsplice, woken", timeouts, shares)
            .case(case(depth))
            .by(Statistic::Sum)
            .splices(reached as f64)
    });
    let path_case = format!("{}, {loss_name}", path.name);
    let all_stuck = Series::new("longsplice, woken and relayed", flows, [stuck.len() as f64])
        .case(path_case.clone())
        .by(Statistic::Sum);
    Ok(Results::of(woken.into_iter().chain([all_stuck]))
        .find(Finding::new(
            Row::back(4),
            format!(
                "{}, {loss_name}: timeouts for each wake, the worse depth",
                path.name
            ),
            Comparison::of(Target::AtMost { must, aim }, "longsplice, woken", timeouts)
                .worst(Depth::BOTH.map(case)),
            detail.join("; "),
        ))
        .find(Finding::new(
            Row::back(4),
            format!("{}, {loss_name}: flows stuck", path.name),
            Comparison::of(
                Target::AtMost { must: 0.0, aim: 0.0 },
                "longsplice, woken and relayed",
                flows,
            )
            .worst([path_case]),
            match stuck.first() {
                Some(first) => format!("of {streams}; the first: {first}"),
                None => format!("of {streams}, relayed ones included"),
            },
        )))
}
