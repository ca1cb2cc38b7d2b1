//! Rows 16.3 and 16.4: one bulk stream over legs that are unlike each other: of two families, and with a tunnel on one side.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use longsplice_lab::{Family, Line, LineOptions, Namespace, Tunnel, TunnelEnd};

use super::Scope;
use crate::daemon::{Daemon, Instance, Policy};
use crate::iperf::{self, Bulk};
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;

const GBPS: &str = "Gbit/s";
const SPLICED: &str = "longsplice, spliced";
const ROUTER: &str = "kernel router";
/// The same over one family on both legs.
const ROUTERS: [&str; 2] = ["kernel router, IPv4", "kernel router, IPv6"];

/// Way of a stream from the client to the server.
#[derive(Debug, Clone, Copy)]
struct Way {
    contender: &'static str,
    /// Address to which the client connects; the daemon's, or the server's own.
    at: SocketAddr,
    server: SocketAddr,
}

/// Way, and the stream of each round.
type Measured = (Way, Vec<Bulk>);

impl Way {
    fn routed(contender: &'static str, server: IpAddr) -> Way {
        let server = (server, 5201).into();
        Way {
            contender,
            at: server,
            server,
        }
    }

    fn spliced(front: IpAddr, server: IpAddr) -> Way {
        Way {
            contender: SPLICED,
            at: (front, 5200).into(),
            server: (server, 5201).into(),
        }
    }

    /// Measures one stream.
    fn bulk(self, scope: &Scope<'_>, net: &Line, seconds: u32) -> Result<Bulk> {
        let stream = || iperf::bulk(&net.client, &net.server, self.server, self.at, seconds);
        if self.at == self.server {
            return stream();
        }
        let instance = Instance::new(scope.room)?;
        let policy = Policy::new("now", "now");
        let daemon = Daemon::forward(&instance, &net.forwarder, self.at, self.server, policy)?;
        let bulk = stream()?;
        let detached = daemon.status()?.counters.detached_total;
        // iperf3 has two connections, and the second one carries the bytes.
        ensure!(detached >= 2, "{detached} of two connections were spliced");
        Ok(Bulk {
            splices: Some(detached),
            ..bulk
        })
    }
}

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
        let across = |near: Family, far: Family| Way::spliced(near.addr(front), far.addr(server));
        let ways = [
            Way::routed(ROUTERS[0], v4.addr(server)),
            Way::routed(ROUTERS[1], v6.addr(server)),
            across(v4, v6),
            across(v6, v4),
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
        let comparison = Comparison::of(target, SPLICED, GBPS)
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
    // What the kernel routes returns by the tunnel, too.
    route(&net.server, net.client_addr, ours)?;
    let ways = [
        Way::routed(ROUTER, theirs),
        Way::spliced(net.forwarder_client_addr, theirs),
    ];
    let measured = in_turn(scope, &net, &ways)?;
    let target = Target::AtLeast { must: 0.95, aim: 1.0 };
    Ok(
        Results::of(measured.iter().map(|one| series(one, None))).find(Finding::new(
            Row::reach(4),
            "one bulk stream, a tun on the server's leg: spliced / kernel router over it",
            Comparison::of(target, SPLICED, GBPS).to([ROUTER]),
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
    let mut measured: Vec<Measured> = ways.iter().map(|&way| (way, Vec::new())).collect();
    for _ in 0..rounds {
        for (way, bulks) in &mut measured {
            let bulk = way.bulk(scope, net, seconds)?;
            eprintln!(
                "   {:<22} at {:<24} {:6.2} Gbit/s",
                way.contender, way.at, bulk.gbps
            );
            bulks.push(bulk);
        }
    }
    Ok(measured)
}

/// Returns the throughput of a way in each round.
fn series((way, bulks): &Measured, case: Option<&str>) -> Series {
    let series = Series::new(way.contender, GBPS, bulks.iter().map(|bulk| bulk.gbps));
    let series = match bulks.iter().filter_map(|bulk| bulk.splices).min() {
        Some(splices) => series.splices(splices as f64),
        None => series,
    };
    match case {
        Some(case) => series.case(case),
        None => series,
    }
}
