//! Row 5.6: memory of idle WebSockets, spliced after their 101, beside HAProxy's.

use anyhow::Result;
use longsplice_dataplane::FLOW_BYTES;
use longsplice_lab::Three;

use super::Scope;
use super::memory::{Sample, growth, in_turn, kernel, median};
use crate::holder::{Held, Opening};
use crate::report::{Finding, Target};
use crate::row::Row;
use crate::switches::{self, Rig, Switch};

const SWITCHES: [Switch; 3] = [Switch::Direct, Switch::Splicing, Switch::HaProxyHttp];

/// Measures row 5.6.
pub(super) fn run(scope: &Scope<'_>) -> Result<Vec<Finding>> {
    let (sockets, rounds) = scope.count((8000, 3), (500, 1));
    let all = in_turn(&SWITCHES, Switch::title, rounds, |switch| {
        measure(scope, switch, sockets)
    })?;
    Ok(vec![judge(&all)?])
}

fn measure(scope: &Scope<'_>, switch: Switch, sockets: usize) -> Result<Sample<Switch>> {
    let net = Three::new("bench", switches::routing())?;
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

fn judge(all: &[Sample<Switch>]) -> Result<Finding> {
    let direct = kernel(all, Switch::Direct)?;
    let of = |switch| {
        let kernel = kernel(all, switch)? - direct;
        let process = median(all, switch, |growth| growth.process)?;
        anyhow::Ok((kernel, process))
    };
    let (kernel, process) = of(Switch::Splicing)?;
    // The table was there before the first connection.
    let kernel = kernel + FLOW_BYTES as f64;
    let (their_kernel, their_process) = of(Switch::HaProxyHttp)?;
    let (ours, theirs) = (kernel + process, their_kernel + their_process);
    let sockets = all.first().map_or(0, |one| one.connections);
    Finding::new(
        Row::switch(6),
        format!("memory of an idle WebSocket, {sockets} held: longsplice / HAProxy in HTTP mode"),
        Target::AtMost {
            must: 0.05,
            aim: 0.02,
        },
        ours / theirs,
        format!(
            "longsplice {ours:.0} bytes (kernel {kernel:.0}, process {process:.0}), HAProxy {theirs:.0} (kernel {their_kernel:.0}, process \
             {their_process:.0}); both ends together {direct:.0}, subtracted"
        ),
        &all,
    )
}
