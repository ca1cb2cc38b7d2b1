//! Legs over devices without Ethernet headers: tun, which stands for WireGuard and for tunnels of IP. On one leg or both,
//! in both families, with super-packets and without.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
};

use longsplice_engine::Side;
use longsplice_lab::{Family, Line, LineOptions, Namespace, Tunnel, TunnelEnd};
use longsplice_tests::{Bed, Pair, Policy, beyond::exchange_until_told, ip, veth_line};

const BYTES: u64 = 2 << 20;
/// Bytes enough for many segments of a narrow link.
const SOME: u64 = 200_000;
const SIDES: [Side; 2] = [Side::Client, Side::Server];
/// Legs that are tunnels.
const EACH: [&[Side]; 3] = [&[Side::Client], &[Side::Server], &SIDES];
/// A bed with tunnels beside its veth pairs; connections go through the tunnels.
struct Tunnelled {
    // Fields are dropped in this order: the daemon ends before its namespace.
    bed: Bed,
    front: SocketAddr,
    _tunnels: Vec<Tunnel>,
}

/// Makes a tunnel between the forwarder and a side; returns the addresses of the side and of the forwarder.
fn dig(net: &Line, side: Side, offloads: bool) -> (Tunnel, IpAddr, IpAddr) {
    let (node, network) = match side {
        Side::Client => (&net.client, 11),
        Side::Server => (&net.server, 12),
    };
    let addr = |host| net.family().addr(IpAddr::from([198, 18, network, host]));
    let (theirs, ours) = (addr(1), addr(2));
    let end = |namespace, device, addr| TunnelEnd {
        namespace,
        device,
        addr,
    };
    let ends = [
        end(node, "t0", theirs),
        end(&net.forwarder, device_of(side), ours),
    ];
    let tunnel = Tunnel::between(ends, 1500, offloads).unwrap();
    (tunnel, theirs, ours)
}

/// Returns the name of the forwarder's tun.
fn device_of(side: Side) -> &'static str {
    match side {
        Side::Client => "t1",
        Side::Server => "t2",
    }
}

impl Tunnelled {
    fn new(name: &str, family: Family, tunnels: &[Side], offloads: bool, policy: Policy<'_>) -> Tunnelled {
        let net = veth_line(
            name,
            LineOptions {
                family,
                offloads,
                ..LineOptions::default()
            },
        );
        let (mut front, mut server, mut held) = (net.forwarder_client_addr, net.server_addr, Vec::new());
        for &side in tunnels {
            let (tunnel, theirs, ours) = dig(&net, side, offloads);
            held.push(tunnel);
            match side {
                Side::Client => front = ours,
                Side::Server => server = theirs,
            }
        }
        let target = SocketAddr::from((server, 7001));
        let bed = Bed::toward(target, net, policy, |c| c);
        Tunnelled {
            front: (front, bed.front().port()).into(),
            bed,
            _tunnels: held,
        }
    }

    fn connect(&self) -> Pair {
        Pair::connect(&self.bed.net.client, self.front, &self.bed.listener)
    }
}

/// Returns the number of packets that a device has sent.
fn sent_by(node: &Namespace, device: &str) -> u64 {
    let text = ip(node, &format!("-s -o link show dev {device}"));
    let after = text.split("TX:").nth(1).unwrap_or_else(|| panic!("{text}"));
    let numbers: Vec<u64> = after.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    numbers[1]
}

/// Goes from relay to a depth and back, three times, with bytes under way at each change.
fn to_and_fro(tunnelled: &Tunnelled, state: &str) {
    let daemon = &tunnelled.bed.daemon;
    let mut pair = tunnelled.connect();
    let port = pair.client_port();
    pair.exchange(10_000);
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| pair.exchange(BYTES));
            daemon.splice_to(port, state);
            daemon.take_back(port, state);
        });
        // All of it forwarded, none by a socket.
        daemon.splice_to(port, state);
        pair.exchange(BYTES);
        daemon.take_back(port, state);
    }
    pair.exchange(10_000);
    pair.close();
    let status = daemon.wait_status("all returns", |s| s.resumed_total == 6);
    assert_eq!(status.spliced_total, 6, "{status:?}");
    for verdict in ["drop_rewrite", "drop_no_route", "drop_malformed", "drop_checksum"] {
        assert_eq!(status.segments(verdict), 0, "{verdict} {status:?}");
    }
    assert!(status.segments("forwarded") > 0, "{status:?}");
}

#[test]
fn a_connection_over_tunnels_is_spliced_and_comes_back() {
    for tunnels in EACH {
        for (policy, state) in Policy::BOTH_ON_DEMAND {
            let tunnelled = Tunnelled::new("bare", Family::V4, tunnels, true, policy);
            to_and_fro(&tunnelled, state);
            for &side in tunnels {
                let sent = sent_by(&tunnelled.bed.net.forwarder, device_of(side));
                assert!(sent > 100, "{side:?}: {sent} packets");
            }
        }
    }
}

#[test]
fn the_same_over_ipv6() {
    for tunnels in EACH {
        let tunnelled = Tunnelled::new("bare-v6", Family::V6, tunnels, true, Policy::ON_DEMAND);
        to_and_fro(&tunnelled, "detached");
    }
}

#[test]
fn the_same_segment_by_segment() {
    for tunnels in EACH {
        let tunnelled = Tunnelled::new("bare-plain", Family::V4, tunnels, false, Policy::ON_DEMAND);
        to_and_fro(&tunnelled, "detached");
    }
}

/// The forwarder finds segments too big for a leg, and tells their sender: out of a tunnel, and into one.
#[test]
fn a_leg_becomes_narrow() {
    for (family, tunnels) in [(Family::V4, EACH[0]), (Family::V6, EACH[2])] {
        for narrow in SIDES {
            let tunnelled = Tunnelled::new("bare-mtu", family, tunnels, true, Policy::DETACHED);
            let mut pair = tunnelled.connect();
            tunnelled.bed.daemon.wait_state(pair.client_port(), &["detached"]);
            pair.exchange(SOME);
            let device = match (tunnels.contains(&narrow), narrow) {
                (true, _) => device_of(narrow),
                (false, Side::Client) => "f0",
                (false, Side::Server) => "f1",
            };
            let forwarder = &tunnelled.bed.net.forwarder;
            ip(forwarder, &format!("link set {device} mtu 1300"));
            exchange_until_told(&tunnelled.bed.daemon, &mut pair, SOME);
            pair.close();
        }
    }
}

/// The daemon dies; its successor finds the flow, and brings it back.
#[test]
fn a_detached_flow_outlives_the_daemon() {
    let mut tunnelled = Tunnelled::new("bare-kill", Family::V4, &SIDES, true, Policy::DETACHED);
    let mut pair = tunnelled.connect();
    tunnelled.bed.daemon.wait_state(pair.client_port(), &["detached"]);
    tunnelled.bed.daemon.kill();
    pair.exchange(BYTES);
    tunnelled.bed.daemon.start(&tunnelled.bed.net.forwarder);
    assert_eq!(tunnelled.bed.daemon.status().adopted_total, 1);
    pair.exchange(BYTES);
    let flow = tunnelled.bed.daemon.wait_state(pair.client_port(), &["detached"]);
    tunnelled.bed.daemon.unsplice(flow.id).unwrap();
    tunnelled
        .bed
        .daemon
        .wait_state(pair.client_port(), &["relay", "undraining"]);
    pair.exchange(BYTES);
    pair.close();
}
