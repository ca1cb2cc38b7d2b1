//! Neighbors, routes and interfaces change around a spliced flow. The flow follows; and new connections use the present
//! route, although the engine remembers the kernel's earlier answer about their target.

use longsplice_lab::{Family, Line, Namespace};
use longsplice_repair::options;
use longsplice_tests::{Bed, Pair, Policy, Raise, addr, family, ip, nodad, soon, veth_line};
use socket2::SockRef;
use std::{
    fmt::Debug,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Few enough bytes to fit into the buffers of the sockets.
const BYTES: u64 = 100_000;
const BOTH: [(Policy<'static>, &str); 2] = [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")];

#[test]
fn a_neighbour_has_another_hardware_address() {
    for (policy, state) in BOTH {
        let bed = Bed::new("route-mac", policy);
        let mut pair = bed.connect_spliced(state);
        pair.exchange(BYTES);
        ip(&bed.net.server, "link set s0 address 02:00:00:00:00:51");
        ip(&bed.net.forwarder, "neigh flush dev f1");
        // Only the forwarder can find the server now: its own sockets have nothing to send.
        pair.client.send(BYTES);
        pair.server.receive(BYTES);
        ip(&bed.net.client, "link set c0 address 02:00:00:00:00:52");
        ip(&bed.net.forwarder, "neigh flush dev f0");
        pair.server.send(BYTES);
        pair.client.receive(BYTES);
        pair.exchange(BYTES);
        pair.close();
    }
}

/// Adds a second path between forwarder and server, with addresses of its own.
fn second_way(net: &Line) {
    further_link(net, &net.server, ["f2", "s2"], 3);
}

/// Adds a link between the forwarder and another node, with the addresses 198.18.N.2 and 198.18.N.1.
pub(crate) fn further_link(net: &Line, peer: &Namespace, [ours, theirs]: [&str; 2], n: u8) {
    let add = format!(
        "link add {ours} type veth peer name {theirs} netns {}",
        peer.name()
    );
    ip(&net.forwarder, &add);
    let nodad = nodad(net.family());
    for (node, device, host) in [(&net.forwarder, ours, 2), (peer, theirs, 1)] {
        ip(
            node,
            &format!("addr add 198.18.{n}.{host}/24 dev {device} {nodad}"),
        );
        ip(node, &format!("link set {device} up"));
    }
}

fn wait_watched(bed: &Bed, interface: &str) {
    soon("the new interface to be watched", || {
        bed.daemon
            .status()
            .health
            .interfaces
            .iter()
            .any(|i| i == interface)
    });
}

#[test]
fn a_route_moves_to_another_interface() {
    for (policy, state) in BOTH {
        let bed = Bed::new("route-move", policy);
        let mut pair = bed.connect_spliced(state);
        pair.exchange(BYTES);
        second_way(&bed.net);
        wait_watched(&bed, "f2");
        ip(
            &bed.net.forwarder,
            "route replace 198.18.2.1/32 via 198.18.3.1 dev f2",
        );
        ip(
            &bed.net.server,
            "route replace 198.18.2.2/32 via 198.18.3.2 dev s2",
        );
        // Rule out the old path.
        ip(&bed.net.forwarder, "link set f1 down");
        pair.exchange(BYTES);
        pair.close();
    }
}

/// The server's route moves first: segments come in where no route has led yet.
#[test]
fn a_route_moves_to_an_interface_that_had_none_while_data_flow() {
    const ENDS: [(&str, &str); 2] = [("s2", "02:00:00:00:00:53"), ("f2", "02:00:00:00:00:54")];
    for (policy, state) in BOTH {
        let bed = Bed::new("route-bare", policy);
        let (server, forwarder) = (&bed.net.server, &bed.net.forwarder);
        let mut pair = bed.connect_spliced(state);
        ip(
            forwarder,
            &format!("link add f2 type veth peer name s2 netns {}", server.name()),
        );
        for (node, (device, mac)) in [server, forwarder].into_iter().zip(ENDS) {
            ip(node, &format!("link set {device} address {mac} up"));
        }
        wait_watched(&bed, "f2");
        let moved = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !moved.load(Ordering::Relaxed) {
                    pair.exchange(BYTES);
                }
            });
            let _end = Raise(&moved);
            for (node, device, to, mac) in [
                (server, ENDS[0].0, "198.18.2.2", ENDS[1].1),
                (forwarder, ENDS[1].0, "198.18.2.1", ENDS[0].1),
            ] {
                ip(
                    node,
                    &format!("neigh replace {to} lladdr {mac} nud permanent dev {device}"),
                );
                ip(node, &format!("route replace {to}/32 dev {device}"));
            }
        });
        // Rule out the old path.
        ip(forwarder, "link set f1 down");
        pair.exchange(BYTES);
        pair.close();
    }
}

#[test]
fn an_interface_that_comes_later_is_watched() {
    let net = veth_line("route-new", Default::default());
    let new_target = SocketAddr::from((addr("198.18.3.1"), 7000));
    let front = (family().unspecified(), 8081).into();
    let bed = Bed::on(net, Policy::DETACHED, |config| {
        config.listener(front, new_target, "now", "now")
    });
    assert!(!bed.daemon.status().health.interfaces.contains(&"f2".to_owned()));
    second_way(&bed.net);
    wait_watched(&bed, "f2");
    let listener = bed
        .net
        .server
        .run(|| TcpListener::bind(new_target))
        .unwrap()
        .unwrap();
    let front = (bed.net.forwarder_client_addr, 8081).into();
    let mut pair = Pair::connect(&bed.net.client, front, &listener);
    bed.daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
    // A deleted interface is no longer listed.
    pair.close();
    ip(&bed.net.forwarder, "link del f2");
    soon("the old interface to be let go of", || {
        bed.daemon.status().health.interfaces.iter().all(|i| i != "f2")
    });
}

/// Returns the address that the server sees.
fn source(pair: &Pair) -> IpAddr {
    pair.server.stream.peer_addr().unwrap().ip()
}

/// Time for which the engine remembers a route without a notice of a change (`LIFETIME` in its `routes.rs`).
const REMEMBERED: Duration = Duration::from_secs(1);

/// Makes changes (words of `ip` at the forwarder), one after the other, repeatedly. New connections must follow each at
/// the kernel's notice, before the remembered route expires. A notice that a busy machine handles late proves nothing,
/// so one success in several attempts is enough for each change.
fn followed_at_the_notice<T: PartialEq + Debug>(bed: &Bed, changes: &[(&str, T)], seen: impl Fn(&Pair) -> T) {
    const TIMES: usize = 5;
    let connect = || {
        let mut pair = bed.connect();
        pair.exchange(BYTES);
        let seen = seen(&pair);
        pair.close();
        seen
    };
    let mut in_time = vec![false; changes.len()];
    for _ in 0..TIMES {
        for ((line, expected), in_time) in changes.iter().zip(&mut in_time) {
            // By then the remembered route has expired: the next connection looks it up again, at `start` or later.
            thread::sleep(REMEMBERED);
            let start = Instant::now();
            let before = connect();
            ip(&bed.net.forwarder, line);
            soon("new connections to follow", || connect() == *expected);
            let took = start.elapsed();
            assert_ne!(before, *expected, "{line} changes nothing");
            *in_time |= took < REMEMBERED;
        }
        if in_time.iter().all(|in_time| *in_time) {
            return;
        }
    }
    panic!("not within {REMEMBERED:?} in {TIMES} times: {changes:?}, {in_time:?}");
}

/// Gives the forwarder a second address toward the server, and makes its packets come from there.
fn leave_from_another_address(bed: &Bed) -> IpAddr {
    let nodad = nodad(family());
    ip(
        &bed.net.forwarder,
        &format!("addr add 198.18.2.9/32 dev f1 {nodad}"),
    );
    ip(
        &bed.net.forwarder,
        "route replace 198.18.2.1/32 dev f1 src 198.18.2.9",
    );
    addr("198.18.2.9")
}

#[test]
fn a_new_connection_leaves_from_where_the_route_says() {
    let bed = Bed::new("route-source", Policy::DETACHED);
    let old = source(&bed.connect_spliced("detached"));
    let new = leave_from_another_address(&bed);
    soon("connections to leave from the new address", || {
        source(&bed.connect()) == new
    });
    followed_at_the_notice(
        &bed,
        &[
            ("route replace 198.18.2.1/32 dev f1 src 198.18.2.2", old),
            ("route replace 198.18.2.1/32 dev f1 src 198.18.2.9", new),
        ],
        source,
    );
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(BYTES);
    assert_eq!(source(&pair), new);
    pair.close();
}

#[test]
fn an_address_that_is_gone_is_not_left_from() {
    for _ in 0..5 {
        let bed = Bed::new("route-gone", Policy::DETACHED);
        let old = bed.connect_spliced("detached");
        let new = leave_from_another_address(&bed);
        ip(&bed.net.forwarder, "addr del 198.18.2.2/24 dev f1");
        // Test the very next connection, with or without the notice.
        let mut pair = bed.connect_spliced("detached");
        assert_eq!(source(&pair), new, "after {}", source(&old));
        pair.exchange(BYTES);
        pair.close();
    }
}

#[test]
fn a_way_that_takes_longer_segments_than_before_does_not_offer_them_to_a_client_that_cannot() {
    let headers = if family() == Family::V4 { 40 } else { 60 };
    let net = veth_line("route-mtu", Default::default());
    ip(&net.client, "link set c0 mtu 1400");
    ip(&net.forwarder, "link set f0 mtu 1400");
    let bed = Bed::on(net, Policy::DETACHED, |c| c);
    // Compute it as the server sends: its peer's MSS, less the timestamps.
    let longest = |pair: &Pair| options::max_segment(&pair.server.stream).unwrap() + 12 + headers;
    assert_eq!(longest(&bed.connect()), 1400);
    // The MTU of the path, and then again that of the client.
    followed_at_the_notice(
        &bed,
        &[("link set f1 mtu 1300", 1300), ("link set f1 mtu 1500", 1400)],
        longest,
    );
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(BYTES);
    pair.close();
}

/// A rule sends a leg over another link than the main table does, by its source address or by a port.
#[test]
fn a_rule_sends_a_leg_over_another_link() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        for (leg, selector) in [
            (1, "from 198.18.1.2"),
            (1, "ipproto tcp sport 8080"),
            (2, "from 198.18.2.2"),
            (2, "ipproto tcp dport 7000"),
        ] {
            let net = veth_line("route-rule", Default::default());
            let (peer, old) = match leg {
                1 => (&net.client, "f0"),
                _ => (&net.server, "f1"),
            };
            further_link(&net, peer, ["f2", "x2"], 3);
            let family = if net.family() == Family::V6 { "-6" } else { "-4" };
            let ours = |line: String| ip(&net.forwarder, &format!("{family} {line}"));
            ours(format!(
                "route add 198.18.{leg}.1/32 via 198.18.3.1 dev f2 table 100"
            ));
            ours(format!("rule add {selector} to 198.18.{leg}.1 lookup 100"));
            // Let the old link lead nowhere: segments that leave by it are lost.
            ours(format!(
                "neigh replace 198.18.{leg}.1 lladdr 02:00:00:00:00:99 nud permanent dev {old}"
            ));
            ip(
                peer,
                &format!("{family} route add 198.18.{leg}.2/32 via 198.18.3.2 dev x2"),
            );
            let bed = Bed::on(net, policy, |c| c);
            wait_watched(&bed, "f2");
            let mut pair = bed.connect();
            for _ in 0..2 {
                pair.exchange(BYTES);
                bed.splice(&pair, state);
                pair.exchange(BYTES);
                bed.daemon.take_back(pair.client_port(), state);
            }
            pair.exchange(BYTES);
            pair.close();
            let status = bed.daemon.status();
            assert_eq!(status.segments("drop_no_route"), 0, "{selector}: {status:?}");
            assert_eq!(status.resumed_total, 2, "{selector}: {status:?}");
        }
    }
}

/// A router has many routes, and they change all the time: the daemon asks the kernel for none of them that it does not need.
#[test]
fn what_a_large_table_holds_is_not_read() {
    const ROUTES: &str = "for x in $(seq 0 195); do for y in $(seq 0 255); do \
                              echo route add 198.19.$x.$y/32 dev f1; done; done | ip -batch -";
    let bed = Bed::new("route-many", Policy::DETACHED);
    let peak = || bed.daemon.memory_kib("VmHWM");
    let before = peak();
    let added = bed.net.forwarder.command("sh").args(["-c", ROUTES]).output();
    assert!(added.unwrap().status.success());
    second_way(&bed.net);
    wait_watched(&bed, "f2");
    let grown = peak() - before;
    assert!(grown < 8 << 10, "{grown} KiB");
}

/// An end may send with just the hops that it needs as far as the forwarder: relayed, each leg has its own.
#[test]
fn an_end_that_sends_with_one_hop_is_heard_behind_the_forwarder() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let bed = Bed::new("route-hops", policy);
        let mut pair = bed.connect();
        for end in [&pair.client.stream, &pair.server.stream] {
            let socket = SockRef::from(end);
            match family() {
                Family::V4 => socket.set_ttl_v4(1).unwrap(),
                Family::V6 => socket.set_unicast_hops_v6(1).unwrap(),
            }
        }
        pair.exchange(BYTES);
        bed.splice(&pair, state);
        pair.exchange(BYTES);
        pair.close();
        bed.daemon.wait_reaped();
        assert_eq!(bed.daemon.status().segments("drop_ttl"), 0);
    }
}
