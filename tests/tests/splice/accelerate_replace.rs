//! An accelerator is replaced: its successor takes the next connections over, and those that it had are released and go on.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use longsplice_lab::Emulated;
use longsplice_tests::{Config, Daemon, Load, Pair, SOON, emulated, nft, soon};

use crate::{
    accelerate::{Node, long_path, totals},
    accelerate_firewall::{DROPS_INVALID, tracks},
    accelerate_semantics::Depth,
};

#[test]
fn busy_connections_outlive_replacements_and_new_ones_are_taken_over() {
    outlive_replacements(long_path("acc-next"));
}

/// Each process keeps its connections out of connection tracking, which would find them invalid.
#[test]
fn they_do_so_behind_a_firewall_that_drops_what_is_invalid() {
    if tracks() {
        let net = long_path("acc-next-wall");
        nft(&net.forwarder, DROPS_INVALID);
        outlive_replacements(net);
    }
}

fn outlive_replacements(net: Emulated) {
    let mut node = Node::new(net, &[]);
    let at = SocketAddr::from((node.listener.local_addr().unwrap().ip(), 7001));
    let server = node.net.server.run(|| TcpListener::bind(at)).unwrap().unwrap();
    let load = Load::start(&node.net.client, at, server, 2);
    for _ in 0..2 {
        let before = load.served();
        soon("the load to be served", || load.served() > before + 20);
        let mut pairs: Vec<_> = (0..2).map(|_| node.connect()).collect();
        let mut idle = node.connect();
        Depth::TakenOver.reach(&node, &mut idle);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for pair in &mut pairs {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        pair.exchange(1 << 20);
                    }
                });
            }
            let forwarder = &node.net.forwarder;
            node.daemon.replace(forwarder);
            let ended = node.daemon.join_replaced();
            done.store(true, Ordering::Relaxed);
            assert_eq!(ended, [Some(0)]);
        });
        pairs.push(idle);
        soon("the old generation to go", || {
            node.daemon.generations().len() == 1
        });
        for mut pair in pairs {
            node.daemon.wait_state(pair.client_port(), &["detached"]);
            pair.exchange(1 << 20);
            pair.close();
        }
        let mut new = node.connect();
        Depth::Again.reach(&node, &mut new);
        new.exchange(1 << 20);
        new.close();
        assert!(totals(&node.daemon.status()).0 > 0);
    }
    let (served, errors) = load.end();
    assert!(errors.is_empty(), "of {served} connections: {errors:?}");
    println!("2 replacements of an accelerator: {served} connections, 0 refused or reset");
}

/// A connection whose reader has stopped holds the old daemon up. Its successor takes connections over meanwhile.
#[test]
fn the_successor_takes_over_while_the_replaced_daemon_ends_its_last_connections() {
    let mut node = Node::new(long_path("acc-next-held"), &["--shutdown-timeout", "60s"]);
    let mut held = node.connect();
    held.exchange(1_000);
    let waiting = held.server.fill();
    node.daemon.replace(&node.net.forwarder);
    soon("a connection to be taken over", || {
        let mut new = node.connect();
        new.exchange(1_000);
        new.close();
        totals(&node.daemon.status()).0 > 0
    });
    assert_eq!(node.daemon.generations().len(), 2, "the old daemon has ended");
    held.client.receive(waiting);
    assert_eq!(node.daemon.join_replaced(), [Some(0)]);
    held.exchange(1_000);
    held.close();
}

/// A successor without an accelerator removes the routing rules of its predecessor, once that has ended.
#[test]
fn no_routing_rule_is_left_when_a_successor_does_not_accelerate() {
    let net = long_path("acc-next-plain");
    let front = (net.family().unspecified(), 8080).into();
    let server = (net.server_addr, 7000).into();
    let plain = || Config::new().listener(front, server, "now", "now");
    let section = "[accelerate]\ninside = \"f0\"\noutside = \"f1\"";
    let daemon = Daemon::of(&plain().set(section));
    let mut node = Node::with(net, daemon);
    let ours = || {
        let families = [&[][..], &["-6"]].map(|family| {
            let out = node
                .net
                .forwarder
                .command("ip")
                .args(family)
                .args(["-d", "rule"])
                .output()
                .unwrap();
            String::from_utf8(out.stdout).unwrap()
        });
        families.concat().matches("proto 76").count()
    };
    assert!(ours() >= 2);
    node.daemon.reconfigure(&plain());
    node.daemon.replace(&node.net.forwarder);
    assert_eq!(node.daemon.join_replaced(), [Some(0)]);
    soon("the routing rules to go", || ours() == 0);
}

/// A client that was answered early waits for its server while the daemon is replaced: it is served.
#[test]
fn a_client_that_was_answered_early_is_served_by_the_replaced_daemon() {
    // The server's answer takes longer than the start of a daemon.
    let far = "rtt=1s,100Mbit".parse().unwrap();
    let net = emulated("acc-next-early", "rtt20".parse().unwrap(), far);
    let mut node = Node::new(net, &["--early-accept", "always"]);
    let server = node.listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&server, SOON);
    let client = node.net.client.run(connect).unwrap().unwrap();
    node.daemon.replace(&node.net.forwarder);
    let mut pair = Pair::accept(client, &node.listener);
    pair.exchange(1_000);
    assert_eq!(node.daemon.join_replaced(), [Some(0)]);
    pair.exchange(1_000);
    pair.close();
}
