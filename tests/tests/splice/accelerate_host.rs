//! The host of an accelerator: what its limits and settings do to connections that pass it.

use std::net::TcpListener;

use longsplice_lab::{Emulated, Family};
use longsplice_tests::{Pair, ip_in};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::accelerate::{Node, long_path, passed_through, totals};

/// A node that gets no further socket is a router for the connection.
#[test]
fn a_connection_whose_sockets_are_refused_passes_through() {
    let node = Node::new(long_path("acc-refused-sockets"), &[]);
    let pid = Pid::from_raw(node.daemon.pid() as i32);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let passed = |reason| passed_through(&node.daemon.status(), reason);
    // The node knows its interfaces for a second, without a descriptor: on a busy machine that may be over too soon.
    for attempts in 0..10 {
        let mut pairs = vec![node.connect()];
        let before = limit(Some(0));
        pairs.push(node.connect());
        pairs[1].exchange(100_000);
        limit(before.current);
        for pair in &mut pairs {
            pair.exchange(100_000);
            pair.close();
        }
        if passed("system") > 0 {
            // Its answer was not said again.
            return assert_eq!((passed("system"), passed("one_side")), (1, attempts));
        }
    }
    panic!("{:?}", node.daemon.status().accelerator);
}

/// A router that holds virtual addresses may bind sockets to any address. It is no owner of them all.
#[test]
fn a_host_that_may_bind_to_foreign_addresses_takes_connections_over() {
    for family in [Family::V4, Family::V6] {
        let link = || "rtt20".parse().unwrap();
        let net = Emulated::of(family, "acc-nonlocal", link(), link()).unwrap();
        for family in ["ipv4", "ipv6"] {
            let key = format!("net.{family}.ip_nonlocal_bind");
            net.forwarder.sysctl(&key, "1").unwrap();
        }
        let node = Node::new(net, &[]);
        let mut pair = node.connect();
        pair.exchange(100_000);
        assert_eq!(totals(&node.daemon.status()), (1, 0));
        pair.close();
        // An address that the node gets later is its own, as are those that it had.
        let later = node.net.family().addr("198.18.2.99".parse().unwrap());
        let length = if later.is_ipv4() { 32 } else { 128 };
        let add = format!("address add {later}/{length} dev lo");
        ip_in(node.net.family(), &node.net.forwarder, &add);
        let listen = || TcpListener::bind((later, 7_100)).unwrap();
        let listener = node.net.forwarder.run(listen).unwrap();
        let mut own = Pair::connect(&node.net.client, (later, 7_100).into(), &listener);
        own.exchange(1_000);
        let status = node.daemon.status();
        assert_eq!(
            (totals(&status).0, passed_through(&status, "own_address")),
            (1, 1)
        );
        own.close();
    }
}
