//! Short connections whose clients reuse a port as soon as it is free: each is served, in spite of remains of the
//! previous one.
//!
//! `LONGSPLICE_CYCLES` sets the number of connections (`make soak`).

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::{net::SocketAddr, time::Duration};

use longsplice_lab::{
    LinkSpec, Traffic, TrafficServer, TrafficSpec,
    traffic::{Close, ConnectionSpec, Transfer},
};
use longsplice_tests::{
    Bed, Config, Daemon, Pair, Policy, assert_all_ok, connect_again, emulated, patient, rng, times,
};

/// Range of the clients' ports.
const PORTS: &str = "40000 40399";

/// Number of connections whose outcome is checked together.
const BATCH: usize = 1000;

/// Interval between connections that the client closes first; it keeps their port for a second
/// (`tcp_tw_reuse`).
const SLOW: usize = 10;

/// Longest time for which a connection may stand still. One whose SYN was lost has measured a round trip of a second: a
/// segment that is lost three times is retransmitted after 3, 9 and 21 seconds.
const STALL: Duration = Duration::from_secs(60);

/// Runs short connections over links that lose so many packets; all must succeed.
fn all_are_served(name: &str, loss: &str, detach: &str) {
    let connections = times("LONGSPLICE_CYCLES", 300);
    let mut rng = rng();
    let mut link = || -> LinkSpec {
        let seed = rng.u64(1..1 << 32);
        format!("100us,loss={loss},seed={seed}").parse().unwrap()
    };
    let net = emulated(name, link(), link());
    let sysctl = |path, value| net.client.sysctl(path, value).unwrap();
    sysctl("net/ipv4/ip_local_port_range", PORTS);
    sysctl("net/ipv4/tcp_tw_reuse", "1");
    let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
    let front: SocketAddr = (net.forwarder_client_addr, 8080).into();
    let mut daemon = Daemon::of(&Config::new().listener(front, server.addr(), "now", detach));
    daemon.start(&net.forwarder);
    let one = |n: usize| ConnectionSpec {
        close: match n.is_multiple_of(SLOW) {
            true => Close::ClientFirst,
            false => Close::ServerFirst,
        },
        stall: patient(STALL),
        ..ConnectionSpec::new(Transfer::of(400), Transfer::of(10_000))
    };
    let mut left: usize = connections;
    while left > 0 {
        let count = left.min(BATCH);
        left -= count;
        let spec = TrafficSpec {
            connections: (0..count).map(one).collect(),
            parallel: 32,
            seed: rng.u64(..),
        };
        assert_all_ok(&Traffic::run(&net.client, front, &spec).unwrap());
    }
    let spliced = daemon.status().spliced_total;
    daemon.wait_reaped();
    let status = daemon.status();
    assert_eq!(status.health.flows, 0, "{status:?}");
    eprintln!("{connections} connections, {spliced} spliced; a loss of {loss}");
    assert!(spliced > 0);
}

#[test]
fn without_loss() {
    all_are_served("again", "0%", "now");
}

#[test]
fn with_loss() {
    all_are_served("again-loss", "5%", "now");
}

#[test]
fn parked() {
    all_are_served("again-parked", "5%", "never");
}

/// Replaces one flow after the other by the next SYN from its port, faster than the reaper collects them: more than a chain
/// of the table holds.
#[test]
fn one_port_again_and_again() {
    const CONNECTIONS: u64 = 40;
    let bed = Bed::new("again-one", Policy::DETACHED);
    let source = (bed.net.client_addr, 40_000).into();
    for _ in 0..CONNECTIONS {
        let before = bed.daemon.status().detached_total;
        let client = connect_again(&bed.net.client, source, bed.front());
        let mut pair = Pair::accept(client, &bed.listener);
        // A refused splice is tried again later: go on without it. (A list of the flows would collect what is left of others.)
        for _ in 0..20 {
            pair.exchange(1_000);
            if bed.daemon.status().detached_total > before {
                break;
            }
        }
        // The server keeps the port in TIME-WAIT, and the client does not.
        pair.server.finish();
        pair.client.expect_end();
        pair.client.finish();
        pair.server.expect_end();
    }
    let status = bed.daemon.wait_status("all ends", |s| s.listeners[0].open == 0);
    assert!(status.detached_total > CONNECTIONS / 2, "{status:?}");
    assert_eq!(status.relayed("table_full"), 0, "{status:?}");
}
