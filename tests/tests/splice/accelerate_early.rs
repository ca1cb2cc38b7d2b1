//! Clients that the accelerator answers before their server has: early accept.

use std::{
    io::{self, ErrorKind, Read},
    net::TcpStream,
};

use longsplice_tests::{Pair, SOON, nft, stop_listening};

use crate::{
    accelerate::{Node, long_path, totals},
    accelerate_firewall::tracks,
};

/// Gives what leaves towards the server an address of the node.
const TRANSLATES: &str = "
table ip nat {
    chain post { type nat hook postrouting priority srcnat
        oifname f1 masquerade
    }
}";

/// Clients that are answered early before it is known that answers of servers come back.
const MOST_UNPROVEN: usize = 16;

/// A client that is answered early is connected before its server was asked; if that refuses, it is reset.
#[test]
fn a_client_may_be_answered_early() {
    let node = Node::new(long_path("acc-early"), &["--early-accept", "always"]);
    for _ in 0..3 {
        let mut pair = node.connect();
        // The policy, which may release it where processors are busy, judges none before 1 MiB has passed.
        pair.exchange(100_000);
        pair.close();
    }
    assert_eq!(totals(&node.daemon.status()), (3, 0));
    let nowhere = (node.net.server_addr, 7001).into();
    let connected = node.net.client.run(|| TcpStream::connect_timeout(&nowhere, SOON));
    assert_eq!(end_of(connected.unwrap()), ErrorKind::ConnectionReset);
}

/// Returns how a connection ends from which nothing is expected. A reset may come before its client learns that it was
/// connected.
fn end_of(connected: io::Result<TcpStream>) -> ErrorKind {
    connected
        .and_then(|mut stream| stream.read(&mut [0]))
        .unwrap_err()
        .kind()
}

/// Only a server that has accepted before is answered for, and only until it refuses.
#[test]
fn early_answers_may_be_limited_to_known_servers() {
    let node = Node::new(long_path("acc-known"), &["--early-accept", "known"]);
    let server = node.listener.local_addr().unwrap();
    let connect = || {
        node.net
            .client
            .run(|| TcpStream::connect_timeout(&server, SOON))
            .unwrap()
    };
    let pair = Pair::accept(connect().unwrap(), &node.listener);
    drop(pair);
    let second = connect().unwrap();
    let pair = Pair::accept(second, &node.listener);
    drop(pair);
    let status = node.wait_status("both connections", |s| totals(s).0 == 2);
    assert_eq!(status.accelerator.unwrap().early_failures_total, 0);
    let Node {
        daemon,
        listener,
        net,
        captures: _captures,
    } = node;
    stop_listening(listener);
    let connect = || {
        net.client
            .run(|| TcpStream::connect_timeout(&server, SOON))
            .unwrap()
    };
    assert_eq!(
        end_of(connect()),
        ErrorKind::ConnectionReset,
        "it was answered for"
    );
    daemon.wait_status("the refusal", |s| {
        s.accelerator.as_ref().unwrap().early_failures_total == 1
    });
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// Where the node translates addresses, no answer is the taken-over connection's. A few clients wait in vain; the others are not
/// answered early, and pass through.
#[test]
fn only_a_few_clients_are_answered_early_if_no_answer_comes_back() {
    if !tracks() {
        return;
    }
    let net = long_path("acc-early-nat");
    nft(&net.forwarder, TRANSLATES);
    // Without the translation the server has no way back.
    let words = ["route", "del", "default"];
    let route = net.server.command("ip").args(words).output().unwrap();
    assert!(route.status.success(), "{route:?}");
    let node = Node::new(net, &["--early-accept", "always"]);
    let server = node.listener.local_addr().unwrap();
    let connect = || node.net.client.run(|| TcpStream::connect_timeout(&server, SOON));
    let waiting: Vec<TcpStream> = (0..MOST_UNPROVEN).map(|_| connect().unwrap().unwrap()).collect();
    for _ in 0..3 {
        let mut pair = Pair::connect(&node.net.client, server, &node.listener);
        pair.exchange(100_000);
        pair.close();
    }
    assert_eq!(totals(&node.daemon.status()), (0, 0));
    drop(waiting);
}
