//! Emulated links do what they were asked. Needs root.
//!
//! These tests look at the clock, so they run one at a time.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::emulated;
use longsplice_lab::traffic::Transfer;
use longsplice_lab::{
    ConnectionSpec, Direction, Emulated, LinkSpec, Queue, Traffic, TrafficServer, TrafficSpec,
};

const MS: Duration = Duration::from_millis(1);

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket at the client and one at the server, that know each other.
fn udp_pair(net: &Emulated) -> (UdpSocket, UdpSocket) {
    let at = |ns: &longsplice_lab::Namespace, addr: std::net::Ipv4Addr| {
        let socket = ns.run(|| UdpSocket::bind((addr, 9000))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket
    };
    let (client, server) = (at(&net.client, net.client_addr), at(&net.server, net.server_addr));
    client.connect(server.local_addr().unwrap()).unwrap();
    server.connect(client.local_addr().unwrap()).unwrap();
    (client, server)
}

#[test]
fn the_delay_is_the_one_that_was_asked() {
    let _turn = one_at_a_time();
    let net = emulated("lab-delay", LinkSpec::delay(10 * MS), LinkSpec::delay(25 * MS));
    let (client, server) = udp_pair(&net);
    let mut times = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        client.send(b"x").unwrap();
        server.recv(&mut [0]).unwrap();
        server.send(b"x").unwrap();
        client.recv(&mut [0]).unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    assert!(times[0] >= 70 * MS, "never early: {times:?}");
    assert!(
        times[10] < 72 * MS,
        "{times:?}, real time: {}",
        net.emulator().is_real_time()
    );
    let report = net.report();
    assert_eq!(
        (report.forwarded, report.lost, report.dropped),
        (80, 0, 0),
        "{report:?}"
    );
    assert_eq!(report.lateness.count(), 80);
}

#[test]
fn the_same_seed_loses_the_same_packets() {
    let _turn = one_at_a_time();
    let lossy = Direction {
        loss: 0.2,
        seed: 5,
        ..Direction::default()
    };
    let arrived = || {
        let net = emulated(
            "lab-loss",
            LinkSpec::symmetric(lossy.clone()),
            LinkSpec::delay(MS),
        );
        let (client, server) = udp_pair(&net);
        for number in 0..200u8 {
            client.send(&[number]).unwrap();
        }
        let before_the_first_link = |net: &Emulated| {
            let link = &net.link_reports()[0].to_server;
            link.forwarded + link.lost
        };
        common::eventually("all packets", || before_the_first_link(&net) == 200);
        let report = net.link_reports()[0].to_server.clone();
        let mut numbers = Vec::new();
        for _ in 0..report.forwarded {
            let mut number = [0];
            server.recv(&mut number).unwrap();
            numbers.push(number[0]);
        }
        assert_eq!(report.lost, 200 - numbers.len() as u64);
        numbers
    };
    let first = arrived();
    assert!((130..190).contains(&first.len()), "{}", first.len());
    assert_eq!(first, arrived());
}

#[test]
fn the_rate_limits_and_verified_traffic_survives_every_impairment() {
    let _turn = one_at_a_time();
    let bad = Direction {
        delay: 5 * MS,
        jitter: 2 * MS,
        loss: 0.005,
        reorder: 0.01,
        reorder_delay: 3 * MS,
        duplicate: 0.01,
        rate: Some(50_000_000),
        queue: Queue::Bytes(100_000),
        seed: 11,
    };
    let net = emulated("lab-bad", LinkSpec::symmetric(bad), LinkSpec::delay(MS));
    let server = TrafficServer::start(&net.server, SocketAddr::from((net.server_addr, 7000))).unwrap();
    let spec = TrafficSpec::same(
        4,
        ConnectionSpec::new(Transfer::of(2_000_000), Transfer::of(500_000)),
    );
    let outcome = Traffic::run(&net.client, server.addr(), &spec).unwrap();
    assert!(outcome.all_ok(), "{:?}", outcome.failures().collect::<Vec<_>>());
    // 8 MB at 50 Mbit/s.
    assert!(outcome.duration_us > 1_280_000, "{}", outcome.duration_us);
    assert!(outcome.total_retrans() > 0);
    let report = net.report();
    for (what, count) in [
        ("lost", report.lost),
        ("reordered", report.reordered),
        ("duplicated", report.duplicated),
    ] {
        assert!(count > 0, "{what}: {report:?}");
    }
    assert_eq!(report.refused, 0);
}
