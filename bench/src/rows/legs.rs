//! Rows 16.3 and 16.4: one bulk stream over legs that are unlike each other: of two families, and with a tunnel on one side.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use longsplice_lab::{Family, Line, LineOptions, Namespace, Tunnel, TunnelEnd};

use super::Scope;
use crate::contender::{Contender, Rig};
use crate::iperf::{Bulk, GBPS};
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
    front: IpAddr,
    server: IpAddr,
}

/// Way, and the stream of each round.
type Measured = (Way, Vec<Bulk>);

/// Measures row 16.3.
pub(super) fn families(scope: &Scope<'_>) -> Result<Results> {
    let large = Target::AtLeast { must: 0.9, aim: 1.05 };
    let wire_size = Target::AtLeast { must: 0.7, aim: 0.9 };
    let mut all = Results::default();
    for (offloads, segments, target) in [
        (true, "large segments", large),
        (false, "wire-size segments", wire_size),
    ] {
        let net = line(Family::V6, offloads)?;
        let [front, server] = [net.forwarder_client_addr, net.server_addr];
        let [v4, v6] = Family::BOTH;
        let way = |contender, title, near: Family, far: Family| Way {
            contender,
            title,
            front: near.addr(front),
            server: far.addr(server),
        };
        let spliced = |near, far| way(Contender::Spliced, Contender::Spliced.title(), near, far);
        let ways = [
            way(Contender::Router, ROUTERS[0], v4, v4),
            way(Contender::Router, ROUTERS[1], v6, v6),
            spliced(v4, v6),
            spliced(v6, v4),
        ];
        let measured = in_turn(scope, &net, &ways)?;
        let [ipv4, ipv6, up, down] = &measured[..] else {
            anyhow::bail!("not every way was measured");
        };
        let case = |spliced, ends: &str| {
            let case = format!("{segments}, {ends}");
            let series = [ipv4, ipv6, spliced].map(|one| series(one, Some(&case)));
            (case, series)
        };
        let [up, down] = [case(up, "IPv4 to IPv6"), case(down, "IPv6 to IPv4")];
        let comparison = Comparison::of(target, Contender::Spliced.title(), GBPS)
            .to(ROUTERS)
            .worst([up.0, down.0]);
        let measure = format!(
            "one bulk stream, one leg of each family, {segments}: spliced / kernel router, the better family"
        );
        let found = Results::of(up.1.into_iter().chain(down.1));
        all = all.join(found.find(Finding::new(Row::reach(3), measure, comparison, String::new())));
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
    let ways = [router, spliced].map(|contender| Way {
        contender,
        title: contender.title(),
        front: net.forwarder_client_addr,
        server: theirs,
    });
    let measured = in_turn(scope, &net, &ways)?;
    let target = Target::AtLeast { must: 0.95, aim: 1.0 };
    Ok(
        Results::of(measured.iter().map(|one| series(one, None))).find(Finding::new(
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

/// Measures each way in turn, for some rounds.
fn in_turn(scope: &Scope<'_>, net: &Line, ways: &[Way]) -> Result<Vec<Measured>> {
    let (rounds, seconds) = scope.count((7, 3), (2, 1));
    let rig = Rig {
        room: scope.room,
        nodes: net,
    };
    let mut measured: Vec<Measured> = ways.iter().map(|&way| (way, Vec::new())).collect();
    for _ in 0..rounds {
        for (way, bulks) in &mut measured {
            let [front, server] = [(way.front, 5200), (way.server, 5201)].map(Into::into);
            let bulk = rig.bulk_between(way.contender, front, server, seconds)?;
            eprintln!(
                "   {:<22} to {:<20} {:6.2} Gbit/s",
                way.title, way.server, bulk.gbps
            );
            bulks.push(bulk);
        }
    }
    Ok(measured)
}

/// Returns the throughput of a way in each round.
fn series((way, bulks): &Measured, case: Option<&str>) -> Series {
    let series = Series::new(way.title, GBPS, bulks.iter().map(|bulk| bulk.gbps));
    let series = match bulks.iter().filter_map(|bulk| bulk.splices).min() {
        Some(splices) => series.splices(splices as f64),
        None => series,
    };
    match case {
        Some(case) => series.case(case),
        None => series,
    }
}
