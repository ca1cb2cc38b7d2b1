//! Rows 1, 2, 4 and 4.4: one bulk stream through each contender in turn.

use anyhow::{Context, Result};
use longsplice_lab::{Line, LineOptions};

use super::Scope;
use crate::contender::{Contender, Rig, Rounds};
use crate::iperf::{Bulk, GBPS};
use crate::report::{Comparison, Finding, Results, Series, Target, WIRE_SIZE};
use crate::row::Row;

/// The whole machine's, both ends included.
const CPU: &str = "CPU s per GB of the whole machine";

/// Measures rows 1 and 2.
pub(super) fn with_offloads(scope: &Scope<'_>) -> Result<Results> {
    let contenders = [
        Contender::Router,
        Contender::Spliced,
        Contender::Relay,
        Contender::HaProxySplice,
        Contender::Nginx,
        Contender::HaProxyCopy,
        Contender::NginxDefault,
    ];
    let series = measure(scope, true, &contenders)?;
    let [_, spliced, relay, haproxy, nginx, copying, small] = &series[..] else {
        anyhow::bail!("not every contender was measured");
    };
    let beside: Vec<String> = [haproxy, nginx, copying, small, relay]
        .into_iter()
        .map(describe)
        .collect::<Result<_>>()?;
    let peers = [haproxy, nginx, copying, small].map(|one| one.contender.title());
    let target = Target::AtLeast { must: 1.9, aim: 2.2 };
    let beside_peers = Comparison::of(target, spliced.contender.title(), GBPS).to(peers);
    Ok(results(&series)
        .find(ratio(
            Row::splice(1),
            "one bulk stream, offloads on, spliced / kernel router",
            Target::AtLeast { must: 1.0, aim: 1.05 },
            &series,
        )?)
        .find(Finding::new(
            Row::splice(2),
            "the same / best of HAProxy (splicing, copying) and nginx stream (large buffers, small ones)",
            beside_peers,
            beside.join("; "),
        )))
}

/// Measures rows 4 and 4.4: one measure, of which the later issue demands more.
pub(super) fn without_offloads(scope: &Scope<'_>) -> Result<Results> {
    let series = measure(scope, false, &[Contender::Router, Contender::Spliced])?;
    let name = "offloads off (wire-size segments), spliced / kernel router";
    let mut all = results(&series);
    for (row, target) in WIRE_SIZE {
        all = all.find(ratio(row, name, target, &series)?);
    }
    Ok(all)
}

fn measure(scope: &Scope<'_>, offloads: bool, contenders: &[Contender]) -> Result<Vec<Rounds>> {
    let options = LineOptions {
        router: true,
        offloads,
        ..LineOptions::default()
    };
    let net = Line::new("bench", options)?;
    let (rounds, seconds) = scope.count((5, 3), (2, 1));
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    rig.in_turn(contenders, rounds, seconds, |contender, bulk| {
        eprintln!("   {:<22} {:6.2} Gbit/s", contender.title(), bulk.gbps);
    })
}

/// Returns all samples.
fn results(all: &[Rounds]) -> Results {
    let series = |one: &Rounds| {
        let of = |figure, value: fn(&Bulk) -> f64| {
            Series::new(one.contender.title(), figure, one.rounds.iter().map(value))
                .splices_if_any(one.splices())
        };
        [
            of(GBPS, |round| round.gbps),
            of(CPU, |round| round.cpu_s_per_gb),
            of("segments sent again", |round| round.retransmits as f64),
        ]
    };
    Results::of(all.iter().flat_map(series))
}

/// Compares the spliced stream with the router's.
fn ratio(row: Row, measure: &str, target: Target, all: &[Rounds]) -> Result<Finding> {
    let told: Vec<String> = all.iter().take(2).map(describe).collect::<Result<_>>()?;
    let comparison = Comparison::of(target, Contender::Spliced.title(), GBPS).to([Contender::Router.title()]);
    Ok(Finding::new(row, measure, comparison, told.join("; ")))
}

fn describe(series: &Rounds) -> Result<String> {
    let (gbps, cpu) = series.gbps().zip(series.cpu()).context("it was measured")?;
    Ok(format!(
        "{} {} Gbit/s, {:.3} CPU s/GB",
        series.contender.title(),
        gbps.show(),
        cpu.median
    ))
}
