//! Row 3.6: figure 10 of the paper rebuilt: the sequence numbers of a busy connection through a splice, and, in
//! addition to the figure, through the way back. Captured at the client and at the server, plotted as SVG beside the
//! results.

mod lines;
mod plot;
mod record;

use anyhow::{Context, Result};
use longsplice_lab::Emulated;

use self::lines::Order;
use self::record::Record;
use super::Scope;
use super::depth::Depth;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;

/// Time after a splice within which a silence is attributed to it, in seconds.
const AFTER: f64 = 0.3;
/// Position from which on the slow start is over, in bytes.
const STARTED: f64 = 6e6;

/// Summary of the trace of one depth.
#[derive(Debug)]
struct Trace {
    /// Retransmitted data segments, as seen to leave the server, and to reach the client.
    again: [usize; 2],
    /// Data segments that reached the client behind later ones: old bytes that a drain delivers while new segments
    /// pass.
    late: usize,
    /// Longest silences at the client, in milliseconds: from the coupling to a while after the splice, from the trap to
    /// the end, and elsewhere past the slow start.
    silence_ms: [f64; 3],
    /// Rates of data at the client in the quarter of a second before the splice, after it, before the trap, and after
    /// the return, in Mbit/s.
    mbps: [f64; 4],
    /// Number of packets that the capture missed.
    missed: u32,
}

/// Measures row 3.6, for both depths.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let net = record::net()?;
    let mut discarded = 0;
    let mut all = Results::default();
    for depth in Depth::BOTH {
        all = all.join(trace(scope, &net, depth, &mut discarded)?);
    }
    Ok(all)
}

fn trace(scope: &Scope<'_>, net: &Emulated, depth: Depth, discarded: &mut usize) -> Result<Results> {
    let record = loop {
        net.emulator().reset();
        let record = record::record(scope, net, depth)?;
        if scope.counts(&net.verdict(), discarded)? {
            break record;
        }
    };
    let file = scope.book.picture(&format!("trace-{}", depth.title()))?;
    let picture = plot::plot(&record, depth.title())?;
    std::fs::write(&file, picture).with_context(|| format!("write {}", file.display()))?;
    let trace = Trace::of(&record);
    let [left, reached] = trace.again;
    let detail = format!(
        "{left} segments left the server again, {reached} reached the client again, {} behind later ones; longest silence at the client {:.1} ms \
         around the splice, {:.1} ms from the trap on, {:.1} ms elsewhere; {:.0} Mbit/s before the splice, {:.0} after \
         it, {:.0} before the trap, {:.0} after the return; {} packets missed by the capture; \
         {} runs discarded because the emulator was late; look at {}",
        trace.late,
        trace.silence_ms[0],
        trace.silence_ms[1],
        trace.silence_ms[2],
        trace.mbps[0],
        trace.mbps[1],
        trace.mbps[2],
        trace.mbps[3],
        trace.missed,
        discarded,
        file.display()
    );
    eprintln!("   {}: {detail}", depth.title());
    let of = |figure, value: f64| {
        Series::new("longsplice, spliced", figure, [value])
            .case(depth.title())
            .splices(1.0)
    };
    let again = "segments sent again";
    let series = [
        of(again, (left + reached) as f64),
        of("segments behind later ones", trace.late as f64),
        of("longest silence around the splice, ms", trace.silence_ms[0]),
        of("longest silence from the trap on, ms", trace.silence_ms[1]),
        of("longest silence elsewhere, ms", trace.silence_ms[2]),
    ];
    let target = Target::AtMost { must: 0.0, aim: 0.0 };
    Ok(Results::of(series).find(Finding::new(
        Row::back(6),
        format!(
            "sequence trace through a splice and the way back, 2 + 2 ms, 100 Mbit/s, {}: segments sent again",
            depth.title()
        ),
        Comparison::of(target, "longsplice, spliced", again).worst([depth.title()]),
        detail,
    )))
}

impl Trace {
    fn of(record: &Record) -> Self {
        let (client, server) = (&record.client, &record.server);
        let marks = &record.marks;
        let splice = marks.coupling..marks.spliced + AFTER;
        let back = marks.trap..f64::INFINITY;
        let elsewhere = |t: f64| !splice.contains(&t) && !back.contains(&t);
        let quarter = |from: f64| client.mbps(from..from + 0.25);
        Trace {
            again: [server.count(Order::Again), client.count(Order::Again)],
            late: client.count(Order::Late),
            silence_ms: [
                client.silence_ms(|t, _| splice.contains(&t)),
                client.silence_ms(|t, _| back.contains(&t)),
                client.silence_ms(|t, at| elsewhere(t) && at > STARTED),
            ],
            mbps: [
                quarter(marks.coupling - 0.25),
                quarter(marks.spliced),
                quarter(marks.trap - 0.25),
                quarter(marks.returned),
            ],
            missed: record.missed,
        }
    }
}
