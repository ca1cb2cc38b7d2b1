//! Row 5.6: memory of idle WebSockets, spliced after their 101, beside HAProxy's.

use anyhow::Result;
use longsplice_dataplane::FLOW_BYTES;
use longsplice_lab::{Line, LineOptions};

use super::Scope;
use super::memory::{BYTES, Sample, growth, in_turn, kernel, per_connection, series};
use crate::holder::{Held, Opening};
use crate::report::{Comparison, Finding, Results, Target};
use crate::row::Row;
use crate::switches::{Rig, Switch};

const SWITCHES: [Switch; 3] = [Switch::Direct, Switch::Splicing, Switch::HaProxyHttp];

/// Measures row 5.6.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let (sockets, rounds) = scope.count((8000, 3), (500, 1));
    let all = in_turn(&SWITCHES, Switch::title, rounds, |switch| {
        measure(scope, switch, sockets)
    })?;
    judge(&all)
}

fn measure(scope: &Scope<'_>, switch: Switch, sockets: usize) -> Result<Sample<Switch>> {
    let net = Line::new("bench", LineOptions::router())?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let standing = rig.start(switch)?;
    Ok(Sample {
        contender: switch,
        connections: sockets,
        growth: growth(
            standing.pid(),
            sockets,
            |count| Held::open_by(1, Opening::WebSocket, &net, rig.server(), standing.at, count),
            |count| standing.detached(count),
        )?,
    })
}

fn judge(all: &[Sample<Switch>]) -> Result<Results> {
    let sockets = all.first().map_or(0, |one| one.connections);
    let [ours, theirs] = [Switch::Splicing, Switch::HaProxyHttp];
    let mut results = Results::default();
    // The table was there before the first connection.
    for (switch, table) in [(ours, FLOW_BYTES as f64), (theirs, 0.0)] {
        let parts = per_connection(all, [switch, Switch::Direct], table)?;
        results = results.join(Results::of(series(all, (switch, switch.title()), parts)));
    }
    let target = Target::AtMost {
        must: 0.05,
        aim: 0.02,
    };
    Ok(results.find(Finding::new(
        Row::switch(6),
        format!("memory of an idle WebSocket, {sockets} held: longsplice / HAProxy in HTTP mode"),
        Comparison::of(target, ours.title(), BYTES).to([theirs.title()]),
        format!(
            "both ends together {:.0}, subtracted",
            kernel(all, Switch::Direct)?
        ),
    )))
}
