//! A client reuses the port of a spliced flow. After the flow's end the new connection replaces it. While the flow
//! lives (the client crashed and was restarted) the dead flow is reset and the client is served.

use std::{os::fd::OwnedFd, time::Duration};

use longsplice_repair::close_silently;
use longsplice_tests::{Bed, Pair, Policy, connect_again};

const PORT: u16 = 40_000;
const BYTES: u64 = 1 << 20;

/// Connects from the same port each time.
fn connect(bed: &Bed) -> Pair {
    let source = (bed.net.client_addr, PORT).into();
    let client = connect_again(&bed.net.client, source, bed.front());
    Pair::accept(client, &bed.listener)
}

fn after_the_end(policy: Policy<'_>, state: &str) {
    let bed = Bed::with("syn-after", Default::default(), policy, |c| c.record_ttl("60s"));
    for round in 0..3 {
        let mut pair = connect(&bed);
        bed.daemon.wait_flow("the splice", |f| {
            f.client.peer.port() == PORT && f.state == state && !(f.to_server.fin && f.to_client.fin)
        });
        pair.exchange(BYTES);
        // The server closes first: the client's port is never in TIME-WAIT at the client.
        pair.server.finish();
        pair.client.expect_end();
        pair.client.finish();
        pair.server.expect_end();
        bed.daemon.wait_flow("the end", |f| {
            f.state == "closing" && f.client.peer.port() == PORT
        });
        assert_eq!(bed.daemon.status().segments("syn_replaced"), round);
    }
    let status = bed.daemon.status();
    assert_eq!(
        (status.spliced_total, status.accepted_total),
        (3, 3),
        "{status:?}"
    );
    assert_eq!(
        bed.daemon.flows().len(),
        1,
        "the others were replaced: {:?}",
        bed.daemon.flows()
    );
}

#[test]
fn after_the_end_of_a_detached_flow() {
    after_the_end(Policy::DETACHED, "detached");
}

#[test]
fn after_the_end_of_a_dormant_flow() {
    after_the_end(Policy::DORMANT, "dormant");
}

fn while_it_lives(policy: Policy<'_>, state: &str) {
    let bed = Bed::with("syn-live", Default::default(), policy, |c| c.record_ttl("60s"));
    let mut pair = connect(&bed);
    bed.daemon.wait_state(PORT, &[state]);
    pair.exchange(BYTES);
    let old = bed.daemon.wait_state(PORT, &[state]);
    // The client's host forgets the connection, as by a crash, without a packet.
    let Pair { client, mut server } = pair;
    close_silently(OwnedFd::from(client.stream)).unwrap();
    let mut again = connect(&bed);
    server.expect_reset(Duration::from_secs(5));
    again.exchange(BYTES);
    let new = bed.daemon.wait_flow("the new flow to be spliced", |f| {
        f.client.peer.port() == PORT && f.state == state && f.id != old.id
    });
    again.exchange(BYTES);
    again.close();
    let status = bed.daemon.status();
    assert_eq!(status.spliced_total, 2, "{status:?}, {new:?}");
    assert_eq!(status.segments("syn_replaced"), 1, "{status:?}");
}

#[test]
fn while_a_detached_flow_lives() {
    while_it_lives(Policy::DETACHED, "detached");
}

#[test]
fn while_a_dormant_flow_lives() {
    while_it_lives(Policy::DORMANT, "dormant");
}
