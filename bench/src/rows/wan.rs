//! Rows 8 and 9: splices in mid-transfer over emulated links with real round-trip times, beside transfers of the same
//! run that are never spliced.

mod judge;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_lab::traffic::Transfer;
use longsplice_lab::{ConnectionSpec, Direction, Emulated, LinkSpec, Outcome, Queue, Traffic, TrafficSpec};

use super::middle::{Middle, all_ok};
use super::{Scope, discard};
use crate::cores;
use crate::daemon::Policy;
use crate::report::Results;

/// Rate of both links, in bit/s.
const RATE: u64 = 100_000_000;
/// Splice policy: it takes effect when both legs are out of slow start.
const SPLICE: &str = "after=16MiB";
/// Bytes to send, one way: some four seconds.
const BYTES: u64 = 44 << 20;
/// Number of bytes before which silences are those of a slow start.
const STARTED: u64 = 6 << 20;

/// Pair of links.
#[derive(Debug, Clone, Copy)]
struct Path {
    name: &'static str,
    client_rtt: Duration,
    server_rtt: Duration,
    /// Most that a receiver buffers. The queues of the links hold as much: the windows fill the links and never
    /// overflow a queue, so any loss is due to a burst.
    window: u64,
}

const PATHS: [Path; 2] = [
    Path {
        name: "20 + 80 ms",
        client_rtt: Duration::from_millis(20),
        server_rtt: Duration::from_millis(80),
        window: 4 << 20,
    },
    Path {
        name: "2 + 2 ms",
        client_rtt: Duration::from_millis(2),
        server_rtt: Duration::from_millis(2),
        window: 512 << 10,
    },
];

/// Treatment of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Spliced,
    Auto,
    Never,
}

const KINDS: [Kind; 3] = [Kind::Spliced, Kind::Auto, Kind::Never];

impl Kind {
    fn policy(self) -> Policy<'static> {
        let splice = match self {
            Kind::Spliced => SPLICE,
            Kind::Auto => "auto",
            Kind::Never => "never",
        };
        Policy::new(splice, "now")
    }
}

/// Direction of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Download,
    Upload,
}

/// One transfer.
#[derive(Debug, Clone)]
struct Run {
    path: &'static str,
    way: Way,
    kind: Kind,
    /// True if it was spliced.
    spliced: bool,
    /// Rate of the whole transfer, from the first byte to the last, at the receiver.
    mbps: f64,
    /// Longest silence at the receiver.
    longest_ms: f64,
    /// Longest silence at the receiver after the slow start.
    longest_mid_ms: f64,
    /// Number of segments that found a queue full.
    dropped: u64,
    /// Number of segments that client, server and forwarder retransmitted.
    retransmitted: u64,
}

/// All transfers.
#[derive(Debug)]
struct Runs {
    runs: Vec<Run>,
    /// Number of transfers during which the emulator was late.
    discarded: usize,
}

/// Measures rows 8 and 9.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let mut all = Runs {
        runs: Vec::new(),
        discarded: 0,
    };
    let rounds = scope.count(5, 1);
    for path in &PATHS {
        measure(scope, path, rounds, &mut all)?;
    }
    judge::findings(&all)
}

fn measure(scope: &Scope<'_>, path: &Path, rounds: usize, all: &mut Runs) -> Result<()> {
    let net = cores::emulated(path.link(path.client_rtt), path.link(path.server_rtt))?;
    for space in [&net.client, &net.forwarder, &net.server] {
        space.sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {}", path.window))?;
    }
    let middle = Middle::start(scope, &net, &KINDS.map(Kind::policy))?;
    for _ in 0..rounds {
        for way in [Way::Download, Way::Upload] {
            for (kind, &at) in KINDS.into_iter().zip(&middle.at) {
                let run = loop {
                    match transfer(&net, &middle, at, (path.name, way, kind))? {
                        Some(run) => break run,
                        None => discard(&net.verdict(), &mut all.discarded)?,
                    }
                };
                eprintln!(
                    "   {}, {way:?}, {kind:?}: {:.1} Mbit/s, longest pause {:.1} ms ({:.1} past the slow start), \
                     {} dropped, {} sent again{}",
                    path.name,
                    run.mbps,
                    run.longest_ms,
                    run.longest_mid_ms,
                    run.dropped,
                    run.retransmitted,
                    if run.spliced { ", spliced" } else { "" }
                );
                all.runs.push(run);
            }
        }
    }
    Ok(())
}

impl Path {
    fn link(&self, rtt: Duration) -> LinkSpec {
        LinkSpec::symmetric(Direction {
            delay: rtt / 2,
            rate: Some(RATE),
            queue: Queue::Bytes(self.window),
            ..Direction::default()
        })
    }
}

/// Makes one transfer; `None` when the emulator was late in it.
fn transfer(
    net: &Emulated,
    middle: &Middle,
    at: SocketAddr,
    (path, way, kind): (&'static str, Way, Kind),
) -> Result<Option<Run>> {
    let spliced = middle.daemon.status()?.counters.spliced_total;
    let before = net.forwarder.snmp()?.get("Tcp.RetransSegs");
    net.emulator().reset();
    let (up, down) = match way {
        Way::Upload => (BYTES, 0),
        Way::Download => (0, BYTES),
    };
    let spec = ConnectionSpec::new(Transfer::of(up), Transfer::of(down));
    let outcome = Traffic::run(&net.client, at, &TrafficSpec::same(1, spec))?;
    let report = net.report();
    all_ok(&outcome)?;
    if !net.verdict().counts() {
        return Ok(None);
    }
    let again = net.forwarder.snmp()?.get("Tcp.RetransSegs") - before;
    let (mbps, longest_ms, longest_mid_ms) = seen(&outcome, way)?;
    let spliced = middle.daemon.status()?.counters.spliced_total > spliced;
    Ok(Some(Run {
        path,
        way,
        kind,
        spliced,
        mbps,
        longest_ms,
        longest_mid_ms,
        dropped: report.dropped,
        retransmitted: outcome.total_retrans() + again.unsigned_abs(),
    }))
}

/// Returns the receiver's view: the rate, the longest silence, and the longest one after the slow start.
fn seen(outcome: &Outcome, way: Way) -> Result<(f64, f64, f64)> {
    let connection = outcome.connections.first().context("there was one connection")?;
    let receiver = match way {
        Way::Download => &connection.client,
        Way::Upload => connection.server.as_ref().context("the server knows of it")?,
    };
    let late = receiver.gaps.iter().filter(|gap| gap.offset >= STARTED);
    let mid = late.map(|gap| gap.length_ns).max().unwrap_or(0) as f64 / 1e6;
    let mbps = receiver.received as f64 * 8.0 / receiver.duration_us.max(1) as f64;
    Ok((mbps, receiver.longest_gap_us as f64 / 1e3, mid))
}
