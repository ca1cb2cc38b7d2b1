//! More short connections toward one server than there are source ports: closed flows give theirs long before their
//! records would go.

use std::net::SocketAddr;

use longsplice_engine::Side;
use longsplice_tests::{Bed, Pair, Policy, veth_line};

/// Number of ports, and of connections within the lifetime of a record.
const PORTS: usize = 100;
const CONNECTIONS: usize = 300;

/// Number of connections between two of the listener that relays.
const RELAYED_EACH: usize = 10;

/// Exchanges a little, and closes both ends, one of them first.
fn exchange_and_close(mut pair: Pair, first: Side) {
    pair.exchange(1_000);
    let [closing, other] = pair.ends(first);
    closing.finish();
    other.expect_end();
    other.finish();
    closing.expect_end();
}

/// Serves connections in turn, which one end closes first.
fn all_are_served(name: &str, first: Side) {
    let net = veth_line(name, Default::default());
    let relaying = SocketAddr::from((net.forwarder_client_addr, 8081));
    let target = (net.server_addr, 7000).into();
    let bed = Bed::on(net, Policy::DETACHED, |config| {
        let ports = format!("source_ports = \"20000-{}\"", 20_000 + PORTS - 1);
        config
            .record_ttl("1h")
            .set(&ports)
            .listener(relaying, target, "never", "never")
    });
    assert_eq!(bed.target(), target);
    for n in 0..CONNECTIONS {
        let before = bed.daemon.status().detached_total;
        let pair = bed.connect();
        bed.daemon
            .wait_status("the splice", |s| s.detached_total > before);
        exchange_and_close(pair, first);
        if n.is_multiple_of(RELAYED_EACH) {
            let pair = Pair::connect(&bed.net.client, relaying, &bed.listener);
            exchange_and_close(pair, Side::Client);
        }
    }
    let status = bed.daemon.wait_status("all ends", |s| s.listeners[0].open == 0);
    assert!(bed.daemon.flows().len() <= PORTS, "{status:?}");
    assert!(
        status.ended("closed") >= (CONNECTIONS - PORTS) as u64,
        "{status:?}"
    );
    assert!(
        status.listeners.iter().all(|l| l.refused_total == 0),
        "{status:?}"
    );
}

#[test]
fn clients_close_first() {
    all_are_served("scarce-client", Side::Client);
}

/// The server keeps each port in TIME-WAIT, and takes a SYN that is newer.
#[test]
fn servers_close_first() {
    all_are_served("scarce-server", Side::Server);
}
