//! Connections of an accelerator that is stopped or killed.

use std::{thread, time::Duration};

use longsplice_tests::{SOON, ip};

use crate::accelerate::{Node, long_path, router, totals};

#[test]
fn busy_connections_live_on_when_the_daemon_is_stopped() {
    let mut node = Node::new(long_path("acc-stop"), &[]);
    let mut pair = node.connect();
    // A few round trips: the policy has no time to release it, which it does where processors are taken away (`own_buffers`).
    pair.exchange(1 << 16);
    assert_eq!(totals(&node.daemon.status()), (1, 0));
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            pair.exchange(16 << 20);
            pair.close();
        });
        thread::sleep(Duration::from_millis(300));
        assert!(!busy.is_finished(), "it ended before the daemon did");
        node.daemon.terminate();
        assert_eq!(node.daemon.join(), Some(0), "{}", node.daemon.log());
        busy.join().unwrap();
    });
}

#[test]
fn a_killed_daemon_leaves_released_connections_and_no_routing() {
    let mut node = Node::new(router("acc-kill"), &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    node.daemon.wait_state(pair.client_port(), &["detached"]);
    node.daemon.kill();
    pair.exchange(4 << 20);
    // New connections pass through without a daemon.
    let mut plain = node.connect();
    plain.exchange(100_000);
    node.daemon.start(&node.net.forwarder);
    let mut next = node.connect();
    for pair in [&mut pair, &mut plain, &mut next] {
        pair.exchange(1 << 20);
        pair.close();
    }
    node.wait_status("a connection", |s| totals(s).0 == 1);
    node.daemon.terminate();
    assert_eq!(node.daemon.join(), Some(0));
    let rules = ip(&node.net.forwarder, "rule");
    assert!(!rules.contains("4c0"), "{rules}");
}

#[test]
fn a_killed_daemon_resets_what_was_taken_over() {
    let mut node = Node::new(long_path("acc-cut"), &[]);
    let mut pair = node.connect();
    // See above: the policy has no time to release it.
    pair.exchange(1 << 16);
    assert_eq!(totals(&node.daemon.status()), (1, 0));
    node.daemon.kill();
    pair.client.expect_reset(SOON);
    pair.server.expect_reset(SOON);
}
