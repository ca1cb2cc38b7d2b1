//! Splices at random moments of connections at full rate, both ways: every byte arrives, once and in order.

use std::{mem, net::SocketAddr, thread, time::Duration};

use longsplice_lab::{ConnectionSpec, Line, Traffic, TrafficServer, TrafficSpec};
use longsplice_tests::{Bed, Config, Daemon, Policy, SOON, assert_all_ok, eventually, rng, veth_line};

const CONNECTIONS: usize = 60;
const LISTENERS: usize = 12;
const PARALLEL: usize = 4;
const BYTES: u64 = 16 << 20;

/// Rounds of connections, of which one is enough.
const ROUNDS: u64 = 5;

/// Detach policies: the sockets are closed as soon as they are drained, never, or while segments bypass them.
const DEPTHS: [&str; 3] = ["now", "never", "after=100ms"];

fn listener(net: &Line, number: usize) -> SocketAddr {
    (net.forwarder_client_addr, 8080 + number as u16).into()
}

/// Runs the connections of every listener, `PARALLEL` listeners at a time, and checks the received bytes.
fn run(net: &Line, seed: u64) {
    let turn = |turn: usize| {
        let each = LISTENERS / PARALLEL;
        for number in turn * each..(turn + 1) * each {
            let mut spec = TrafficSpec::same(CONNECTIONS / LISTENERS, ConnectionSpec::both_ways(BYTES));
            spec.parallel = 1;
            spec.seed = seed ^ number as u64;
            let outcome = Traffic::run(&net.client, listener(net, number), &spec);
            assert_all_ok(&outcome.unwrap());
        }
    };
    thread::scope(|scope| {
        for number in 0..PARALLEL {
            scope.spawn(move || turn(number));
        }
    });
}

/// Waits for the end of all connections of so many rounds. Returns how many were over before they could be spliced: all
/// others were spliced.
fn missed(daemon: &Daemon, rounds: u64) -> u64 {
    let connections = rounds * CONNECTIONS as u64;
    let status = daemon.wait_status("all connections to end", |s| {
        s.listeners.iter().all(|l| l.open == 0)
    });
    assert_eq!(status.accepted_total, connections);
    let too_late = ["ended_before_policy", "coupling_timeout", "not_established"];
    let missed: u64 = too_late.iter().map(|reason| status.relayed(reason)).sum();
    assert_eq!(status.relayed_total, missed, "{status:?}");
    assert_eq!(status.spliced_total + missed, connections, "{status:?}");
    assert_eq!(status.segments("aborted"), 0, "{status:?}");
    missed
}

fn assert_all_ended(daemon: &Daemon) {
    daemon.wait_reaped();
    let status = daemon.status();
    // A late duplicate that finds its end gone is answered with a reset: after the close, and harmless.
    let ended = status.ended("closed") + status.ended("reset");
    assert_eq!(ended, status.spliced_total, "{status:?}");
}

#[test]
fn after_a_random_number_of_bytes() {
    let mut rng = rng();
    let net = veth_line("load-bytes", Default::default());
    let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
    let mut config = Config::new();
    for number in 0..LISTENERS {
        // A connection has 32 MiB: splice early enough that both ends are still busy.
        let after = format!("after={}", rng.u64(0..8 << 20));
        config = config.listener(
            listener(&net, number),
            server.addr(),
            &after,
            DEPTHS[number % DEPTHS.len()],
        );
    }
    let mut daemon = Daemon::of(&config);
    daemon.start(&net.forwarder);
    // A connection may be over before a daemon that is short of processors has had the time to couple it: a round counts in
    // which that happened to few.
    let mut before = 0;
    let nearly_all = (1..=ROUNDS).any(|round| {
        run(&net, rng.u64(..));
        let all = missed(&daemon, round);
        all - mem::replace(&mut before, all) <= CONNECTIONS as u64 / 20
    });
    assert!(nearly_all, "{:?}", daemon.status());
    assert_all_ended(&daemon);
}

/// Splices by command, as `longsplice splice ID` does. The transfer goes on until the splice is made, and then
/// some more.
#[test]
fn by_command_at_a_random_time() {
    const PAIRS: u64 = 16;
    let mut rng = rng();
    for policy in [Policy::ON_DEMAND, Policy::ON_DEMAND_DORMANT] {
        let bed = Bed::new("load-command", policy);
        for _ in 0..PAIRS {
            let delay = Duration::from_micros(rng.u64(0..30_000));
            let mut pair = bed.connect();
            let port = pair.client_port();
            thread::scope(|scope| {
                let commands = scope.spawn(|| {
                    let flow = bed.daemon.wait_state(port, &["relay"]);
                    thread::sleep(delay);
                    eventually("the splice", SOON, || {
                        let now = bed.daemon.wait_flow("the flow", |f| f.id == flow.id);
                        if now.state == "relay" {
                            // An attempt may fail: the windows could not be coupled in time.
                            let _ = bed.daemon.request_splice(flow.id);
                        }
                        now.is_spliced().then_some(())
                    });
                });
                while !commands.is_finished() {
                    pair.exchange(BYTES / 2);
                }
            });
            pair.exchange(BYTES / 2);
            pair.close();
        }
        let status = bed
            .daemon
            .wait_status("all to be spliced", |s| s.spliced_total == PAIRS);
        assert_eq!(
            (status.accepted_total, status.relayed_total),
            (PAIRS, 0),
            "{status:?}"
        );
        assert_eq!(status.segments("aborted"), 0, "{status:?}");
    }
}
