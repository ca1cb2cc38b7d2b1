//! Streams so long that a difference of two sequence numbers no longer says which one is ahead: beyond 2 GiB.

use std::{thread, time::Duration};

use longsplice_engine::{Trap, Until};
use longsplice_tests::{
    Bed, Pair, Policy, eventually,
    library::{Depth, Desk},
};

/// Length of a stream: more than half of the sequence numbers, less than all.
const LONG: u64 = (2 << 30) + (1 << 28);

/// Time for so much to pass, on a busy machine.
const LONGEST: Duration = Duration::from_secs(120);

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

/// The daemon is killed before it frees the slot that the flow has left.
#[test]
fn a_flow_whose_daemon_was_killed_as_it_was_detached_runs_on_behind_gigabytes() {
    let mut bed = Bed::new("gb-killed", Policy::DETACHED);
    let mut pair = bed.connect_spliced("detached");
    bed.daemon.kill();
    send_long(&mut pair);
    bed.daemon.start(&bed.net.forwarder);
    // It frees the slots of the daemon before at the latest as it ends.
    bed.daemon.terminate();
    bed.daemon.join();
    pair.exchange(100_000);
    bed.daemon.start(&bed.net.forwarder);
    pair.exchange(100_000);
    pair.close();
}

#[test]
fn the_bytes_of_a_detached_pair_are_counted_beyond_gigabytes() {
    let desk = Desk::new("gb-count");
    let (mut far, call) = desk.spliced(Depth::Detached, Until::idle(LONGEST));
    send_long(&mut far);
    let port = far.client_port();
    let id = desk.library.wait_state(port, &[Depth::Detached.state()]).id;
    assert!(desk.library.unsplice(id).is_none(), "its call has it");
    eventually("its return", LONGEST, || call.is_over().then_some(()));
    let returned = call.returned();
    assert_eq!((returned.why, returned.passed.server), (Trap::Admin, LONG));
    assert!(returned.bytes_spliced > LONG / 2, "{}", returned.bytes_spliced);
}
