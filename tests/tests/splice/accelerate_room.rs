//! Connections of an accelerator that make room for those of an earlier class.

use std::net::IpAddr;

use longsplice_lab::Emulated;
use longsplice_tests::{Pair, addr, connect_from, ip, line, nodad, soon};

use crate::accelerate::{Node, long_path, passed_through, totals};

/// A node that has little room, between a server and a client that has the addresses of two customers.
struct Crowded {
    node: Node<Emulated>,
    other: IpAddr,
}

impl Crowded {
    fn new(name: &str, max_connections: &str) -> Crowded {
        let preferred = line("198.18.1.1/32");
        let net = long_path(name);
        let nodad = nodad(net.family());
        ip(&net.client, &format!("addr add 198.18.1.9/24 dev c0 {nodad}"));
        let more = [
            "--max-connections",
            max_connections,
            "--prefer",
            &preferred,
            "--verbose",
        ];
        Crowded {
            node: Node::new(net, &more),
            other: addr("198.18.1.9"),
        }
    }

    fn connect_from(&self, address: IpAddr) -> Pair {
        let target = self.node.listener.local_addr().unwrap();
        let client = connect_from(&self.node.net.client, (address, 0).into(), target);
        Pair::accept(client.unwrap(), &self.node.listener)
    }

    /// Connects the customer of the first class.
    fn preferred(&self) -> Pair {
        self.connect_from(self.node.net.client_addr)
    }

    /// Connects the customer of no class.
    fn other(&self) -> Pair {
        self.connect_from(self.other)
    }

    /// Fills a connection of no class whose client does not read. Returns the number of bytes that wait, too.
    fn stopped(&self) -> (Pair, u64) {
        let mut pair = self.other();
        pair.exchange(1_000);
        let waiting = pair.server.fill();
        (pair, waiting)
    }

    fn wait_refusal(&self) {
        let log = || self.node.daemon.log();
        soon("a refusal", || log().contains("it was to make room, and stays"));
    }

    fn is_released(&self, pair: &Pair) -> bool {
        let flows = self.node.daemon.flows();
        let flow = flows
            .iter()
            .find(|flow| flow.client.peer.port() == pair.client_port());
        flow.is_some_and(|flow| matches!(flow.state.as_str(), "dormant" | "detached"))
    }
}

#[test]
fn an_earlier_class_finds_room() {
    let mut crowded = Crowded::new("acc-class", "1");
    let mut other = crowded.other();
    other.exchange(100_000);
    let mut preferred = crowded.preferred();
    preferred.exchange(100_000);
    soon("the release", || crowded.is_released(&other));
    let mut third = crowded.other();
    third.exchange(100_000);
    let node = &mut crowded.node;
    let status = node.wait_status("one passed through", |s| passed_through(s, "limit") == 1);
    assert_eq!(totals(&status), (2, 1));
    for pair in [&mut other, &mut preferred, &mut third] {
        pair.exchange(100_000);
        pair.close();
    }
    node.daemon.terminate();
    node.daemon.join();
}

/// A connection whose reader has stopped cannot be released. It makes room as soon as the reader reads.
#[test]
fn a_connection_that_could_not_make_room_does_so_later() {
    let crowded = Crowded::new("acc-room", "1");
    let (mut other, waiting) = crowded.stopped();
    let mut preferred = crowded.preferred();
    preferred.exchange(100_000);
    crowded.wait_refusal();
    assert!(!crowded.is_released(&other));
    preferred.close();
    other.client.receive(waiting);
    soon("the release", || {
        let mut preferred = crowded.preferred();
        preferred.exchange(1_000);
        preferred.close();
        crowded.is_released(&other)
    });
    other.exchange(100_000);
    other.close();
}

#[test]
fn the_next_one_makes_room_where_the_oldest_one_cannot() {
    let crowded = Crowded::new("acc-next", "2");
    let (mut oldest, waiting) = crowded.stopped();
    let mut next = crowded.other();
    next.exchange(100_000);
    let mut preferred = crowded.preferred();
    crowded.wait_refusal();
    soon("the release", || crowded.is_released(&next));
    assert!(!crowded.is_released(&oldest));
    oldest.client.receive(waiting);
    for pair in [&mut oldest, &mut next, &mut preferred] {
        pair.exchange(100_000);
        pair.close();
    }
}
