//! Rows 14.1 and 14.2: what the middle costs: CPU of the forwarder's own core for a gigabyte of one bulk stream, in large
//! and in wire-size segments.
//!
//! The middle has core 0 for itself, the ends core 1, as in the switch's rows. Without a program in the middle the core
//! still does the kernel's work for each segment, which is what a router costs.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use longsplice_lab::{Line, LineOptions};

use super::Scope;
use crate::contender::{Contender, Rig};
use crate::cores::{self, MIDDLE, Watch, Work};
use crate::iperf::{self, Bulk, GBPS};
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;

const CONTENDERS: [Contender; 6] = [
    Contender::Router,
    Contender::Spliced,
    Contender::Relay,
    Contender::Nginx,
    Contender::HaProxySplice,
    Contender::HaProxyCopy,
];

/// Largest number of attempts at a round in which the middle's work is too short to be seen.
const ATTEMPTS: u32 = 3;

/// Figures of the rows.
pub(super) const CPU: &str = "CPU s of the middle's core per GB";
pub(super) const PACKET: &str = "CPU ns of the middle's core per packet";

/// One contender in one round.
#[derive(Debug)]
pub(super) struct Round {
    contender: Contender,
    bulk: Bulk,
    work: Work,
    /// Packets that the middle's kernel took in: those that no program of ours translated.
    packets: f64,
}

/// Measures row 14.1.
pub(super) fn large(scope: &Scope<'_>) -> Result<Results> {
    let measure = "CPU of the middle's core for a gigabyte, large segments: spliced / kernel router";
    run(scope, true, Row::middle(1), measure)
}

/// Measures row 14.2.
pub(super) fn wire_size(scope: &Scope<'_>) -> Result<Results> {
    let measure = "the same, wire-size segments (offloads off)";
    run(scope, false, Row::middle(2), measure)
}

fn run(scope: &Scope<'_>, offloads: bool, row: Row, measure: &str) -> Result<Results> {
    let all = rounds(scope, offloads, &CONTENDERS)?;
    let comparison = Comparison::of(Target::Shown { aim: 1.0 }, Contender::Spliced.title(), CPU);
    let series = CONTENDERS
        .into_iter()
        .flat_map(|contender| series(contender, &all));
    Ok(Results::of(series).find(Finding::new(
        row,
        measure,
        comparison.to([Contender::Router.title()]),
        "core 0 is the middle's, core 1 that of both ends",
    )))
}

/// Returns what a packet costs a contender by which all of them pass the middle's kernel.
pub(super) fn packet_cost(contender: Contender, all: &[Round]) -> Series {
    let mine = all.iter().filter(|round| round.contender == contender);
    Series::new(contender.title(), PACKET, mine.map(Round::per_packet))
}

/// Measures some contenders in turn.
pub(super) fn rounds(scope: &Scope<'_>, offloads: bool, contenders: &[Contender]) -> Result<Vec<Round>> {
    let mut all: Vec<Round> = Vec::new();
    for _ in 0..scope.count(7, 1) {
        for &contender in contenders {
            // Give each one nodes of its own: a namespace that ever had a routing rule looks at its rules for each packet
            // (`fib_has_custom_rules` of Linux).
            let options = LineOptions {
                router: true,
                offloads,
                ..LineOptions::default()
            };
            let net = Line::new("bench", options)?;
            cores::part(&net)?;
            let rig = Rig {
                room: scope.room,
                nodes: &net,
            };
            let round = one(scope, &rig, contender, rig.front(), rig.server());
            all.push(round.with_context(|| contender.title())?);
        }
    }
    Ok(all)
}

/// Measures one stream through a contender that listens at `at`, if it is no router, toward a server at `to`.
pub(super) fn one(
    scope: &Scope<'_>,
    rig: &Rig<'_>,
    contender: Contender,
    at: SocketAddr,
    to: SocketAddr,
) -> Result<Round> {
    let (standing, _ends) = rig.start_apart_between(contender, at, to)?;
    let seconds = scope.count(3, 1);
    let background = scope.background()?;
    let mut attempts = 0;
    let (mut bulk, work, packets) = loop {
        let packets = taken_in(rig)?;
        let watch = Watch::start()?;
        let bulk = iperf::bulk(&rig.nodes.client, &rig.nodes.server, to, standing.at, seconds)?;
        let work = watch.stop(background)?;
        let packets = taken_in(rig)? - packets;
        attempts += 1;
        match (standing.pid(), work.seen()) {
            (None, _) => break (bulk, work.at_least_a_tick(), packets),
            // The machine stood still: measure again.
            (Some(_), Err(_)) if attempts < ATTEMPTS => {}
            (Some(_), work) => break (bulk, work?, packets),
        }
    };
    bulk.splices = standing.splices()?;
    let round = Round {
        contender,
        bulk,
        work,
        packets,
    };
    eprintln!(
        "   {:<22} {:.3} CPU s of the middle per GB; {:5.2} Gbit/s, middle {:3.0} % busy",
        contender.title(),
        round.cost(),
        bulk.gbps,
        round.busy(MIDDLE)
    );
    Ok(round)
}

/// Returns the number of packets that the middle's kernel has taken in.
fn taken_in(rig: &Rig<'_>) -> Result<f64> {
    let counters = rig.nodes.forwarder.snmp()?;
    Ok(counters.get("Ip.InReceives") as f64)
}

impl Round {
    /// Returns the number of splices, if the contender splices.
    pub(super) fn splices(&self) -> Option<u64> {
        self.bulk.splices
    }

    /// Returns the busy time of the middle's core per gigabyte, in seconds.
    pub(super) fn cost(&self) -> f64 {
        self.work.busy[MIDDLE] / self.bulk.gigabytes
    }

    /// Returns the busy time of the middle's core for each packet that its kernel took in, in nanoseconds.
    fn per_packet(&self) -> f64 {
        1e9 * self.work.busy[MIDDLE] / self.packets
    }

    /// Returns the busy share of a core, in percent.
    fn busy(&self, core: usize) -> f64 {
        100.0 * self.work.busy[core] / self.work.seconds
    }
}

/// Returns the series of a contender.
pub(super) fn series(contender: Contender, all: &[Round]) -> [Series; 4] {
    let mine = || all.iter().filter(move |round| round.contender == contender);
    let splices = mine().filter_map(|round| round.bulk.splices).min();
    let of = |figure, value: fn(&Round) -> f64| {
        Series::new(contender.title(), figure, mine().map(value))
            .splices_if_any(splices.map(|splices| splices as f64))
    };
    [
        of(CPU, Round::cost),
        of(GBPS, |round| round.bulk.gbps),
        of("middle's core busy, %", |round| round.busy(MIDDLE)),
        of("ends' core busy, %", |round| round.busy(cores::ENDS)),
    ]
}
