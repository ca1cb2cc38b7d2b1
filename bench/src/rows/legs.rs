//! Rows 16.3 and 16.4: one bulk stream over legs that are unlike each other: of two families, and with a tunnel on one side.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use longsplice_lab::{Family, Line, LineOptions, Namespace, Tunnel, TunnelEnd};

use super::Scope;
use super::middle_cost::{self, CPU};
use crate::contender::{Contender, Rig};
use crate::cores;
use crate::iperf::GBPS;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;

/// Titles of the kernel's router where both legs are of one family.
const ROUTERS: [&str; 2] = ["kernel router, IPv4", "kernel router, IPv6"];

/// Way of a stream from the client to the server.
#[derive(Debug, Clone, Copy)]
struct Way {
    contender: Contender,
    title: &'static str,
    /// Address at which a daemon listens.
    front: SocketAddr,
    server: SocketAddr,
}

impl Way {
    fn new(contender: Contender, title: &'static str, front: IpAddr, server: IpAddr) -> Self {
        Way {
            contender,
            title,
            front: (front, 5200).into(),
            server: (server, 5201).into(),
        }
    }
}

/// Value of each round of a way, and the least number of splices in one, if it splices.
#[derive(Debug)]
struct Measured {
    title: &'static str,
    values: Vec<f64>,
    splices: Option<u64>,
}

/// Measures row 16.3: the throughput, which on two cores is mostly the ends', and what the middle costs on a core of its own.
pub(super) fn families(scope: &Scope<'_>) -> Result<Results> {
    let mut all = Results::default();
    for (offloads, segments, must, aim) in [
        (true, "large segments", 0.9, 1.05),
        (false, "wire-size segments", 0.7, 0.9),
    ] {
        let net = line(Family::V6, offloads)?;
        let [front, server] = [net.forwarder_client_addr, net.server_addr];
        let [v4, v6] = Family::BOTH;
        let way = |contender, title, near: Family, far: Family| {
            Way::new(contender, title, near.addr(front), far.addr(server))
        };
        let spliced = |near, far| way(Contender::Spliced, Contender::Spliced.title(), near, far);
        let ways = [
            way(Contender::Router, ROUTERS[0], v4, v4),
            way(Contender::Router, ROUTERS[1], v6, v6),
            spliced(v4, v6),
            spliced(v6, v4),
        ];
        for (figure, target, measured, measure) in [
            (
                GBPS,
                Target::AtLeast { must, aim },
                streams(scope, &net, &ways)?,
                "one bulk stream, one leg of each family",
            ),
            (
                CPU,
                Target::Shown { aim: 1.0 },
                costs(scope, &net, &ways)?,
                "CPU of the middle's core for a gigabyte of it",
            ),
        ] {
            let [ipv4, ipv6, up, down] = &measured;
            let case = |spliced, ends: &str| {
                let case = format!("{segments}, {ends}");
                let series = [ipv4, ipv6, spliced].map(|one| series(one, figure, &case));
                (case, series)
            };
            let [up, down] = [case(up, "IPv4 to IPv6"), case(down, "IPv6 to IPv4")];
            let comparison = Comparison::of(target, Contender::Spliced.title(), figure)
                .to(ROUTERS)
                .worst([up.0, down.0]);
            let measure = format!("{measure}, {segments}: spliced / kernel router, the better family");
            let found = Results::of(up.1.into_iter().chain(down.1));
            all = all.join(found.find(Finding::new(Row::reach(3), measure, comparison, String::new())));
        }
    }
    Ok(all)
}

/// Measures row 16.4.
pub(super) fn tunnel(scope: &Scope<'_>) -> Result<Results> {
    let net = line(Family::V4, true)?;
    let [ours, theirs] = ["198.18.12.2", "198.18.12.1"].map(|addr| addr.parse::<IpAddr>());
    let (ours, theirs) = (ours?, theirs?);
    let end = |namespace, device, addr| TunnelEnd {
        namespace,
        device,
        addr,
    };
    let ends = [end(&net.forwarder, "t1", ours), end(&net.server, "t0", theirs)];
    let _tunnel = Tunnel::between(ends, 1500, true)?;
    // Route the answers of the kernel's way by the tunnel, too.
    route(&net.server, net.client_addr, ours)?;
    let [router, spliced] = [Contender::Router, Contender::Spliced];
    let ways = [router, spliced]
        .map(|contender| Way::new(contender, contender.title(), net.forwarder_client_addr, theirs));
    let measured = streams(scope, &net, &ways)?;
    let target = Target::AtLeast { must: 0.95, aim: 1.0 };
    Ok(
        Results::of(measured.iter().map(|one| series(one, GBPS, ""))).find(Finding::new(
            Row::reach(4),
            "one bulk stream, a tun on the server's leg: spliced / kernel router over it",
            Comparison::of(target, spliced.title(), GBPS).to([router.title()]),
            String::new(),
        )),
    )
}

/// Makes three nodes, the one in the middle a router.
fn line(family: Family, offloads: bool) -> Result<Line> {
    let options = LineOptions {
        family,
        router: true,
        offloads,
        ..LineOptions::default()
    };
    Ok(Line::new("bench", options)?)
}

/// Routes from a node to an address by way of another one.
fn route(node: &Namespace, to: IpAddr, via: IpAddr) -> Result<()> {
    let words = ["route", "add", &to.to_string(), "via", &via.to_string()];
    let done = node.command("ip").args(words).output()?;
    ensure!(done.status.success(), "ip {words:?}: {done:?}");
    Ok(())
}

/// Measures the throughput of each way.
fn streams<const N: usize>(scope: &Scope<'_>, net: &Line, ways: &[Way; N]) -> Result<[Measured; N]> {
    let (rounds, seconds) = scope.count((7, 3), (2, 1));
    in_turn(scope, net, ways, rounds, |rig, way| {
        let bulk = rig.bulk_between(way.contender, way.front, way.server, seconds)?;
        eprintln!(
            "   {:<22} to {:<20} {:6.2} Gbit/s",
            way.title,
            way.server.ip(),
            bulk.gbps
        );
        Ok((bulk.gbps, bulk.splices))
    })
}

/// Measures what each way costs the middle. From then on each node keeps to its core: measure the throughput before.
fn costs<const N: usize>(scope: &Scope<'_>, net: &Line, ways: &[Way; N]) -> Result<[Measured; N]> {
    cores::part(net)?;
    in_turn(scope, net, ways, scope.count(7, 1), |rig, way| {
        let round = middle_cost::one(scope, rig, way.contender, way.front, way.server)?;
        Ok((round.cost(), round.splices()))
    })
}

/// Measures each way in turn, for so many rounds.
fn in_turn<const N: usize>(
    scope: &Scope<'_>,
    net: &Line,
    ways: &[Way; N],
    rounds: u32,
    measure: impl Fn(&Rig<'_>, &Way) -> Result<(f64, Option<u64>)>,
) -> Result<[Measured; N]> {
    let rig = Rig {
        room: scope.room,
        nodes: net,
    };
    let mut measured = ways.map(|way| Measured {
        title: way.title,
        values: Vec::new(),
        splices: None,
    });
    for _ in 0..rounds {
        for (way, all) in ways.iter().zip(&mut measured) {
            let (value, splices) = measure(&rig, way).with_context(|| way.title)?;
            all.values.push(value);
            all.splices = all.splices.into_iter().chain(splices).min();
        }
    }
    Ok(measured)
}

/// Returns the figure of a way in each round.
fn series(measured: &Measured, figure: &str, case: &str) -> Series {
    Series::new(measured.title, figure, measured.values.iter().copied())
        .splices_if_any(measured.splices.map(|splices| splices as f64))
        .case(case)
}
