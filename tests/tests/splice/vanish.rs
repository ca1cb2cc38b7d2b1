//! Relayed connections whose client vanishes, or falls silent, end after a while.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use longsplice_tests::{Bed, Pair, Policy, Raise, ip};

/// Makes the client of a relayed connection vanish without a packet: its server is reset, and the flow is removed.
fn vanish(name: &str, keys: &str) {
    let bed = Bed::with(name, Default::default(), Policy::ON_DEMAND, |c| c.with(keys));
    let mut pair = bed.connect();
    pair.exchange(100_000);
    bed.daemon.wait_state(pair.client_port(), &["relay"]);
    ip(&bed.net.client, "link set c0 down");
    pair.server.expect_reset(Duration::from_secs(30));
    bed.daemon
        .wait_status("nothing is relayed any more", |s| s.relayed_total == 1);
    assert!(bed.daemon.flows().is_empty());
}

#[test]
fn a_client_that_vanishes_is_noticed_by_probes() {
    vanish("van-probe", "keepalive = \"idle=1s,interval=1s,probes=2\"");
}

#[test]
fn without_probes_it_is_noticed_by_its_silence() {
    vanish("van-idle", "keepalive = \"off\"\nrelay_idle_timeout = \"2s\"");
}

#[test]
fn what_says_something_in_time_is_kept_and_what_does_not_is_ended() {
    let keys = "relay_idle_timeout = \"2s\"";
    let bed = Bed::with("van-keep", Default::default(), Policy::ON_DEMAND, |c| {
        c.with(keys)
    });
    let mut pair = bed.connect();
    pair.exchange(1_000);
    let mut last = Instant::now();
    for _ in 0..8 {
        // This test is about time itself.
        thread::sleep(Duration::from_millis(500));
        if last.elapsed() > Duration::from_secs(1) {
            // On a busy machine the next exchange may be too late already.
            break;
        }
        let before = Instant::now();
        pair.exchange(10);
        last = before;
    }
    pair.server.expect_reset(Duration::from_secs(30));
    pair.client.expect_reset(Duration::from_secs(30));
    assert!(last.elapsed() >= Duration::from_secs(2), "{:?}", last.elapsed());
}

/// A socket takes more bytes only when much of its queue is acknowledged. A slow reader needs longer than the limit for that.
#[test]
fn a_slow_reader_is_not_idle() {
    const LIMIT: Duration = Duration::from_secs(2);
    let bed = Bed::with("van-slow", Default::default(), Policy::ON_DEMAND, |c| {
        c.with("relay_idle_timeout = \"2s\"")
    });
    bed.net
        .client
        .sysctl("net.ipv4.tcp_rmem", "4096 16384 16384")
        .unwrap();
    let mut pair = bed.connect();
    pair.server.send(128 << 10);
    let (begin, mut last) = (Instant::now(), Instant::now());
    // This test is about time itself. On a busy machine the next read may be too late already.
    while begin.elapsed() < 3 * LIMIT && last.elapsed() < LIMIT / 2 {
        last = Instant::now();
        pair.client.split().1.receive_slowly(4 << 10, Some(8 << 10));
    }
    pair.client.receive((128 << 10) - pair.client.received());
    pair.exchange(1_000);
}

/// A trap was met that a dead daemon had set: the next one relays the connection, and no listener's limits are known.
#[test]
fn what_the_next_daemon_relays_is_ended_when_nothing_passes() {
    let mut bed = Bed::with("van-orphan", Default::default(), Policy::DETACHED, |c| {
        c.with("unsplice = \"data=client\"").set("idle_timeout = \"5s\"")
    });
    let mut pair = bed.connect_spliced("detached");
    let is_up = AtomicBool::new(false);
    thread::scope(|scope| {
        let Pair { client, server } = &mut pair;
        let is_up = &is_up;
        // It must not be idle before.
        scope.spawn(move || {
            while !is_up.load(Ordering::Relaxed) {
                server.send(10);
                client.receive(10);
                thread::sleep(Duration::from_millis(100));
            }
        });
        let _end = Raise(is_up);
        bed.daemon.kill();
        bed.daemon.start(&bed.net.forwarder);
    });
    pair.client.send(10);
    pair.server.receive(10);
    bed.daemon.wait_state(pair.client_port(), &["relay"]);
    pair.server.expect_reset(Duration::from_secs(30));
    pair.client.expect_reset(Duration::from_secs(30));
}
