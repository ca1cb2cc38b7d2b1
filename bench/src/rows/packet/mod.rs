//! Rows 4.1 to 4.3 and 4.7: cost of a packet in the program alone (BPF test run), and memory of a flow, with one flow
//! and with a million in the table.

mod ring;
mod support;

use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use longsplice_dataplane::Hook;
use serde::Serialize;

use self::ring::Ring;
use super::Scope;
use crate::memory::{self, Usage};
use crate::report::{Finding, Target};
use crate::row::Row;
use crate::stats::Spread;

/// One round: nanoseconds, and bytes.
#[derive(Debug, Serialize)]
struct Round {
    /// Results of the small table and of the large one.
    sizes: [Table; 2],
    /// Bytes that each further flow of the large one takes.
    bytes_per_flow: f64,
    /// Bytes per further flow, by the kernel's available memory.
    unavailable_per_flow: f64,
}

/// Results of one table.
#[derive(Debug, Serialize)]
struct Table {
    flows: u32,
    /// Nanoseconds of one translation at tc: the median of many walks, and the 10th and 90th percentile.
    translated: [f64; 3],
    /// Nanoseconds of one translation in XDP.
    in_xdp: [f64; 3],
    /// Nanoseconds for a segment of no flow.
    passed: [f64; 3],
}

/// Measures rows 4.1 to 4.3 and 4.7.
pub(super) fn run(scope: &Scope<'_>) -> Result<Vec<Finding>> {
    let (flows, rounds) = scope.count((1_000_000, 5), (20_000, 1));
    let mut all = Vec::new();
    for number in 1..=rounds {
        // Each round has a thread of its own, which enters its network.
        let round = thread::scope(|threads| threads.spawn(|| round(scope, flows)).join());
        let round = round.map_err(|panic| anyhow!("round {number} panicked: {}", said(&*panic)))??;
        let [one, many] = &round.sizes;
        eprintln!(
            "   {} and {} flows: {:.0} and {:.0} ns at tc, {:.0} and {:.0} in XDP, {:.0} and {:.0} not ours; {:.0} bytes a flow",
            one.flows,
            many.flows,
            one.translated[0],
            many.translated[0],
            one.in_xdp[0],
            many.in_xdp[0],
            one.passed[0],
            many.passed[0],
            round.bytes_per_flow
        );
        all.push(round);
    }
    judge(flows, &all)
}

/// Returns the message of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("nothing")
}

fn round(scope: &Scope<'_>, flows: u32) -> Result<Round> {
    let net = ring::network();
    // A shortened run counts other work of the machine, too.
    let usage: fn(_) -> _ = if scope.quick { Usage::now } else { Usage::settled };
    let look = || anyhow::Ok((usage(None)?, memory::maps()?));
    let nothing = look()?;
    // A packet needs another flow to go on to: the smallest ring is two flows, each of which gets the other's.
    let small = Ring::new(&net, &scope.room.instance(), 2, "a1")?;
    let one = look()?;
    let large = Ring::new(&net, &scope.room.instance(), flows, "b1")?;
    let many = look()?;
    // Return the memory of the tables, and the decrease of the available memory.
    let taken = |before: &(Usage, u64), after: &(Usage, u64)| {
        let unavailable = after.0.since(&before.0).unavailable;
        [after.1 as f64 - before.1 as f64, unavailable]
    };
    let (fixed, taken) = (taken(&nothing, &one), taken(&one, &many));
    ensure!(
        taken[0] > 0.0,
        "/proc/self/fdinfo does not tell the memory of BPF maps (Linux 6.4): the table cannot be measured"
    );
    let each = |i: usize| (taken[i] - fixed[i]) / f64::from(flows - 2);
    let walks = scope.count(2000, 100);
    let table = |ring: &Ring, flows| -> Result<Table> {
        let spread = |times| {
            let spread = Spread::of(times).context("nothing was run")?;
            anyhow::Ok([spread.median, spread.p10, spread.p90])
        };
        Ok(Table {
            flows,
            translated: spread(ring.translate(Hook::Ingress, walks)?)?,
            in_xdp: spread(ring.translate(Hook::Xdp, walks)?)?,
            passed: spread(ring.pass(walks)?)?,
        })
    };
    Ok(Round {
        sizes: [table(&small, 2)?, table(&large, flows)?],
        bytes_per_flow: each(0),
        unavailable_per_flow: each(1),
    })
}

fn judge(flows: u32, all: &[Round]) -> Result<Vec<Finding>> {
    let spread = |of: &dyn Fn(&Round) -> f64| Spread::of(all.iter().map(of)).context("nothing was measured");
    let [one, many] = [0, 1].map(|table| spread(&|round: &Round| round.sizes[table].translated[0]));
    let [one_xdp, many_xdp] = [0, 1].map(|table| spread(&|round: &Round| round.sizes[table].in_xdp[0]));
    let [alone, among] = [0, 1].map(|table| spread(&|round: &Round| round.sizes[table].passed[0]));
    let (one, many, alone, among) = (one?, many?, alone?, among?);
    let (one_xdp, many_xdp) = (one_xdp?, many_xdp?);
    let bytes = spread(&|round| round.bytes_per_flow)?;
    let unavailable = spread(&|round| round.unavailable_per_flow)?;
    let least = |must, aim| Target::AtMost { must, aim };
    let way = "medians of rounds, in ns; a test run repeats 250 times; without sending, and with what the \
               run of an empty program takes (per_packet tells)";
    Ok(vec![
        Finding::new(
            Row::translation(1),
            "a segment with timestamps in the tc program, 1 flow, ns",
            least(200.0, 90.0),
            one.median,
            format!(
                "{}: {way}; two flows that turn each other's segments back",
                one.show()
            ),
            &all,
        )?,
        Finding::new(
            Row::translation(1),
            format!("the same, {flows} flows in the table"),
            least(500.0, 200.0),
            many.median,
            format!(
                "{}: {way}; each run meets another flow, elsewhere in memory",
                many.show()
            ),
            &(),
        )?,
        Finding::new(
            Row::translation(2),
            "a segment with timestamps in the XDP program, 1 flow, ns",
            least(120.0, 50.0),
            one_xdp.median,
            format!(
                "{}: {way}; two flows that turn each other's segments back",
                one_xdp.show()
            ),
            &(),
        )?,
        Finding::new(
            Row::translation(2),
            format!("the same, {flows} flows in the table"),
            least(400.0, 150.0),
            many_xdp.median,
            format!(
                "{}: {way}; each run meets another flow, elsewhere in memory",
                many_xdp.show()
            ),
            &(),
        )?,
        Finding::new(
            Row::translation(3),
            "a segment that is not ours, ns",
            least(40.0, 20.0),
            among.median,
            format!(
                "{} beside {flows} flows, {} beside 1; {way}",
                among.show(),
                alone.show()
            ),
            &(),
        )?,
        Finding::new(
            Row::translation(7),
            format!("memory of each of {flows} IPv4 flows in the tables, bytes"),
            least(400.0, 250.0),
            bytes.median,
            format!(
                "{}: its maps (fdinfo), less what a table of one flow takes, all of it from the start; {} by MemAvailable",
                bytes.show(),
                unavailable.show()
            ),
            &(),
        )?,
    ])
}
