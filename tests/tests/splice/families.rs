//! Pairs with one leg of IPv4 and one of IPv6, both ways around: spliced to both depths, and back. Over paths that become
//! narrow, with the error of either family.

use std::{
    net::{SocketAddr, TcpListener},
    thread,
};

use longsplice_engine::Side;
use longsplice_lab::{Family, Line, LineOptions};
use longsplice_tests::{
    Config, Daemon, Pair, Policy,
    beyond::{Beyond, exchange_until_told, narrow_a_leg},
    veth_line,
};

use crate::spliced_rules::{DROP, all_passes, clear, load, nothing_passes, rule};

const BYTES: u64 = 2 << 20;
/// Bytes enough for many segments of a narrow link.
const SOME: u64 = 200_000;
const SIDES: [Side; 2] = [Side::Client, Side::Server];
/// MTU of a narrow link; the least for IPv6 is 1280.
const NARROW: u16 = 1300;

/// Makes nodes with addresses of both families.
fn net(name: &str, offloads: bool) -> Line {
    let family = Family::V6;
    veth_line(
        name,
        LineOptions {
            family,
            offloads,
            ..LineOptions::default()
        },
    )
}

fn other(family: Family) -> Family {
    match family {
        Family::V4 => Family::V6,
        Family::V6 => Family::V4,
    }
}

/// A daemon between a client of one family and a server of the other.
struct Across {
    // Fields are dropped in this order: the daemon ends before its namespace.
    daemon: Daemon,
    listener: TcpListener,
    front: SocketAddr,
    net: Line,
}

impl Across {
    fn new(net: Line, client: Family, policy: Policy<'_>) -> Across {
        let target = SocketAddr::from((other(client).addr(net.server_addr), 7000));
        let listener = net.server.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let listen = SocketAddr::from((client.unspecified(), 8080));
        let config = Config::new().listener(listen, target, policy.splice, policy.detach);
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        Across {
            daemon,
            listener,
            front: (client.addr(net.forwarder_client_addr), 8080).into(),
            net,
        }
    }

    fn connect(&self) -> Pair {
        Pair::connect(&self.net.client, self.front, &self.listener)
    }

    fn connect_spliced(&self, state: &str) -> Pair {
        let pair = self.connect();
        self.daemon.wait_state(pair.client_port(), &[state]);
        pair
    }

    /// Asserts that no packet was dropped for a reason that would be a mistake here.
    fn assert_clean(&self) {
        let status = self.daemon.status();
        for verdict in [
            "drop_rewrite",
            "drop_no_route",
            "drop_malformed",
            "drop_checksum",
            "drop_too_big",
        ] {
            assert_eq!(status.segments(verdict), 0, "{verdict} {status:?}");
        }
        for node in [&self.net.client, &self.net.server] {
            let counters = node.snmp().unwrap();
            assert_eq!(counters.get("Tcp.InCsumErrors"), 0, "{counters:?}");
        }
    }
}

/// Goes from relay to a depth and back, twice, with bytes under way at each change, and with segments alone.
fn to_and_fro(across: &Across, state: &str) {
    let mut pair = across.connect();
    let port = pair.client_port();
    pair.exchange(10_000);
    for _ in 0..2 {
        thread::scope(|scope| {
            scope.spawn(|| pair.exchange(BYTES));
            across.daemon.splice_to(port, state);
            across.daemon.take_back(port, state);
        });
        across.daemon.splice_to(port, state);
        pair.exchange(BYTES);
        across.daemon.take_back(port, state);
    }
    pair.exchange(10_000);
    pair.close();
    let status = across.daemon.wait_status("all returns", |s| s.resumed_total == 4);
    assert_eq!(status.spliced_total, 4, "{status:?}");
    assert!(status.segments("forwarded") > 0, "{status:?}");
    across.assert_clean();
}

#[test]
fn legs_of_two_families_are_spliced_and_come_back() {
    for client in Family::BOTH {
        for (policy, state) in Policy::BOTH_ON_DEMAND {
            to_and_fro(&Across::new(net("across", true), client, policy), state);
        }
    }
}

#[test]
fn the_same_segment_by_segment() {
    for client in Family::BOTH {
        let across = Across::new(net("across-plain", false), client, Policy::ON_DEMAND);
        to_and_fro(&across, "detached");
    }
}

/// A flow outlives the daemon, is adopted, and comes back.
#[test]
fn a_detached_flow_outlives_the_daemon() {
    for client in Family::BOTH {
        let mut across = Across::new(net("across-kill", true), client, Policy::DETACHED);
        let mut pair = across.connect_spliced("detached");
        across.daemon.kill();
        pair.exchange(BYTES);
        across.daemon.start(&across.net.forwarder);
        assert_eq!(across.daemon.status().adopted_total, 1);
        pair.exchange(BYTES);
        across.daemon.take_back(pair.client_port(), "detached");
        pair.exchange(BYTES);
        pair.close();
        across.daemon.wait_reaped();
    }
}

/// A rule of one end's address drops what both ends send, each in its own family.
#[test]
fn a_rule_for_spliced_flows_holds_on_both_legs() {
    for client in Family::BOTH {
        for (policy, state) in [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")] {
            let across = Across::new(net("across-rule", true), client, policy);
            let mut pair = across.connect_spliced(state);
            let from = pair.client.stream.local_addr().unwrap().ip();
            load(&across.daemon, &rule(from, "stop", DROP)).unwrap();
            nothing_passes(&mut pair);
            clear(&across.daemon);
            all_passes(&mut pair);
            pair.exchange(BYTES);
            pair.close();
            across.assert_clean();
        }
    }
}

/// A server on the forwarder itself.
#[test]
fn the_server_is_local() {
    for client in Family::BOTH {
        let net = net("across-local", true);
        let target = SocketAddr::from((other(client).loopback(), 7000));
        let listener = net.forwarder.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let listen = SocketAddr::from((client.unspecified(), 8080));
        let config = Config::new().listener(listen, target, "now", "now");
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        let front = (client.addr(net.forwarder_client_addr), 8080).into();
        let mut pair = Pair::connect(&net.client, front, &listener);
        daemon.wait_state(pair.client_port(), &["detached"]);
        pair.exchange(BYTES);
        pair.close();
    }
}

/// The forwarder finds segments too big for a leg, and tells their sender in its own family.
#[test]
fn a_leg_becomes_narrow() {
    for client in Family::BOTH {
        for (side, offloads) in [(Side::Client, true), (Side::Server, false)] {
            let across = Across::new(net("across-mtu", offloads), client, Policy::DETACHED);
            let mut pair = across.connect_spliced("detached");
            pair.exchange(SOME);
            narrow_a_leg(&across.net, side, NARROW);
            exchange_until_told(&across.daemon, &mut pair, SOME);
            pair.close();
        }
    }
}

/// A router tells in one family that packets are too big; the sender hears of it in the other.
#[test]
fn a_link_behind_a_router_becomes_narrow() {
    for far in Family::BOTH {
        for side in SIDES {
            let net = net("across-router", true);
            let bed = Beyond::across(net, side, [far, other(far)], Policy::DETACHED);
            let mut pair = bed.connect_spliced("detached");
            pair.exchange(SOME);
            assert_eq!(bed.daemon.status().segments("icmp_translated"), 0);
            bed.narrow_the_far_link(NARROW);
            pair.exchange(SOME);
            let status = bed.daemon.status();
            assert!(
                status.segments("icmp_translated") > 0,
                "{far:?} {side:?} {status:?}"
            );
            assert_eq!(status.segments("drop_too_big"), 0, "{status:?}");
            pair.close();
        }
    }
}
