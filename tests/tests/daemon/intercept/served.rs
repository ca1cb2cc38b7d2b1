//! Intercepted connections are served like any others.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use longsplice_tests::{Config, Pair, Policy, SOON, connect_again, soon};

use crate::intercept::lab::{Lab, PORT, TABLE, intercepting, lab, peer};

#[test]
fn a_connection_to_a_server_is_spliced() {
    for (policy, state) in [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")] {
        let mut lab = lab("intercept-splice", intercepting(policy));
        lab.start();
        for server in lab.servers() {
            let listener = lab.listen(server);
            for _ in 0..3 {
                let (mut pair, seen) = lab.connect(&listener);
                assert_eq!(seen, lab.forwarder(server));
                assert_eq!(pair.client.stream.peer_addr().unwrap(), server);
                pair.exchange(1 << 20);
                let flow = lab.daemon.wait_state(pair.client_port(), &[state]);
                assert_eq!(flow.client.local, server, "the original destination");
                pair.exchange(4 << 20);
                pair.close();
            }
        }
        lab.daemon.wait_reaped();
        let status = lab.daemon.status();
        assert_eq!(
            (status.spliced_total, status.ended("closed")),
            (6, 6),
            "{status:?}"
        );
    }
}

/// Splices a relayed pair and takes it back, with bytes each time.
fn there_and_back(lab: &Lab, pair: &mut Pair, state: &str) {
    pair.exchange(1 << 20);
    let flow = lab.daemon.wait_state(pair.client_port(), &["relay"]);
    lab.daemon.splice(flow.id).unwrap();
    lab.daemon.wait_state(pair.client_port(), &[state]);
    pair.exchange(1 << 20);
    // Rebuilt sockets, too, have an address that is not the host's.
    lab.daemon.unsplice(flow.id).unwrap();
    lab.daemon.wait_state(pair.client_port(), &["relay"]);
    pair.exchange(1 << 20);
}

#[test]
fn a_relayed_one_and_one_that_comes_back_are_whole() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let mut lab = lab("intercept-back", intercepting(policy));
        lab.start();
        for server in lab.servers() {
            let listener = lab.listen(server);
            let (mut pair, _) = lab.connect(&listener);
            for _ in 0..3 {
                there_and_back(&lab, &mut pair, state);
            }
            pair.close();
        }
        lab.daemon.wait_reaped();
    }
}

#[test]
fn the_server_sees_the_client_where_that_is_asked_for() {
    let table = format!("{TABLE}, source = \"client\", answers = \"f1\"");
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let config = Config::new().intercepting(&table, policy.splice, policy.detach);
        let mut lab = lab("intercept-client", config);
        lab.start();
        for server in lab.servers() {
            let listener = lab.listen(server);
            let (mut pair, seen) = lab.connect(&listener);
            assert_eq!(seen, pair.client.stream.local_addr().unwrap().ip());
            assert_ne!(pair.source_port(), pair.client_port(), "through the daemon");
            there_and_back(&lab, &mut pair, state);
            pair.close();
        }
        lab.daemon.wait_reaped();
    }
}

/// The client's stream has the same sequence numbers on both legs, even after some of it was relayed.
#[test]
fn the_server_sees_the_clients_port_and_numbers_where_that_is_asked_for() {
    let table = format!("{TABLE}, source = \"client_and_port\", answers = \"f1\"");
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let config = Config::new().intercepting(&table, policy.splice, policy.detach);
        let mut lab = lab("intercept-port", config);
        lab.start();
        for server in lab.servers() {
            let listener = lab.listen(server);
            let (mut pair, _) = lab.connect(&listener);
            let seen = pair.server.stream.peer_addr().unwrap();
            assert_eq!(seen, pair.client.stream.local_addr().unwrap());
            pair.exchange(1 << 20);
            let flow = lab.daemon.wait_state(pair.client_port(), &["relay"]);
            lab.daemon.splice(flow.id).unwrap();
            let flow = lab
                .daemon
                .wait_flow("the offsets", |f| f.state == state && f.to_client.seq_offset != 0);
            assert_eq!(flow.to_server.seq_offset, 0, "{flow:?}");
            assert!(!flow.to_client.identity, "{flow:?}");
            pair.exchange(4 << 20);
            lab.daemon.unsplice(flow.id).unwrap();
            lab.daemon.wait_state(pair.client_port(), &["relay"]);
            there_and_back(&lab, &mut pair, state);
            pair.close();
        }
        lab.daemon.wait_reaped();
        assert_eq!(lab.daemon.status().accepted_total, 2);
    }
}

/// Two connections from one port of a client, to two addresses, go to one server: the second gets a port of the
/// daemon's.
/// Returns the address and port that the client uses more than once.
fn source(lab: &Lab) -> SocketAddr {
    (lab.net.client_addr, 40_000).into()
}

#[test]
fn a_clients_port_that_is_in_use_is_not_taken() {
    let table = format!("{TABLE}, source = \"client_and_port\", answers = \"f1\"");
    for (policy, state) in [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")] {
        let config = Config::new().intercepting(&table, policy.splice, policy.detach);
        let mut lab = lab("intercept-taken", config.with("to = \"198.18.2.1:7000\""));
        lab.start();
        let listener = lab.listen(lab.server_v4());
        let mut pairs = [PORT, PORT + 1].map(|port| {
            let to = (lab.net.server_addr, port).into();
            let client = connect_again(&lab.net.client, source(&lab), to);
            let pair = Pair::accept(client, &listener);
            assert_eq!(peer(&pair.server), lab.net.client_addr);
            lab.daemon
                .wait_flow("the splice", |f| f.client.local == to && f.state == state);
            pair
        });
        let own = pairs.each_ref().map(|pair| pair.source_port() == 40_000);
        assert_eq!(own, [true, false]);
        for pair in &mut pairs {
            pair.exchange(100_000);
        }
    }
}

/// The listener's side closes first, so that its socket lingers in TIME-WAIT, and the client takes the same port again.
#[test]
fn a_port_can_be_used_again_at_once() {
    let mut lab = lab("intercept-again", intercepting(Policy::ON_DEMAND));
    lab.start();
    let listener = lab.listen(lab.server_v4());
    for _ in 0..3 {
        let start = Instant::now();
        let client = connect_again(&lab.net.client, source(&lab), lab.server_v4());
        // Its SYN meets TIME-WAIT, and the client resets that; it does not wait for its retransmission timer.
        assert!(
            start.elapsed() < Duration::from_millis(900),
            "{:?}",
            start.elapsed()
        );
        let mut pair = Pair::accept(client, &listener);
        assert_eq!(peer(&pair.server), lab.forwarder(lab.server_v4()));
        pair.exchange(10_000);
        pair.server.finish();
        pair.client.expect_end();
        pair.client.finish();
        pair.server.expect_end();
        lab.daemon.wait_reaped();
    }
}

/// A full listen queue keeps nothing of a handshake but the cookie in the client's acknowledgement.
#[test]
fn a_handshake_by_cookie_is_completed() {
    let mut lab = lab("intercept-cookie", intercepting(Policy::ON_DEMAND));
    // Value 2 sends cookies always, as if the queue were full.
    lab.net.forwarder.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let listeners = lab.servers().map(|server| lab.listen(server));
    let mut before = lab.connect(&listeners[0]).0;
    lab.start();
    for listener in &listeners {
        let (mut pair, seen) = lab.connect(listener);
        assert_eq!(seen, lab.forwarder(listener.local_addr().unwrap()));
        pair.exchange(1 << 20);
        pair.close();
    }
    assert_eq!(cookies_received(&lab), 2);
    before.exchange(1 << 20);
    assert_eq!(lab.daemon.status().accepted_total, 2);
}

/// Returns `SyncookiesRecv` of the forwarder's TCP, which is printed as a line of names and one of numbers.
fn cookies_received(lab: &Lab) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let text = lab.net.forwarder.run(read).unwrap();
    let mut lines = text
        .lines()
        .filter(|l| l.starts_with("TcpExt:"))
        .map(|l| l.split(' '));
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.zip(numbers);
    both.find(|(name, _)| *name == "SyncookiesRecv")
        .unwrap()
        .1
        .parse()
        .unwrap()
}

#[test]
fn a_connection_to_the_listener_itself_is_refused() {
    let mut lab = lab("intercept-self", intercepting(Policy::ON_DEMAND));
    lab.start();
    let front = (lab.net.forwarder_client_addr, 8080);
    let client = lab
        .net
        .client
        .run(|| std::net::TcpStream::connect(front))
        .unwrap()
        .unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    let answer = std::io::Read::read(&mut &client, &mut [0; 1]);
    assert_eq!(answer.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let status = lab
        .daemon
        .wait_status("a refusal", |s| s.listeners[0].refused_total == 1);
    assert_eq!(status.accepted_total, 1, "and it has not gone in circles");
    // A refusal is counted before it is logged.
    let says = "addressed to the listener itself";
    soon(says, || lab.daemon.log().contains(says));
}
