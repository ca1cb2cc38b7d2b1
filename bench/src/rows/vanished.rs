//! Row 13.4: slots that the connections of vanished clients still take three minutes later.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use longsplice_engine::{FlowInfo, FlowState};
use longsplice_lab::{Line, LineOptions};

use super::Scope;
use crate::daemon::{Daemon, Instance, Policy};
use crate::holder::Held;
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;
use crate::wait;

/// Number of bytes of each server that its client acknowledges: the server's window has grown by then.
const BEFORE: usize = 1 << 20;
/// Number of bytes that each server sends once its client has vanished: less than an initial window.
const LAST: usize = 10_000;
/// Longest time until connections have come back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures row 13.4.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let clients = scope.count(200, 20);
    // Segments pass one by one: the last ones meet the trap, the others go past the sockets.
    let options = LineOptions {
        offloads: false,
        ..LineOptions::default()
    };
    let net = Line::new("bench", options)?;
    let instance = Instance::new(scope.room)?;
    let front = (net.forwarder_client_addr, 8080).into();
    let server = (net.server_addr, 8000).into();
    let amid_the_last = format!("bytes=server:{}", BEFORE + LAST / 2);
    let policy = Policy::new("now", "now").until(&amid_the_last);
    let daemon = Daemon::forward(&instance, &net.forwarder, front, server, policy)?;
    let mut held = Held::open(&net, server, front, clients)?;
    daemon.detached(clients)?;
    held.download(BEFORE)?;

    let address = net.forwarder_client_addr.to_string();
    let vanish = net
        .client
        .command("ip")
        .args(["route", "add", "blackhole", &address])
        .output()?;
    ensure!(vanish.status.success(), "the clients cannot vanish: {vanish:?}");
    let since = Instant::now();
    held.send(LAST)?;
    wait::until("connections to come back", PATIENCE, || {
        Ok((daemon.status()?.counters.resumed_total >= clients as u64).then_some(()))
    })?;
    let at_first = taken(&daemon.flows()?);
    let later = scope.count(Duration::from_secs(180), Duration::from_secs(2));
    thread::sleep(later.saturating_sub(since.elapsed()));
    let left = taken(&daemon.flows()?);
    eprintln!(
        "   {at_first} slots taken at first, {left} after {:.0?}",
        since.elapsed()
    );
    ensure!(
        at_first * 2 >= clients,
        "only {at_first} of {clients} connections took a slot"
    );
    judge(clients, at_first, left)
}

/// Returns how many of these connections take a slot.
fn taken(flows: &[FlowInfo]) -> usize {
    let without = [FlowState::Relay, FlowState::Detached, FlowState::Closing];
    flows.iter().filter(|flow| !without.contains(&flow.state)).count()
}

fn judge(clients: usize, at_first: usize, left: usize) -> Result<Results> {
    let [ours, slots] = ["longsplice, detached", "slots taken"];
    let of = |case, slots_taken: usize| {
        let series = Series::new(ours, slots, [slots_taken as f64]).case(case);
        series.by(Statistic::Sum).splices(clients as f64)
    };
    let target = Target::AtMost { must: 0.0, aim: 0.0 };
    let later = Comparison::of(target, ours, slots).worst(["three minutes later"]);
    Ok(
        Results::of([of("at first", at_first), of("three minutes later", left)]).find(Finding::new(
            Row::review(4),
            format!("slots still taken 3 minutes after {clients} clients vanished"),
            later,
            "",
        )),
    )
}
