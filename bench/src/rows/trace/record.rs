//! Records one download, spliced on its way and brought back by a trap, with a capture at either end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use longsplice_engine::{Ended, FlowState, Pair, Side, Splicer, Trap, Until, policy::SplicePolicy};
use longsplice_lab::topology::{C0, S0};
use longsplice_lab::traffic::{Close, Transfer};
use longsplice_lab::{
    ConnectionSpec, Direction, Emulated, LinkSpec, Queue, Traffic, TrafficServer, TrafficSpec, monotonic_ns,
};
use tokio::net::TcpListener;

use super::lines::Lines;
use super::{Depth, Scope};
use crate::capture::{Capture, Seen};
use crate::cores;
use crate::inside::{PATIENCE, in_time, inside};
use crate::rows::middle::all_ok;

/// Rate of both links, in bit/s.
const RATE: u64 = 100_000_000;
const RTT: Duration = Duration::from_millis(2);
/// Most that a receiver buffers, and a queue holds: any loss is due to a burst.
const WINDOW: u64 = 512 << 10;
/// Bytes to send; bytes after which the splice comes, and position of the trap.
const BYTES: u64 = 40 << 20;
const SPLICE_AFTER: u64 = 12 << 20;
const TRAP_AT: u64 = 26 << 20;
/// Interval at which the flow is polled; captures are taken at a multiple of it.
const LOOK: Duration = Duration::from_millis(1);

/// Times of events, in seconds since the start of the record.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    /// Begin of the coupling of the windows.
    pub(super) coupling: f64,
    /// Begin of the drain.
    pub(super) drain: f64,
    /// Time at which the pair was spliced.
    pub(super) spliced: f64,
    /// Time at which the first byte beyond the trap left the server.
    pub(super) trap: f64,
    /// Time at which the handler had the pair again.
    pub(super) returned: f64,
}

/// Captured lines and marks.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) client: Lines,
    pub(super) server: Lines,
    pub(super) marks: Marks,
    /// Number of packets that the capture missed.
    pub(super) missed: u32,
}

/// Times that are not in the capture, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
struct Times {
    coupling: u64,
    drain: u64,
    spliced: u64,
    returned: u64,
}

/// Makes the network.
pub(super) fn net() -> Result<Emulated> {
    let link = LinkSpec::symmetric(Direction {
        delay: RTT / 2,
        rate: Some(RATE),
        queue: Queue::Bytes(WINDOW),
        ..Direction::default()
    });
    let net = cores::emulated(link.clone(), link)?;
    for space in [&net.client, &net.forwarder, &net.server] {
        space.sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {WINDOW}"))?;
    }
    Ok(net)
}

/// Makes a record.
pub(super) fn record(scope: &Scope<'_>, net: &Emulated, depth: Depth) -> Result<Record> {
    let front = SocketAddr::from((net.forwarder_client_addr, 5200));
    let target = SocketAddr::from((net.server_addr, 7000));
    let server = TrafficServer::start(&net.server, target)?;
    let mut captures = [Capture::open(&net.client, C0)?, Capture::open(&net.server, S0)?];
    let start_ns = monotonic_ns();
    let done = AtomicBool::new(false);
    let (ready, listens) = mpsc::channel();
    let (times, seen) = thread::scope(|threads| {
        let taking = threads.spawn(|| take(&mut captures, &done));
        let client = threads.spawn(move || {
            // The sender is dropped if the middle does not start; its error gives the reason.
            let Ok(()) = listens.recv() else { return Ok(()) };
            download(net, front)
        });
        let times = inside(scope.room, &net.forwarder, async move |splicer| {
            forward(splicer, front, target, depth, ready).await
        });
        let client = client.join();
        done.store(true, Ordering::Relaxed);
        let seen = taking.join();
        let times = times?;
        client.map_err(|_| anyhow!("the client's thread panicked"))??;
        Ok::<_, anyhow::Error>((
            times,
            seen.map_err(|_| anyhow!("the capture's thread panicked"))??,
        ))
    })?;
    drop(server);
    let [client, server] = seen;
    let client = Lines::of(&client, front, start_ns)?;
    let server = Lines::of(&server, target, start_ns)?;
    let since = |ns: u64| (ns as f64 - start_ns as f64) / 1e9;
    let marks = Marks {
        coupling: since(times.coupling),
        drain: since(times.drain),
        spliced: since(times.spliced),
        trap: server.passed(TRAP_AT as f64).context("nothing passed the trap")?,
        returned: since(times.returned),
    };
    let missed = captures.iter().map(Capture::dropped).sum();
    Ok(Record {
        client,
        server,
        marks,
        missed,
    })
}

/// Takes captured segments until `done`.
fn take(captures: &mut [Capture; 2], done: &AtomicBool) -> Result<[Vec<Seen>; 2]> {
    let mut all = [Vec::new(), Vec::new()];
    loop {
        let last = done.load(Ordering::Relaxed);
        for (capture, all) in captures.iter_mut().zip(&mut all) {
            all.extend(capture.take()?);
        }
        if last {
            return Ok(all);
        }
        thread::sleep(LOOK * 5);
    }
}

fn download(net: &Emulated, front: SocketAddr) -> Result<()> {
    let mut spec = ConnectionSpec::new(Transfer::of(0), Transfer::of(BYTES));
    // Otherwise the client, which has no bytes to send, would close its direction before the download begins.
    spec.close = Close::ServerFirst;
    all_ok(&Traffic::run(&net.client, front, &TrafficSpec::same(1, spec))?)
}

/// Runs the middle: relays, splices, gets the pair back, and relays to the end.
async fn forward(
    splicer: Splicer,
    front: SocketAddr,
    target: SocketAddr,
    depth: Depth,
    ready: mpsc::Sender<()>,
) -> Result<Times> {
    let listener = TcpListener::bind(front).await?;
    splicer.prepare_listener(&listener, target)?;
    ready.send(()).context("the client has given up")?;
    let (stream, _) = in_time("the client", listener.accept()).await??;
    splicer.prepare_client(&stream)?;
    let server = splicer.connect(target, &stream, PATIENCE).await?;
    let pair = Pair::new(stream, server)
        .with_splice(SplicePolicy::AfterBytes(SPLICE_AFTER))
        .with_detach(depth.policy());
    let carried = tokio::spawn(carry(splicer.clone(), pair));
    let mut times = Times::default();
    while !carried.is_finished() {
        let state = splicer.flows().next().map(|flow| flow.state);
        let mark = match state {
            Some(FlowState::Coupling) => &mut times.coupling,
            Some(FlowState::Draining) => &mut times.drain,
            Some(state) if state == depth.state() => &mut times.spliced,
            _ => &mut times.returned,
        };
        // Keep the first time of each; states without a mark write `returned`, which is overwritten below.
        if *mark == 0 {
            *mark = monotonic_ns();
        }
        tokio::time::sleep(LOOK).await;
    }
    times.returned = carried.await??;
    ensure!(times.spliced > 0, "the connection was not spliced");
    // That state was shorter than a polling interval.
    for earlier in [&mut times.drain, &mut times.coupling] {
        if *earlier == 0 {
            *earlier = times.spliced;
        }
    }
    times.coupling = times.coupling.min(times.drain);
    Ok(times)
}

/// Carries the pair to its end; returns the time at which it came back.
async fn carry(splicer: Splicer, pair: Pair) -> Result<u64> {
    let first = in_time(
        "the trap",
        splicer.splice(pair, Until::bytes_from(Side::Server, TRAP_AT)),
    );
    let Ended::Returned(returned) = first.await?? else {
        bail!("the connection ended before its trap");
    };
    let now = monotonic_ns();
    ensure!(
        returned.spliced && returned.why == Trap::Server,
        "it came back by {:?}, spliced: {}",
        returned.why,
        returned.spliced
    );
    ensure!(
        returned.passed[Side::Server] == TRAP_AT,
        "{:?} bytes had passed at the return, and not {TRAP_AT}",
        returned.passed
    );
    let pair = Pair::from(returned).with_splice(SplicePolicy::Never);
    match in_time("the end", splicer.splice(pair, Until::closed())).await?? {
        Ended::Closed(_) => Ok(now),
        other => bail!("it ended otherwise: {other:?}"),
    }
}
