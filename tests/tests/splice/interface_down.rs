//! An interface of the forwarder goes down, or loses its addresses, and comes back: its flows go on.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use longsplice_lab::{ConnectionSpec, Line, LineOptions, Traffic, TrafficServer, TrafficSpec};
use longsplice_tests::{
    Bed, Config, Daemon, Pair, Policy, SOON, assert_all_ok, ip, patient, rng, soon, times, veth_line,
};

use crate::firewall::guarded;

const BYTES: u64 = 1 << 20;

const BOTH: [(Policy<'static>, &str); 2] = [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")];

/// Forwarder's interfaces, and its addresses there as IPv4.
const INTERFACES: [(&str, &str); 2] = [("f0", "198.18.1.2/24"), ("f1", "198.18.2.2/24")];

fn watched(bed: &Bed) -> Vec<String> {
    bed.daemon.status().health.interfaces
}

/// Waits until the daemon has looked at all interfaces after the previous change: it has found a new one.
fn wait_seen(bed: &Bed, name: &str) {
    ip(
        &bed.net.forwarder,
        &format!("link add {name} type veth peer name {name}-peer"),
    );
    ip(&bed.net.forwarder, &format!("addr add 198.18.9.2/24 dev {name}"));
    ip(&bed.net.forwarder, &format!("link set {name} up"));
    soon("the new interface to be watched", || {
        watched(bed).iter().any(|one| one == name)
    });
    ip(&bed.net.forwarder, &format!("link del {name}"));
}

/// Checks that a pair can be unspliced and spliced again, with data both ways each time.
fn works(bed: &Bed, pair: &mut Pair, state: &str) {
    pair.exchange(BYTES);
    let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
    bed.daemon.unsplice(flow.id).unwrap();
    pair.exchange(BYTES);
    bed.daemon.wait_state(pair.client_port(), &["relay"]);
    bed.daemon.splice(flow.id).unwrap();
    pair.exchange(BYTES);
    bed.daemon.wait_state(pair.client_port(), &[state]);
}

fn goes_away(name: &str, gone: impl Fn(&Bed, &str, &str), comes_again: impl Fn(&Bed, &str, &str)) {
    for (policy, state) in BOTH {
        for (interface, address) in INTERFACES {
            let bed = Bed::new(name, policy);
            let mut pairs: Vec<_> = (0..4).map(|_| bed.connect_spliced(state)).collect();
            pairs.iter_mut().for_each(|pair| pair.exchange(BYTES));
            gone(&bed, interface, address);
            // These bytes are under way all the while: they are retransmitted once the interface is back, maybe before
            // the daemon acts.
            for pair in &mut pairs {
                pair.client.send(1000);
                pair.server.send(1000);
            }
            wait_seen(&bed, "f8");
            assert!(
                watched(&bed).iter().any(|one| one == interface),
                "{interface} is let go of"
            );
            comes_again(&bed, interface, address);
            for pair in &mut pairs {
                pair.client.receive(1000);
                pair.server.receive(1000);
                works(&bed, pair, state);
                pair.close();
            }
        }
    }
}

#[test]
fn one_that_is_down_keeps_its_flows() {
    goes_away(
        "if-down",
        |bed, interface, _| drop(ip(&bed.net.forwarder, &format!("link set {interface} down"))),
        |bed, interface, address| {
            ip(&bed.net.forwarder, &format!("link set {interface} up"));
            // A downed interface has lost its IPv6 address.
            ip(
                &bed.net.forwarder,
                &format!("addr replace {address} dev {interface}"),
            );
        },
    );
}

#[test]
fn one_without_addresses_keeps_its_flows() {
    goes_away(
        "if-bare",
        |bed, interface, address| {
            drop(ip(
                &bed.net.forwarder,
                &format!("addr del {address} dev {interface}"),
            ))
        },
        |bed, interface, address| {
            ip(&bed.net.forwarder, &format!("addr add {address} dev {interface}"));
        },
    );
}

/// Number of times that an interface is lost while pairs are spliced and come back; `make soak` sets more.
const LOSSES: u64 = 2;

#[test]
fn pairs_that_come_and_go_outlive_the_loss_of_an_interface() {
    come_and_go(|| veth_line("if-cycle", LineOptions::default()));
}

#[test]
fn behind_a_stateful_firewall_they_do_too() {
    come_and_go(|| guarded("if-guard"));
}

/// Splices pairs and takes them back all the while, and takes an interface away meanwhile.
fn come_and_go(nodes: impl Fn() -> Line) {
    let losses = times("LONGSPLICE_LOSSES", LOSSES);
    for loss in 0..losses {
        let (interface, address) = INTERFACES[loss as usize % 2];
        let net = nodes();
        let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
        let front = (net.forwarder_client_addr, 8080).into();
        let config = Config::new().listener(front, server.addr(), "after=50ms", "after=100ms");
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        let mut rng = rng();
        let mut spec = TrafficSpec::same(6, ConnectionSpec::both_ways(8 << 20));
        spec.seed = rng.u64(..);
        for connection in &mut spec.connections {
            connection.stall = patient(SOON);
            // The transfer lasts longer than the loss.
            connection.to_server.send_rate = Some(2 << 20);
            connection.to_client.send_rate = Some(2 << 20);
        }
        let over = AtomicBool::new(false);
        let outcome = thread::scope(|scope| {
            let traffic = scope.spawn(|| Traffic::run(&net.client, front, &spec).unwrap());
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for flow in daemon.flows() {
                        // The flow may have changed meanwhile.
                        let _ = match flow.state.as_str() {
                            "relay" => daemon.request_splice(flow.id),
                            "dormant" | "detached" => daemon.unsplice(flow.id),
                            _ => Ok(()),
                        };
                    }
                    thread::sleep(Duration::from_millis(100));
                }
            });
            // On a busy host all traffic may have passed before.
            soon("returns", || {
                daemon.status().resumed_total >= 6 || traffic.is_finished()
            });
            ip(&net.forwarder, &format!("link set {interface} down"));
            thread::sleep(Duration::from_millis(rng.u64(500..6000)));
            ip(&net.forwarder, &format!("link set {interface} up"));
            ip(&net.forwarder, &format!("addr replace {address} dev {interface}"));
            let outcome = traffic.join();
            over.store(true, Ordering::Relaxed);
            outcome.unwrap()
        });
        assert_all_ok(&outcome);
        daemon.wait_reaped();
    }
}

#[test]
fn a_renamed_interface_is_shown_by_its_present_name() {
    let bed = Bed::new("interface-renamed", Policy::DETACHED);
    ip(&bed.net.forwarder, "link set f0 name wan0");
    soon("the new name to be shown", || {
        watched(&bed).iter().any(|name| name == "wan0")
    });
    assert!(!watched(&bed).contains(&"f0".to_owned()), "{:?}", watched(&bed));
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(BYTES);
    pair.close();
}
