//! Firewalls on the accelerator's node that track connections: the daemon exempts what it takes over by a table of its own, which
//! comes when something is tracked, and goes with the process.

use std::{
    net::IpAddr,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use longsplice_engine::Side;
use longsplice_lab::{Emulated, Family, Line, LineOptions, Namespace, not_run};
use longsplice_tests::{SOON, blind::Blind, nft, rng, soon, veth_line};

use crate::{
    accelerate::{Finish, Node, long_path, passed_through, totals},
    accelerate_forged::{SYN_RECEIVED, in_state},
    accelerate_semantics::{DEPTHS, Depth},
};

/// Drops what connection tracking finds invalid, and nothing else.
pub(crate) const DROPS_INVALID: &str = "
table inet firewall {
    chain in { type filter hook input priority 0
        ct state invalid drop
    }
    chain out { type filter hook output priority 0
        ct state invalid drop
    }
}";

/// Drops by default.
const EXAMPLE: &str = include_str!("../../../examples/accelerate.nft");

/// Returns true if the kernel tracks connections. What it cannot run does not count as passed.
pub(crate) fn tracks() -> bool {
    let tracks = Path::new("/proc/sys/net/netfilter").exists();
    if !tracks {
        not_run("the kernel has no connection tracking");
    }
    tracks
}

/// Returns the number of packets that a named counter of a table has seen.
pub(crate) fn packets(namespace: &Namespace, table: &str, counter: &str) -> u64 {
    let listed = nft(namespace, &format!("list counter inet {table} {counter}"));
    let mut words = listed.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}

/// Returns the number of tables of the daemon.
fn tables(node: &Node<Emulated>) -> usize {
    let listed = nft(&node.net.forwarder, "list tables");
    let ours = |line: &&str| line.contains(&format!(" longsplice-{}", node.daemon.instance()));
    listed.lines().filter(ours).count()
}

/// Behind either firewall connections pass in each state, with strict validation of sources, marks included. Reloading the
/// firewall does no harm.
#[test]
fn firewalls_are_passed_in_each_state() {
    if !tracks() {
        return;
    }
    for (family, firewall) in [
        (Family::V4, DROPS_INVALID),
        (Family::V4, EXAMPLE),
        (Family::V6, EXAMPLE),
    ] {
        let link = || "rtt20".parse().unwrap();
        let net = Emulated::of(family, "acc-wall", link(), link()).unwrap();
        nft(&net.forwarder, firewall);
        for name in ["rp_filter", "src_valid_mark"] {
            let name = format!("net.ipv4.conf.all.{name}");
            net.forwarder.sysctl(&name, "1").unwrap();
        }
        let node = Node::new(net, &[]);
        for depth in DEPTHS {
            let mut pair = node.connect();
            depth.reach(&node, &mut pair);
            pair.exchange(100_000);
            nft(&node.net.forwarder, "flush ruleset");
            nft(&node.net.forwarder, firewall);
            pair.exchange(100_000);
            pair.close();
        }
        assert_eq!(tables(&node), 1);
        let (taken, released) = totals(&node.daemon.status());
        assert!(taken == 4 && released >= 2, "{taken} and {released}");
    }
}

/// Drops by default on input, as many a router does, and says nothing of the mark.
const DROPS_ON_INPUT: &str = "
table inet firewall {
    chain in { type filter hook input priority 0; policy drop;
        meta l4proto ipv6-icmp accept
        ct state established,related accept
    }
    chain forward { type filter hook forward priority 0; policy drop;
        meta l4proto ipv6-icmp accept
        ct state established,related accept
        ct state new tcp flags & (syn | ack) == syn accept
    }
}";

/// Drops by default on output.
const DROPS_ON_OUTPUT: &str = "
table inet firewall {
    chain out { type filter hook output priority 0; policy drop;
        meta l4proto ipv6-icmp accept
        ct state new,established,related accept
    }
}";

/// Drops the segments of the node's sockets: the first connection is given back, others are not taken over, and all are as
/// without the node. The client or the server speaks first. The log names the remedy once.
#[test]
fn a_firewall_that_drops_by_default_costs_no_connection() {
    if !tracks() {
        return;
    }
    for (family, firewall) in [
        (Family::V4, DROPS_ON_INPUT),
        (Family::V6, DROPS_ON_INPUT),
        (Family::V4, DROPS_ON_OUTPUT),
        (Family::V6, DROPS_ON_OUTPUT),
    ] {
        for speaks_first in Side::BOTH {
            let link = || "rtt20".parse().unwrap();
            let net = Emulated::of(family, "acc-wall-drops", link(), link()).unwrap();
            nft(&net.forwarder, firewall);
            let node = Node::new(net, &[]);
            for connections in 1..=3 {
                let mut pair = node.connect();
                let [first, second] = pair.ends(speaks_first);
                first.send(100_000);
                second.receive(100_000);
                pair.exchange(100_000);
                pair.close();
                let status = node.daemon.status();
                assert_eq!(
                    (totals(&status), passed_through(&status, "firewall")),
                    ((0, 0), connections),
                    "{family:?}, {speaks_first:?}"
                );
            }
            let log = node.daemon.log();
            let named = log.matches("meta mark & 0xff000000 == 0x4c000000 accept").count();
            assert_eq!(named, 1, "{log}");
        }
    }
}

/// A firewall that comes later closes the way of further connections, once a few in a row were given back.
#[test]
fn connections_are_given_back_when_a_firewall_comes_later() {
    const FEW: u64 = 3;
    if !tracks() {
        return;
    }
    let node = Node::new(long_path("acc-wall-later"), &[]);
    let mut pair = node.connect();
    pair.exchange(100_000);
    pair.close();
    nft(&node.net.forwarder, DROPS_ON_INPUT);
    for given_back in 1..=FEW + 1 {
        assert!(!node.daemon.log().contains("0x4c000000") || given_back > FEW);
        let mut pair = node.connect();
        pair.exchange(100_000);
        pair.close();
        let status = node.daemon.status();
        assert_eq!(
            (totals(&status).0, passed_through(&status, "firewall")),
            (1, given_back)
        );
    }
    assert!(node.daemon.log().contains("0x4c000000"), "{}", node.daemon.log());
}

/// Counts what the node sends that connection tracking finds invalid.
const COUNTS_INVALID: &str = "
table inet count {
    counter invalid { }
    chain out { type filter hook output priority 0
        ct state invalid counter name invalid
    }
}";

/// Announcements of windows in the name of a marked socket are exempt as what it sends itself: a release under load makes some.
#[test]
fn nothing_that_is_sent_during_a_release_is_invalid() {
    if !tracks() {
        return;
    }
    for family in [Family::V4, Family::V6] {
        let link = || "rtt20".parse().unwrap();
        let net = Emulated::of(family, "acc-windows", link(), link()).unwrap();
        nft(&net.forwarder, COUNTS_INVALID);
        let node = Node::new(net, &["--standing-queue", "keep"]);
        let mut pair = node.connect();
        // Let the windows grow.
        pair.exchange_unevenly(0, 4 << 20);
        let (port, done) = (pair.client_port(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    pair.exchange_unevenly(0, 4 << 20);
                }
                pair.close();
            });
            let _finish = Finish(&done);
            node.release(port);
        });
        assert_eq!(packets(&node.net.forwarder, "count", "invalid"), 0);
    }
}

/// A SIGKILL removes the table with the process, whose connections are reset all the same; the next process has one, and none
/// is left after a stop.
#[test]
fn the_table_goes_with_its_process() {
    if !tracks() {
        return;
    }
    let net = long_path("acc-table");
    nft(&net.forwarder, DROPS_INVALID);
    let mut node = Node::new(net, &[]);
    let mut pair = node.connect();
    Depth::TakenOver.reach(&node, &mut pair);
    assert_eq!(tables(&node), 1);
    let before = nft(&node.net.forwarder, "list table inet firewall");
    node.daemon.kill();
    pair.client.expect_reset(SOON);
    pair.server.expect_reset(SOON);
    soon("no table", || tables(&node) == 0);
    node.daemon.start(&node.net.forwarder);
    let mut pair = node.connect();
    Depth::Released.reach(&node, &mut pair);
    assert_eq!(tables(&node), 1);
    node.daemon.terminate();
    assert_eq!(node.daemon.join(), Some(0));
    assert_eq!(tables(&node), 0);
    pair.exchange(100_000);
    pair.close();
    assert_eq!(nft(&node.net.forwarder, "list table inet firewall"), before);
}

/// Where nothing is tracked there is no table, until a firewall is loaded: then it is there before the next connection is
/// taken over, and soon for those that were.
#[test]
fn the_table_comes_with_the_first_tracked_connection() {
    if !tracks() {
        return;
    }
    let node = Node::new(long_path("acc-late"), &[]);
    let mut first = node.connect();
    Depth::TakenOver.reach(&node, &mut first);
    assert_eq!(tables(&node), 0);
    nft(&node.net.forwarder, DROPS_INVALID);
    let mut second = node.connect();
    assert_eq!(tables(&node), 1);
    for pair in [&mut first, &mut second] {
        pair.exchange(100_000);
        pair.close();
    }
}

/// Returns nodes of IPv4, which alone has these settings.
fn v4_router(name: &str) -> Line {
    Line::new(name, LineOptions::router()).unwrap()
}

/// Sends a SYN from the client's side to the server, with a source of this address.
fn forge(node: &Node<Line>, source: &str) {
    let to = node.listener.local_addr().unwrap();
    let from = (source.parse::<IpAddr>().unwrap(), 40_000).into();
    Blind::new(&node.net.client, rng(), from, to).guess_syn();
}

/// The kernel's validation of sources holds as without the node: of one to which no way leads, and of one on the other side.
#[test]
fn a_source_that_the_kernel_refuses_comes_no_further() {
    for (rp_filter, refuses) in [("0", false), ("2", false), ("1", true)] {
        let net = v4_router("acc-sources");
        net.forwarder
            .sysctl("net/ipv4/conf/all/rp_filter", rp_filter)
            .unwrap();
        let node = Node::new(net, &[]);
        forge(&node, "198.18.2.77");
        if refuses {
            forge(&node, "198.18.9.77");
        }
        let refused = if refuses { 2 } else { 0 };
        match refuses {
            true => drop(node.wait_status("both to be passed through", |s| {
                passed_through(s, "not_forwarded") == refused
            })),
            false => soon("the SYN", || in_state(&node.net.server, SYN_RECEIVED) == 1),
        }
        let mut pair = node.connect();
        pair.exchange(1_000);
        pair.close();
        let status = node.daemon.status();
        assert_eq!(
            (totals(&status).0, passed_through(&status, "not_forwarded")),
            (1, refused)
        );
        let arrived = in_state(&node.net.server, SYN_RECEIVED);
        assert_eq!(arrived, usize::from(!refuses), "rp_filter = {rp_filter}");
    }
}

/// An interface that does not forward takes no connection over.
#[test]
fn an_interface_that_does_not_forward_is_obeyed() {
    let net = v4_router("acc-forwarding");
    net.forwarder.sysctl("net/ipv4/conf/f0/forwarding", "0").unwrap();
    let node = Node::new(net, &[]);
    forge(&node, "198.18.1.77");
    node.wait_status("it to be passed through", |s| {
        passed_through(s, "not_forwarded") == 1
    });
}

/// A link-local source reaches nothing beyond its link (RFC 4291 section 2.5.6).
#[test]
fn a_link_local_source_stays_on_its_link() {
    let options = LineOptions {
        family: Family::V6,
        ..LineOptions::router()
    };
    let node = Node::new(veth_line("acc-link-local", options), &[]);
    forge(&node, "fe80::1234");
    node.wait_status("it to be passed through", |s| {
        passed_through(s, "not_forwarded") == 1
    });
    let mut pair = node.connect();
    pair.exchange(1_000);
    pair.close();
    assert_eq!(totals(&node.daemon.status()).0, 1);
    assert_eq!(in_state(&node.net.server, SYN_RECEIVED), 0);
}
