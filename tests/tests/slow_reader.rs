//! Splices where hardly anything moves, or nothing: full buffers and a slow reader, a reader that has stopped, no byte
//! at all yet, a server that speaks first.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::{thread, time::Duration};

use longsplice_lab::ThreeOptions;
use longsplice_tests::{Bed, Flow, Pair, Policy, soon};

const BOTH: [(Policy<'static>, &str); 2] = [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")];

const TOTAL: u64 = 48 << 20;
const PIECE: u64 = 32 << 10;
const RATE: u64 = 4 << 20;

/// One end sends as fast as it can; the other one lets all buffers fill, then reads slowly until the flow is spliced.
fn slow_reader(name: &str, policy: Policy<'_>, server_reads: bool) {
    const ROUNDS: u64 = 3;
    let bed = Bed::new(name, policy);
    for _ in 0..ROUNDS {
        let mut pair = bed.connect();
        splice_beside_slow_reader(&bed, &mut pair, server_reads);
        pair.exchange(1 << 20);
        pair.close();
    }
    assert_eq!(bed.daemon.status().spliced_total, ROUNDS);
}

fn splice_beside_slow_reader(bed: &Bed, pair: &mut Pair, server_reads: bool) {
    let id = bed.daemon.wait_state(pair.client_port(), &["relay"]).id;
    let (sender, reader) = match server_reads {
        true => (&mut pair.client, &mut pair.server),
        false => (&mut pair.server, &mut pair.client),
    };
    thread::scope(|scope| {
        scope.spawn(|| sender.send(TOTAL));
        // Everything on the way is full, and nobody reads.
        thread::sleep(Duration::from_millis(150));
        while !ask(bed, id).is_spliced() {
            assert!(reader.received() < TOTAL, "not spliced in mid-transfer");
            reader.split().1.receive_slowly(PIECE, Some(RATE));
        }
        reader.receive(TOTAL - reader.received());
    });
}

/// Asks for a splice where none is under way: an attempt is given up where windows stay closed, and a command is for one
/// attempt.
fn ask(bed: &Bed, id: u32) -> Flow {
    let flow = bed.daemon.wait_flow("the flow", |f| f.id == id);
    if flow.state == "relay" {
        // It may be under way by now.
        let _ = bed.daemon.request_splice(id);
    }
    flow
}

#[test]
fn a_slow_server() {
    slow_reader("slow-server", Policy::ON_DEMAND, true);
}

#[test]
fn a_slow_client() {
    slow_reader("slow-client", Policy::ON_DEMAND_DORMANT, false);
}

/// Both ends send and neither reads for a while, with the splice in force: the windows close, and open again.
#[test]
fn windows_that_close_after_the_splice_open_again() {
    for (policy, state) in BOTH {
        let bed = Bed::new("slow-zero", policy);
        let mut pair = bed.connect_spliced(state);
        let (to_server, to_client) = (pair.client.fill(), pair.server.fill());
        // Longer than a first probe of a closed window takes.
        thread::sleep(Duration::from_millis(700));
        pair.client.receive(to_client);
        pair.server.receive(to_server);
        pair.exchange(4 << 20);
        pair.close();
    }
}

/// Buffers are full in both directions when the splice is asked for; then both ends read.
#[test]
fn both_directions_are_full() {
    let bed = Bed::new("slow-both", Policy::ON_DEMAND);
    let mut pair = bed.connect();
    let (to_server, to_client) = (pair.client.fill(), pair.server.fill());
    let id = bed.daemon.wait_state(pair.client_port(), &["relay"]).id;
    bed.daemon.splice(id).unwrap();
    let (client, server) = (pair.client.split(), pair.server.split());
    thread::scope(|scope| {
        scope.spawn(|| client.1.receive_slowly(to_client, Some(8 << 20)));
        server.1.receive_slowly(to_server, Some(8 << 20));
    });
    soon("the splice", || ask(&bed, id).is_spliced());
    pair.exchange(4 << 20);
    pair.close();
}

fn idle(name: &str, first: fn(&mut Pair)) {
    for (policy, state) in BOTH {
        let bed = Bed::new(name, policy);
        // Spliced before a single byte was sent.
        let mut pair = bed.connect_spliced(state);
        first(&mut pair);
        pair.exchange(4 << 20);
        pair.close();
        let status = bed.daemon.status();
        assert_eq!((status.spliced_total, status.relayed_total), (1, 0), "{status:?}");
        bed.daemon.wait_reaped();
    }
}

#[test]
fn no_byte_before_the_splice_then_the_client_speaks() {
    idle("idle-client", |pair| {
        pair.client.send(100);
        pair.server.receive(100);
    });
}

#[test]
fn no_byte_before_the_splice_then_the_server_speaks() {
    idle("idle-server", |pair| {
        pair.server.send(100);
        pair.client.receive(100);
    });
}

/// A splice between a greeting and its answer.
#[test]
fn a_server_that_speaks_first() {
    for state in ["detached", "dormant"] {
        let detach = if state == "detached" { "now" } else { "never" };
        let policy = Policy {
            splice: "after=1",
            detach,
        };
        let bed = Bed::with("idle-greeting", ThreeOptions::default(), policy, |c| c);
        let mut pair = bed.connect();
        pair.server.send(50);
        pair.client.receive(50);
        bed.daemon.wait_state(pair.client_port(), &[state]);
        pair.client.send(20);
        pair.server.receive(20);
        pair.exchange(1 << 20);
        pair.close();
    }
}
