//! Row 16.9: the policy `auto` beside `never`, for plain TCP over two paths, with and without losses, in shapes of traffic of
//! which a splice makes some slower.

use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_lab::traffic::{Exchanges, Pause, Transfer};
use longsplice_lab::{ConnectionSpec, Direction, LinkSpec, Queue, Traffic, TrafficSpec};

use super::middle::{Middle, all_ok};
use super::{Scope, discard};
use crate::cores;
use crate::daemon::Policy;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;

/// Rate of both links, in bit/s.
const RATE: u64 = 100_000_000;
/// Most that a receiver buffers and a queue of a link holds, in bytes: no segment is lost but by the link.
const WINDOW: u64 = 4 << 20;
/// Bytes of a bulk transfer and of a burst over a path without losses, and with them.
const BULK: [u64; 2] = [40 << 20, 8 << 20];
/// Idle time before a burst: longer than the lull behind which the advisor takes a stream for another one.
const IDLE: Duration = Duration::from_secs(4);
/// Bytes before the idle time.
const GREETING: u64 = 10_000;
/// Requests, and bytes of each request and reply.
const REQUESTS: u32 = 60;
const MESSAGE: u64 = 1_000;

/// Figure of each case.
const GOODPUT: &str = "goodput of a connection, Mbit/s";

const AUTO: &str = "longsplice, auto";
const NEVER: &str = "longsplice, never";

/// Shape of a connection's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Download,
    Upload,
    Exchanges,
    Burst,
}

const SHAPES: [Shape; 4] = [Shape::Download, Shape::Upload, Shape::Exchanges, Shape::Burst];

/// Pair of links: their round-trip times in milliseconds, and their rate of losses.
#[derive(Debug, Clone, Copy)]
struct Path {
    client: u64,
    server: u64,
    loss: f64,
}

const PATHS: [Path; 4] = [
    path(2, 2, 0.0),
    path(2, 2, 0.005),
    path(20, 80, 0.0),
    path(20, 80, 0.005),
];

const fn path(client: u64, server: u64, loss: f64) -> Path {
    Path { client, server, loss }
}

/// One connection.
#[derive(Debug)]
struct Run {
    case: String,
    auto: bool,
    mbps: f64,
    spliced: bool,
}

/// Measures row 16.9. Each connection has links of its own. Those of a round lose the same packets under both policies.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let (mut all, mut discarded) = (Vec::new(), 0);
    for path in PATHS {
        for round in 1..=scope.count(5, 1) as u64 {
            for shape in SHAPES {
                for auto in [true, false] {
                    let run = loop {
                        if let Some(run) = connection(scope, path, shape, auto, round, &mut discarded)? {
                            break run;
                        }
                    };
                    let policy = if auto { "auto" } else { "never" };
                    let spliced = if run.spliced { ", spliced" } else { "" };
                    eprintln!("   {}, {policy}: {:.2} Mbit/s{spliced}", run.case, run.mbps);
                    all.push(run);
                }
            }
        }
    }
    Ok(judge(&all, discarded))
}

/// Makes one connection over links of a seed; `None` if the emulator was late.
fn connection(
    scope: &Scope<'_>,
    path: Path,
    shape: Shape,
    auto: bool,
    seed: u64,
    discarded: &mut usize,
) -> Result<Option<Run>> {
    let [client_link, server_link] = path.links(seed);
    let net = cores::emulated(client_link, server_link)?;
    for space in [&net.client, &net.forwarder, &net.server] {
        space.sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {WINDOW}"))?;
    }
    let policy = Policy::new(if auto { "auto" } else { "never" }, "now");
    let middle = Middle::start(scope, &net, &[policy])?;
    let outcome = Traffic::run(&net.client, middle.at[0], &TrafficSpec::same(1, shape.spec(path)))?;
    all_ok(&outcome)?;
    let verdict = net.verdict();
    if !verdict.counts() {
        discard(&verdict, discarded)?;
        return Ok(None);
    }
    let connection = outcome.connections.first().context("there was one connection")?;
    let receiver = match shape {
        Shape::Upload => connection.server.as_ref().context("the server knows of it")?,
        Shape::Download | Shape::Exchanges | Shape::Burst => &connection.client,
    };
    let idle = match shape {
        Shape::Burst => IDLE.as_micros() as u64,
        Shape::Download | Shape::Upload | Shape::Exchanges => 0,
    };
    let micros = receiver.duration_us.saturating_sub(idle).max(1);
    Ok(Some(Run {
        case: case(path, shape),
        auto,
        mbps: receiver.received as f64 * 8.0 / micros as f64,
        spliced: middle.daemon.status()?.counters.spliced_total > 0,
    }))
}

impl Path {
    /// Returns the client's link and the server's. They lose different packets.
    fn links(self, seed: u64) -> [LinkSpec; 2] {
        [(self.client, 2 * seed), (self.server, 2 * seed + 1)].map(|(rtt, seed)| {
            LinkSpec::symmetric(Direction {
                delay: Duration::from_millis(rtt) / 2,
                rate: Some(RATE),
                queue: Queue::Bytes(WINDOW),
                loss: self.loss,
                seed,
                ..Direction::default()
            })
        })
    }

    fn title(self) -> String {
        format!(
            "{} + {} ms, {} % loss",
            self.client,
            self.server,
            self.loss * 100.0
        )
    }
}

impl Shape {
    fn spec(self, path: Path) -> ConnectionSpec {
        let bulk = Transfer::of(BULK[usize::from(path.loss > 0.0)]);
        let nothing = Transfer::of(0);
        match self {
            Shape::Download => ConnectionSpec::new(nothing, bulk),
            Shape::Upload => ConnectionSpec::new(bulk, nothing),
            Shape::Exchanges => ConnectionSpec::exchanges(Exchanges::new(REQUESTS, MESSAGE, MESSAGE)),
            Shape::Burst => {
                let pause = Some(Pause {
                    after_bytes: GREETING,
                    length: IDLE,
                });
                ConnectionSpec::new(nothing, Transfer { pause, ..bulk })
            }
        }
    }

    fn title(self) -> &'static str {
        match self {
            Shape::Download => "download",
            Shape::Upload => "upload",
            Shape::Exchanges => "requests and replies",
            Shape::Burst => "idle, then a burst",
        }
    }
}

fn case(path: Path, shape: Shape) -> String {
    format!("{}, {}", path.title(), shape.title())
}

fn judge(all: &[Run], discarded: usize) -> Results {
    let mut results = Results::default();
    for path in PATHS {
        let cases = SHAPES.map(|shape| case(path, shape));
        for case in &cases {
            for (auto, title) in [(true, AUTO), (false, NEVER)] {
                let runs = || all.iter().filter(|run| run.case == *case && run.auto == auto);
                let series = Series::new(title, GOODPUT, runs().map(|run| run.mbps)).case(case.as_str());
                let splices = runs().filter(|run| run.spliced).count() as f64 / runs().count().max(1) as f64;
                results = results.join(Results::of([if auto { series.chose(splices) } else { series }]));
            }
        }
        let spliced = all
            .iter()
            .filter(|run| run.auto && run.spliced && cases.contains(&run.case));
        results = results.find(Finding::new(
            Row::reach(9),
            format!(
                "{}: goodput of TCP with `auto` / never splicing, the worst shape",
                path.title()
            ),
            Comparison::of(Target::AtLeast { must: 0.97, aim: 1.0 }, AUTO, GOODPUT)
                .to([NEVER])
                .worst(cases.iter().map(String::as_str)),
            format!(
                "auto spliced {}; {discarded} connections discarded because the emulator was late",
                spliced.count()
            ),
        ));
    }
    results
}
