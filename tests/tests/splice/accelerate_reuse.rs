//! Clients that use a port again while the node's socket of the last connection from there is in TIME-WAIT.

use longsplice_engine::Side;
use longsplice_lab::{Emulated, Family};
use longsplice_tests::{Pair, connect_again};

use crate::{
    accelerate::{Node, passed_through, totals},
    accelerate_forged::{TIME_WAIT, in_state},
};

/// Returns a node between ends that have no TIME-WAIT of their own, with room for one connection.
fn node(family: Family) -> Node<Emulated> {
    let link = || "rtt20".parse().unwrap();
    let net = Emulated::of(family, "acc-reuse", link(), link()).unwrap();
    for end in [&net.client, &net.server] {
        end.sysctl("net/ipv4/tcp_max_tw_buckets", "0").unwrap();
    }
    Node::new(net, &["--max-connections", "1"])
}

/// Closes both ends, this one first: the node's socket toward the other end, which has closed last, lingers in TIME-WAIT.
fn close_first(node: &Node<Emulated>, pair: &mut Pair, side: Side) {
    let [first, last] = pair.ends(side);
    first.finish();
    last.expect_end();
    last.finish();
    first.expect_end();
    node.wait_status("the end", |status| status.accelerator.as_ref().unwrap().open == 0);
    assert!(
        in_state(&node.net.forwarder, TIME_WAIT) > 0,
        "no socket is in TIME-WAIT"
    );
}

/// Connects from the port of a connection that has ended.
fn connect_like(node: &Node<Emulated>, last: &Pair) -> Pair {
    let source = last.client.stream.local_addr().unwrap();
    let target = node.listener.local_addr().unwrap();
    let client = connect_again(&node.net.client, source, target);
    Pair::accept(client, &node.listener)
}

/// Its first SYN, or the answer, meets the old socket where it passes through: that is reset then.
#[test]
fn it_is_taken_over_again_or_passes_through() {
    for family in [Family::V4, Family::V6] {
        let node = node(family);
        for (round, side) in (1..).zip([Side::Client, Side::Server]) {
            println!("{family:?} {side:?}");
            let mut first = node.connect();
            first.exchange(10_000);
            close_first(&node, &mut first, side);
            let mut again = connect_like(&node, &first);
            again.exchange(10_000);
            close_first(&node, &mut again, side);
            // Another one takes the only place.
            let mut other = node.connect();
            other.exchange(10_000);
            let mut passed = connect_like(&node, &again);
            passed.exchange(10_000);
            let status = node.daemon.status();
            assert_eq!(
                (totals(&status), passed_through(&status, "limit")),
                ((3 * round, 0), round)
            );
            passed.close();
            close_first(&node, &mut other, side);
        }
    }
}
