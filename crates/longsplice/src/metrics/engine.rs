//! Writes the counters of the engine and its kernel half.

use std::{collections::BTreeMap, fmt};

use longsplice_engine::{Splicer, TransitionTimes};

use super::out::{Out, alone};

pub(super) fn write(out: &mut Out<'_>, splicer: &Splicer) -> fmt::Result {
    let (c, h) = (splicer.counters(), splicer.health());
    out.gauge(
        "splice_available",
        "Whether connections can be spliced here",
        alone(f64::from(u8::from(h.splice_available))),
    )?;
    out.gauge(
        "flows",
        "Flows that the kernel half has: in transition, dormant, detached, lingering",
        alone(h.flows as f64),
    )?;
    out.gauge("flows_max", "The limit of these", alone(f64::from(h.max_flows)))?;
    out.counter(
        "splices",
        "Splices; a pair that came back and is spliced again counts again",
        alone(c.spliced_total),
    )?;
    out.counter(
        "detached",
        "Spliced pairs whose sockets were closed in silence",
        alone(c.detached_total),
    )?;
    out.counter(
        "resumed",
        "Spliced pairs whose sockets were taken back into the path",
        alone(c.resumed_total),
    )?;
    out.counter(
        "captured",
        "Unspliced pairs whose sockets took over what was outstanding",
        alone(c.captured_total),
    )?;
    out.counter(
        "flows_adopted",
        "Flows of predecessors, found at the start",
        alone(c.adopted_total),
    )?;
    out.counter(
        "relay_bytes",
        "Bytes that the relay has moved",
        alone(c.relay_bytes_total),
    )?;
    by(
        out,
        "unsplices",
        "Spliced pairs that came back to a handler",
        "cause",
        &c.unsplices_total,
    )?;
    by(
        out,
        "relayed",
        "Pairs that were never spliced",
        "reason",
        &c.relayed_reasons,
    )?;
    by(
        out,
        "flows_ended",
        "Spliced flows whose records were removed",
        "how",
        &c.flows_ended_total,
    )?;
    by(
        out,
        "segments",
        "Packets that the kernel half has seen, by its verdict",
        "verdict",
        &c.segments,
    )?;
    let times = [
        ("dormant", c.transition_to_dormant),
        ("detached", c.transition_to_detached),
        ("rebuilt", c.rebuild),
        ("taken_over", c.take_over),
    ];
    let of_one = |(to, times): (&'static str, TransitionTimes)| {
        let of_quantile = [("0.5", times.median_ns), ("0.99", times.p99_ns)];
        of_quantile.map(|(quantile, ns)| ([("to", to), ("quantile", quantile)], ns as f64 / 1e9))
    };
    let with_samples = times.into_iter().filter(|(_, times)| times.samples > 0);
    out.gauge(
        "splice_transition_seconds",
        "How long the last transitions took: to dormant, to detached, to rebuilt sockets, and to sockets that took a connection over",
        with_samples.flat_map(of_one),
    )
}

fn by(
    out: &mut Out<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    counted: &BTreeMap<String, u64>,
) -> fmt::Result {
    out.counter(
        name,
        help,
        counted.iter().map(|(value, n)| ([(label, value.as_str())], *n)),
    )
}
