//! The host of an accelerator: what its limits and settings do to connections that pass it.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
};

use longsplice_lab::{Emulated, Family};
use longsplice_tests::{Pair, SOON, ip_in};
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

/// A client that cannot be answered early, since there is no socket for it, is served by its server as without the node.
#[test]
fn a_client_that_cannot_be_answered_early_passes_through() {
    let node = Node::new(long_path("acc-refused-early"), &["--early-accept", "always"]);
    let pid = Pid::from_raw(node.daemon.pid() as i32);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let before = limit(Some(0));
    let mut pair = node.connect();
    pair.exchange(100_000);
    limit(before.current);
    let status = node.daemon.status();
    assert_eq!((totals(&status), passed_through(&status, "system")), ((0, 0), 1));
    pair.close();
    let mut next = node.connect();
    next.exchange(100_000);
    assert_eq!(totals(&node.daemon.status()).0, 1);
    next.close();
}

/// A router tells a client that it has no way for it. The node has the kernel tell so.
#[test]
fn a_client_hears_that_there_is_no_way_to_its_server() {
    for family in [Family::V4, Family::V6] {
        let link = || "rtt20".parse().unwrap();
        let net = Emulated::of(family, "acc-no-route", link(), link()).unwrap();
        let node = Node::new(net, &[]);
        for (host, kind) in [(1, "unreachable"), (2, "prohibit")] {
            let nowhere = family.addr(format!("198.18.9.{host}").parse().unwrap());
            let add = format!("route add {kind} {nowhere}");
            ip_in(family, &node.net.forwarder, &add);
            let target = SocketAddr::from((nowhere, 7_000));
            let connect = || TcpStream::connect_timeout(&target, SOON);
            let refused = node.net.client.run(connect).unwrap().unwrap_err();
            let told = [
                ErrorKind::HostUnreachable,
                ErrorKind::NetworkUnreachable,
                ErrorKind::PermissionDenied,
            ];
            assert!(told.contains(&refused.kind()), "{kind}: {refused}");
        }
        let status = node.daemon.status();
        let passed = passed_through(&status, "not_forwarded");
        assert_eq!((totals(&status), passed), ((0, 0), 2));
    }
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
