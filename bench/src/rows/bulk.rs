//! Rows 1, 2, 4 and 4.4: one bulk stream through each contender in turn.

use anyhow::{Context, Result};
use longsplice_lab::{Three, ThreeOptions};

use super::Scope;
use crate::contender::{Contender, Rig, Series};
use crate::report::{Finding, Target};
use crate::row::Row;

/// Measures rows 1 and 2.
pub(super) fn with_offloads(scope: &Scope<'_>) -> Result<Vec<Finding>> {
    let contenders = [
        Contender::Router,
        Contender::Spliced,
        Contender::Relay,
        Contender::HaProxy,
        Contender::Nginx,
        Contender::HaProxyCopy,
        Contender::NginxDefault,
    ];
    let series = measure(scope, true, &contenders)?;
    let [router, spliced, relay, haproxy, nginx, copying, small] = &series[..] else {
        anyhow::bail!("not every contender was measured");
    };
    let speed = |one: &Series| one.gbps().map_or(0.0, |gbps| gbps.median);
    let best = if speed(haproxy) > speed(nginx) {
        haproxy
    } else {
        nginx
    };
    let other = if best.contender == nginx.contender {
        haproxy
    } else {
        nginx
    };
    let beside = format!(
        "; {}; not counted: {}, {}, {}",
        describe(other)?,
        describe(copying)?,
        describe(small)?,
        describe(relay)?
    );
    Ok(vec![
        ratio(
            Row::splice(1),
            "one bulk stream, offloads on, spliced / kernel router",
            Target::AtLeast { must: 1.0, aim: 1.05 },
            [spliced, router],
            "",
            &series,
        )?,
        ratio(
            Row::splice(2),
            "the same / best of HAProxy (splice) and nginx stream",
            Target::AtLeast { must: 1.9, aim: 2.2 },
            [spliced, best],
            &beside,
            &(),
        )?,
    ])
}

/// Measures rows 4 and 4.4: one measure, of which the later issue demands more.
pub(super) fn without_offloads(scope: &Scope<'_>) -> Result<Vec<Finding>> {
    let series = measure(scope, false, &[Contender::Router, Contender::Spliced])?;
    let [router, spliced] = &series[..] else {
        anyhow::bail!("not every contender was measured");
    };
    let targets = [
        (Row::splice(4), Target::AtLeast { must: 0.95, aim: 1.1 }),
        (Row::translation(4), Target::AtLeast { must: 1.0, aim: 1.15 }),
    ];
    let name = "offloads off (wire-size segments), spliced / kernel router";
    let finding = |(row, target)| ratio(row, name, target, [spliced, router], "", &series);
    targets.into_iter().map(finding).collect()
}

fn measure(scope: &Scope<'_>, offloads: bool, contenders: &[Contender]) -> Result<Vec<Series>> {
    let options = ThreeOptions {
        router: true,
        offloads,
        ..ThreeOptions::default()
    };
    let net = Three::new("bench", options)?;
    let (rounds, seconds) = scope.count((5, 3), (2, 1));
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    rig.in_turn(contenders, rounds, seconds, |contender, bulk| {
        eprintln!("   {:<22} {:6.2} Gbit/s", contender.title(), bulk.gbps);
    })
}

fn ratio(
    row: Row,
    measure: &str,
    target: Target,
    [this, other]: [&Series; 2],
    more: &str,
    data: &impl serde::Serialize,
) -> Result<Finding> {
    let (ratio, rounds) = this.beside(other).context("it was measured")?;
    let detail = format!(
        "rounds {}; {}; {}{more}",
        rounds.show(),
        describe(this)?,
        describe(other)?
    );
    Finding::new(row, measure, target, ratio, detail, data)
}

fn describe(series: &Series) -> Result<String> {
    let (gbps, cpu) = series.gbps().zip(series.cpu()).context("it was measured")?;
    Ok(format!(
        "{} {} Gbit/s, {:.3} CPU s/GB",
        series.contender.title(),
        gbps.show(),
        cpu.median
    ))
}
