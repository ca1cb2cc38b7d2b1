//! Row 5.6: the memory of WebSockets that say nothing, spliced after their 101, beside HAProxy's.

use anyhow::{Context, Result};
use longsplice_dataplane::FLOW_BYTES;
use longsplice_lab::{Three, ThreeOptions};

use super::Scope;
use super::memory::{Sample, kernel, median};
use crate::holder::{Held, Opening};
use crate::memory::Usage;
use crate::report::{Finding, Target};
use crate::row::Row;
use crate::switches::{Rig, Switch};

const SWITCHES: [Switch; 3] = [Switch::Direct, Switch::Splicing, Switch::HaProxyHttp];

/// Row 5.6.
pub(super) fn run(scope: &Scope<'_>) -> Result<Vec<Finding>> {
    let (sockets, rounds) = scope.count((8000, 5), (500, 1));
    // What the first connections leave in the kernel's caches is nobody's.
    measure(scope, Switch::Direct, sockets)?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        for switch in SWITCHES {
            let one = measure(scope, switch, sockets).with_context(|| switch.title())?;
            eprintln!("   {:<26} {}", switch.title(), one.show());
            all.push(one);
        }
    }
    Ok(vec![judge(&all)?])
}

fn measure(scope: &Scope<'_>, switch: Switch, sockets: usize) -> Result<Sample<Switch>> {
    let options = ThreeOptions {
        router: true,
        ..ThreeOptions::default()
    };
    let net = Three::new("bench", options)?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let standing = rig.start(switch)?;
    let before = Usage::settled(standing.pid())?;
    let held = Held::open_by(1, Opening::WebSocket, &net, rig.server(), standing.at, sockets)?;
    standing.detached(sockets)?;
    let after = Usage::settled(standing.pid())?;
    drop(held);
    Ok(Sample {
        contender: switch,
        connections: sockets,
        growth: after.since(&before),
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
    // Was there before the first connection.
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
