//! Verified traffic through a plain router. Needs root.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::{eventually, veth_line};
use longsplice_lab::pattern::PERIOD;
use longsplice_lab::traffic::{Close, Pause, Transfer};
use longsplice_lab::{ConnectionSpec, LineOptions, Traffic, TrafficServer, TrafficSpec};

#[test]
fn every_byte_of_many_connections_arrives() {
    let net = veth_line("lab-router", LineOptions::router());
    let server = TrafficServer::start(&net.server, SocketAddr::from((net.server_addr, 7000))).unwrap();
    let spec = TrafficSpec::same(40, ConnectionSpec::both_ways(0))
        .parallel(10)
        .vary(|number, each| {
            // From 0 bytes to more than a period of the pattern, never a round number.
            each.to_server.bytes = (PERIOD * number / 30) as u64;
            each.to_client.bytes = (PERIOD * (39 - number) / 30) as u64;
            each.close = [Close::Both, Close::ClientFirst, Close::ServerFirst][number % 3];
            each.congestion = (number % 2 == 0).then(|| "reno".into());
            each.sha256 = true;
        });
    let outcome = Traffic::run(&net.client, server.addr(), &spec).unwrap();
    assert!(outcome.all_ok(), "{:?}", outcome.failures().collect::<Vec<_>>());
    for (connection, spec) in outcome.connections.iter().zip(&spec.connections) {
        let server = connection.server.as_ref().unwrap();
        assert_eq!(server.received, spec.to_server.bytes);
        assert_eq!(connection.client.received, spec.to_client.bytes);
        assert_eq!(server.peer, connection.client.local);
        assert_eq!(server.sha256.as_ref().unwrap().len(), 64);
    }
    assert_eq!(server.open_connections(), 0);
}

#[test]
fn without_offloads_and_with_a_small_mtu_the_counters_agree() {
    let options = LineOptions {
        offloads: false,
        mtu_client: 900,
        large_buffers: true,
        ..LineOptions::router()
    };
    let net = veth_line("lab-mtu", options);
    let server = TrafficServer::start(&net.server, SocketAddr::from((net.server_addr, 0))).unwrap();
    let before = net.client.snmp().unwrap();
    let spec = TrafficSpec::same(1, ConnectionSpec::new(Transfer::of(1 << 20), Transfer::of(0)));
    let outcome = Traffic::run(&net.client, server.addr(), &spec).unwrap();
    assert!(outcome.all_ok(), "{outcome:?}");
    let counted = net.client.snmp().unwrap().diff(&before);
    assert_eq!(counted.get("Tcp.ActiveOpens"), 1);
    // 900 bytes less the IP and TCP headers with timestamps.
    assert!(counted.get("Tcp.OutSegs") >= (1 << 20) / 848, "{counted:?}");
    assert_eq!(
        counted.get("Tcp.RetransSegs"),
        i64::from(outcome.connections[0].client.total_retrans)
    );
}

#[test]
fn pauses_show_as_gaps_and_slow_readers_do_not() {
    let net = veth_line("lab-gaps", LineOptions::router());
    let server = TrafficServer::start(&net.server, SocketAddr::from((net.server_addr, 7000))).unwrap();
    let length = Duration::from_millis(300);
    let to_server = Transfer {
        pause: Some(Pause {
            after_bytes: 70_000,
            length,
        }),
        ..Transfer::of(200_000)
    };
    let to_client = Transfer {
        receive_rate: Some(500_000),
        chunk: 1000,
        ..Transfer::of(200_000)
    };
    let spec = TrafficSpec::same(1, ConnectionSpec::new(to_server, to_client));
    let outcome = Traffic::run(&net.client, server.addr(), &spec).unwrap();
    assert!(outcome.all_ok(), "{outcome:?}");
    let connection = &outcome.connections[0];
    let seen = connection.server.as_ref().unwrap();
    assert!(
        (280_000..600_000).contains(&seen.longest_gap_us),
        "{}",
        seen.longest_gap_us
    );
    let gap = seen.gaps.iter().max_by_key(|gap| gap.length_ns).unwrap();
    assert_eq!(gap.offset, 70_000);
    assert!(gap.end_ns <= longsplice_lab::monotonic_ns());
    assert!(
        (350_000..800_000).contains(&connection.client.duration_us),
        "200 kB at 500 kB/s: {connection:?}"
    );
    assert!(
        connection.client.longest_gap_us < 200_000,
        "{}",
        connection.client.longest_gap_us
    );
}

#[test]
fn a_server_that_goes_away_is_told() {
    let net = veth_line("lab-away", LineOptions::router());
    let server = TrafficServer::start(&net.server, SocketAddr::from((net.server_addr, 7000))).unwrap();
    let addr = server.addr();
    let slow = Transfer {
        send_rate: Some(100_000),
        ..Transfer::of(10_000_000)
    };
    let spec = TrafficSpec::same(3, ConnectionSpec::new(slow.clone(), slow));
    let outcome = std::thread::scope(|scope| {
        let client = scope.spawn(|| Traffic::run(&net.client, addr, &spec).unwrap());
        eventually("three connections", || server.open_connections() == 3);
        drop(server);
        client.join().unwrap()
    });
    assert_eq!(outcome.failures().count(), 3, "{outcome:?}");
    let refused = Traffic::run(&net.client, addr, &spec).unwrap();
    assert_eq!(refused.failures().count(), 3, "no socket listens");
}

#[test]
fn without_a_router_nothing_passes() {
    let net = veth_line("lab-norouter", LineOptions::default());
    let server = TrafficServer::start(&net.server, SocketAddr::from((net.server_addr, 7000))).unwrap();
    let mut each = ConnectionSpec::both_ways(1);
    each.stall = Duration::from_millis(300);
    let outcome = Traffic::run(&net.client, server.addr(), &TrafficSpec::same(1, each)).unwrap();
    assert!(!outcome.all_ok());
}
