//! Clients that the accelerator answers before their server has: early accept.

use std::{
    io::{self, ErrorKind, Read},
    net::TcpStream,
};

use longsplice_tests::{Pair, SOON, stop_listening};

use crate::accelerate::{Node, long_path, totals};

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
