//! Streams so long that a difference of two sequence numbers no longer says which one is ahead: beyond 2 GiB.

use std::thread;

use longsplice_tests::{Bed, Pair, Policy};

/// Length of a stream: more than half of the sequence numbers, less than all.
const LONG: u64 = (2 << 30) + (1 << 28);

/// Sends a long stream to the client.
fn send_long(far: &mut Pair) {
    let Pair { client, server } = far;
    thread::scope(|scope| {
        scope.spawn(|| server.send(LONG));
        client.receive(LONG);
    });
}

/// The pair has no conditions: its sockets are closed on the way, as they could not go on behind so much.
#[test]
fn a_dormant_pair_comes_back_by_command_behind_gigabytes() {
    let bed = Bed::new("gb-dormant", Policy::DORMANT);
    let mut pair = bed.connect_spliced("dormant");
    send_long(&mut pair);
    let port = pair.client_port();
    let flow = bed.daemon.wait_state(port, &["dormant", "detached"]);
    bed.daemon.unsplice(flow.id).unwrap();
    bed.daemon.wait_state(port, &["relay"]);
    pair.exchange(100_000);
    assert_eq!(flow.state, "detached");
    pair.close();
}
