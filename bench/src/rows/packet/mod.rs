//! Rows 4.1 to 4.3 and 4.7: cost of a packet in the program alone (BPF test run), and memory of a flow, with one flow
//! and with a million in the table.

mod ring;
mod support;

use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use longsplice_dataplane::Hook;

use self::ring::Ring;
use super::Scope;
use crate::memory::{self, Usage};
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Contender.
const OURS: &str = "longsplice";

/// One round: nanoseconds, and bytes.
#[derive(Debug)]
struct Round {
    /// Results of the small table and of the large one.
    sizes: [Table; 2],
    /// Bytes that each further flow of the large one takes.
    bytes_per_flow: f64,
    /// Bytes per further flow, by the kernel's available memory.
    unavailable_per_flow: f64,
}

/// Results of one table.
#[derive(Debug)]
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
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
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
    Ok(judge(flows, &all))
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

/// Figures; a case of each is a number of flows.
const TC: &str = "a segment in the tc program, ns";
const XDP: &str = "a segment in the XDP program, ns";
const OTHERS: &str = "a segment that is not ours, ns";
const BYTES: &str = "memory of a flow, bytes";

fn judge(flows: u32, all: &[Round]) -> Results {
    let cases = ["1 flow".to_owned(), format!("{flows} flows")];
    let series = |figure, case: &String, of: &dyn Fn(&Round) -> f64| {
        Series::new(OURS, figure, all.iter().map(of)).case(case)
    };
    let mut results = Results::default();
    for (at, case) in cases.iter().enumerate() {
        results = results.join(Results::of([
            series(TC, case, &|round| round.sizes[at].translated[0]),
            series(XDP, case, &|round| round.sizes[at].in_xdp[0]),
            series(OTHERS, case, &|round| round.sizes[at].passed[0]),
        ]));
    }
    let [one, many] = &cases;
    let results = results.join(Results::of([
        series(BYTES, many, &|round| round.bytes_per_flow),
        series("memory of a flow by MemAvailable, bytes", many, &|round| {
            round.unavailable_per_flow
        }),
    ]));
    let way = "a test run repeats 220 times; without sending, and with what the run of an empty program takes \
               (per_packet tells)";
    let alone = format!("{way}; two flows that turn each other's segments back");
    let among = format!("{way}; each run meets another flow, elsewhere in memory");
    let the_same = format!("the same, {flows} flows in the table");
    let memory = format!("memory of each of {flows} IPv4 flows in the tables, bytes");
    let maps = "its maps (fdinfo), less what a table of one flow takes, all of it from the start";
    let found = [
        (
            1,
            "a segment with timestamps in the tc program, 1 flow, ns",
            TC,
            one,
            (200.0, 90.0),
            &*alone,
        ),
        (1, &the_same, TC, many, (500.0, 200.0), &among),
        (
            2,
            "a segment with timestamps in the XDP program, 1 flow, ns",
            XDP,
            one,
            (120.0, 50.0),
            &alone,
        ),
        (2, &the_same, XDP, many, (400.0, 150.0), &among),
        (
            3,
            "a segment that is not ours, ns",
            OTHERS,
            many,
            (40.0, 20.0),
            way,
        ),
        (7, &memory, BYTES, many, (400.0, 250.0), maps),
    ];
    type Found<'a> = (u8, &'a str, &'a str, &'a String, (f64, f64), &'a str);
    let finding = |(row, measure, figure, case, (must, aim), detail): Found<'_>| {
        let comparison = Comparison::of(Target::AtMost { must, aim }, OURS, figure).worst([case.as_str()]);
        Finding::new(Row::translation(row), measure, comparison, detail)
    };
    found.map(finding).into_iter().fold(results, Results::find)
}
