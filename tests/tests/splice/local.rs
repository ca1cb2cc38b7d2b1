//! Target on the forwarder's own host, and a client there, too: the usual first trial on a single machine.

use std::net::{IpAddr, SocketAddr, TcpListener};

use longsplice_lab::Line;
use longsplice_tests::{Config, Daemon, Pair, Policy, expect_refused_at_once, soon, veth_line};

const BYTES: u64 = 4 << 20;

/// Position of the client.
#[derive(Clone, Copy)]
enum Client {
    Remote,
    Local,
}

/// Connects a client through the daemon to a server on the daemon's host, and checks bytes before and after the splice.
fn spliced(name: &str, client: Client, front: fn(&Line) -> IpAddr, target: fn(&Line) -> IpAddr) {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let net = veth_line(name, Default::default());
        let target = SocketAddr::from((target(&net), 7000));
        let front = SocketAddr::from((front(&net), 8080));
        let listener = net.forwarder.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let config = Config::new().listener(front, target, policy.splice, policy.detach);
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        let namespace = match client {
            Client::Remote => &net.client,
            Client::Local => &net.forwarder,
        };
        let mut pair = Pair::connect(namespace, front, &listener);
        pair.exchange(BYTES);
        daemon.splice_to(pair.client_port(), state);
        pair.exchange(BYTES);
        if state == "detached" {
            // Its port has no socket any more, and stays reserved all the same.
            let source = SocketAddr::from((target.ip(), pair.source_port()));
            expect_refused_at_once(&net.forwarder, source, target);
            pair.exchange(BYTES);
        }
        pair.close();
        daemon.wait_reaped();
        let status = daemon.status();
        assert_eq!((status.spliced_total, status.relayed_total), (1, 0), "{status:?}");
        assert_eq!(status.ended("closed"), 1, "{status:?}");
    }
}

#[test]
fn a_target_on_the_loopback_is_spliced() {
    spliced(
        "local-lo",
        Client::Remote,
        |net| net.forwarder_client_addr,
        |net| net.family().loopback(),
    );
}

#[test]
fn a_target_at_an_address_of_the_forwarder_is_spliced() {
    spliced(
        "local-own",
        Client::Remote,
        |net| net.forwarder_client_addr,
        |net| net.forwarder_server_addr,
    );
}

#[test]
fn a_client_and_a_target_on_the_loopback_are_spliced() {
    spliced(
        "local-both",
        Client::Local,
        |net| net.family().loopback(),
        |net| net.family().loopback(),
    );
}

#[test]
fn a_client_and_a_target_at_addresses_of_the_forwarder_are_spliced() {
    spliced(
        "local-addrs",
        Client::Local,
        |net| net.forwarder_client_addr,
        |net| net.forwarder_server_addr,
    );
}

/// A copy that a drain makes for a local target passes ingress once more. The program of the daemon that started last sees
/// it first, and knows nothing of its flow.
#[test]
fn a_daemon_that_started_later_passes_on_the_copies_of_a_drain() {
    let net = veth_line("local-two", Default::default());
    let target = SocketAddr::from((net.family().loopback(), 7000));
    let listener = net.forwarder.run(|| TcpListener::bind(target)).unwrap().unwrap();
    let [mut first, mut second] = [8080, 8081].map(|port| {
        let front = SocketAddr::from((net.forwarder_client_addr, port));
        Daemon::of(&Config::new().listener(front, target, "now", "now"))
    });
    first.start(&net.forwarder);
    second.start(&net.forwarder);
    let front = SocketAddr::from((net.forwarder_client_addr, 8080));
    soon("copies", || {
        let mut pair = Pair::connect(&net.client, front, &listener);
        pair.exchange(256 << 10);
        pair.close();
        first.status().segments("duplicated") > 20
    });
    let status = second.status();
    assert_eq!(status.segments("drop_malformed"), 0, "{status:?}");
}
