//! Row 15.4: connections that are released and taken over again in mid-transfer, 1 Gbit/s in all; every byte is compared.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use longsplice_engine::{FlowId, FlowState};
use longsplice_lab::traffic::Transfer;
use longsplice_lab::{ConnectionSpec, Line, LineOptions, Outcome, Traffic, TrafficServer, TrafficSpec};
use rustix::process::nice;

use super::super::Scope;
use crate::contender::{Contender, Rig};
use crate::daemon::Daemon;
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;

/// Rate of all connections together, in byte/s.
const RATE: u64 = 125_000_000;
/// Releases of each connection, and as many returns.
const CYCLES: usize = 10;
/// Threads that ask the daemon at the same time.
const ASKERS: usize = 8;
/// Longest time for one change of one connection: a leg that repairs losses refuses for a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two looks whether a change was made by the policy: the daemon lists all connections for one.
const LOOK: Duration = Duration::from_secs(1);

/// Niceness of the threads of both ends. They are some thousands, and on the middle's processors: as others' equals they would leave
/// it none.
const ENDS_NICENESS: i32 = 15;

/// Measures row 15.4.
pub(in crate::rows) fn run(scope: &Scope<'_>) -> Result<Results> {
    let (connections, seconds) = scope.count((1000, 400), (40, 10));
    let net = Line::new("bench", LineOptions::router())?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    // Its threads are as nice as the one that starts it.
    let server = thread::scope(|scope| {
        let start = || {
            nice(ENDS_NICENESS)?;
            Ok::<_, anyhow::Error>(TrafficServer::start(&net.server, rig.server())?)
        };
        scope.spawn(start).join()
    })
    .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    let standing = rig.start(Contender::TakenOver)?;
    let daemon = standing.daemon.as_ref().context("it is an accelerator")?;
    let rate = RATE / connections as u64;
    let bytes = rate * seconds;
    let transfer = Transfer {
        send_rate: Some(rate),
        ..Transfer::of(bytes)
    };
    let spec = ConnectionSpec::new(transfer, Transfer::of(0));
    let spec = TrafficSpec::same(connections, spec).parallel(connections);
    let is_over = AtomicBool::new(false);
    let (outcome, changed) = thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            nice(ENDS_NICENESS)?;
            let outcome = Traffic::run(&net.client, server.addr(), &spec);
            is_over.store(true, Ordering::Relaxed);
            Ok::<_, anyhow::Error>(outcome?)
        });
        let changed = change_all(daemon, connections, &is_over);
        (traffic.join(), changed)
    });
    let outcome = outcome.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    for (number, failure) in outcome.failures() {
        eprintln!("   connection {number} failed: {failure}");
    }
    judge(&outcome, changed?, connections, bytes)
}

/// Releases and takes over each connection [`CYCLES`] times. Returns the number of changes.
fn change_all(daemon: &Daemon, connections: usize, is_over: &AtomicBool) -> Result<usize> {
    let all_are = crate::wait::until("connections to be taken over", PATIENCE * 3, || {
        // A list of all of them would cost the daemon more.
        let accelerator = daemon.status()?.accelerator.context("it is an accelerator")?;
        Ok((accelerator.taken_over_total >= connections as u64).then_some(()))
    });
    all_are.with_context(|| format!("{:?}", daemon.status().map(|status| status.accelerator)))?;
    let flows: Vec<FlowId> = daemon.flows()?.iter().map(|flow| flow.id).collect();
    let (next, changes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let one = |_| {
            scope.spawn(|| -> Result<()> {
                loop {
                    let step = next.fetch_add(1, Ordering::Relaxed);
                    if step >= flows.len() * CYCLES {
                        return Ok(());
                    }
                    // Go round all connections: each has a while between two changes.
                    let id = flows[step % flows.len()];
                    for what in ["splice", "unsplice"] {
                        change(daemon, id, what, is_over)?;
                        changes.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        let askers: Vec<_> = (0..ASKERS).map(one).collect();
        let mut all = askers.into_iter().map(|asker| asker.join());
        all.try_for_each(|asked| asked.map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })
    .with_context(|| format!("after {} changes", changes.load(Ordering::Relaxed)))?;
    ensure!(
        !is_over.load(Ordering::Relaxed),
        "the transfers were over before all changes were made"
    );
    Ok(changes.into_inner())
}

/// Returns true if a connection is spliced, or is not, as a command would have it: the policy may have been the first.
fn is_so(daemon: &Daemon, id: FlowId, what: &str) -> Result<bool> {
    let state = daemon.flow(id)?.map(|flow| flow.state);
    Ok(match what {
        "splice" => matches!(
            state,
            Some(FlowState::Draining | FlowState::Dormant | FlowState::Detached)
        ),
        _ => state == Some(FlowState::Relay),
    })
}

/// Changes one connection, as soon as that is possible.
fn change(daemon: &Daemon, id: FlowId, what: &str, is_over: &AtomicBool) -> Result<()> {
    let start = Instant::now();
    let mut looked = start;
    loop {
        match daemon.order(id, what) {
            Ok(()) => return Ok(()),
            // The policy was the first.
            Err(error) if what == "splice" && format!("{error:#}").ends_with("is spliced already") => {
                return Ok(());
            }
            Err(error) if start.elapsed() > PATIENCE || is_over.load(Ordering::Relaxed) => {
                return Err(error).with_context(|| format!("{what} {id}"));
            }
            Err(_) if looked.elapsed() > LOOK => {
                if is_so(daemon, id, what)? {
                    return Ok(());
                }
                looked = Instant::now();
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn judge(outcome: &Outcome, changes: usize, connections: usize, bytes: u64) -> Result<Results> {
    let lost = outcome.connections.iter().map(|connection| {
        let received = connection.server.as_ref().map_or(0, |server| server.received);
        bytes.saturating_sub(received) as f64
    });
    let contender = Contender::TakenOver.title();
    let figure = "bytes that did not arrive, in all connections";
    let failed = outcome.failures().count();
    let mbits = outcome.bits_per_second() / 1e6;
    Ok(Results::of([
        Series::new(contender, figure, [lost.sum::<f64>()]).by(Statistic::Sum),
        Series::new(contender, "connections that failed", [failed as f64]).by(Statistic::Sum),
        Series::new(contender, "Mbit/s of all connections together", [mbits]),
    ])
    .find(Finding::new(
        Row::accelerator(4),
        format!("bytes lost by {connections} connections, released and taken over {CYCLES} times each in mid-transfer"),
        Comparison::of(Target::AtMost { must: 0.0, aim: 0.0 }, contender, figure),
        format!("{changes} changes, {mbits:.0} Mbit/s, {failed} connections failed"),
    )))
}
