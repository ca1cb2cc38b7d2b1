//! Splices of connections on which few bytes move, or none: full buffers and a slow reader, a stopped reader, no byte
//! at all yet, a server that sends first.

use std::{thread, time::Duration};

use longsplice_lab::LineOptions;
use longsplice_repair::tcp_info;
use longsplice_tests::{Bed, Flow, Pair, Policy, soon};

const BOTH: [(Policy<'static>, &str); 2] = [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")];

const TOTAL: u64 = 48 << 20;
const PIECE: u64 = 32 << 10;
const RATE: u64 = 4 << 20;

/// Splices while one end sends as fast as it can; the other one lets all buffers fill, then reads slowly until the flow
/// is spliced.
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
        // Everything on the way is full, and the reader is idle.
        thread::sleep(Duration::from_millis(150));
        let asking = scope.spawn(|| {
            // Only some attempts succeed: ask more often than `soon` looks.
            let is_spliced = |_| {
                thread::sleep(Duration::from_millis(5));
                ask(bed, id).is_spliced()
            };
            soon("the splice", || (0..100).any(is_spliced));
        });
        while !asking.is_finished() {
            assert!(reader.received() < TOTAL, "not spliced in mid-transfer");
            reader.split().1.receive_slowly(PIECE, Some(RATE));
        }
        reader.receive(TOTAL - reader.received());
    });
}

/// Requests a splice unless one is under way: an attempt is given up where windows stay closed, and a command is for
/// one attempt.
fn ask(bed: &Bed, id: u32) -> Flow {
    let flow = bed.daemon.wait_flow("the flow", |f| f.id == id);
    if flow.state == "relay" {
        // It may be under way by now.
        let _ = bed.daemon.request_splice(id);
    }
    flow
}

/// Fails unless a splice is refused because of a stopped reader, and the command reports that.
fn stays_relayed(bed: &Bed, id: u32) {
    let said = bed.daemon.splice(id).unwrap_err();
    assert!(said.contains("stays relayed (slow_reader)"), "{said}");
    let said = bed.daemon.request_splice(id).unwrap_err();
    assert!(said.contains("409") && said.contains("slow_reader"), "{said}");
    let flow = bed.daemon.wait_flow("the flow", |f| f.id == id);
    assert_eq!(
        (flow.state.as_str(), flow.reason.as_deref()),
        ("relay", Some("slow_reader"))
    );
}

/// An attempt closes the window of an end that writes to a stopped reader. An attempt that is given up opens it again:
/// an end with nothing to send would not probe it.
#[test]
fn windows_that_an_attempt_has_closed_open_again() {
    const LITTLE: u64 = 150_000;
    let bed = Bed::new("slow-open", Policy::ON_DEMAND);
    let mut pair = bed.connect();
    let id = bed.daemon.wait_state(pair.client_port(), &["relay"]).id;
    let offered = |pair: &Pair| tcp_info(&pair.server.stream).unwrap().snd_wnd().unwrap();
    pair.server.send(LITTLE);
    stays_relayed(&bed, id);
    soon("the window to be open again", || offered(&pair) > 0);
    pair.client.receive(LITTLE);
    pair.exchange(1 << 20);
    pair.close();
}

/// Every attempt tells a stopped reader from a reading one.
#[test]
fn a_reader_that_stops_and_reads_again() {
    for (policy, state) in [
        (Policy::ON_DEMAND_DORMANT, "dormant"),
        (Policy::ON_DEMAND, "detached"),
    ] {
        let bed = Bed::new("slow-again", policy);
        let mut pair = bed.connect();
        let id = bed.daemon.wait_state(pair.client_port(), &["relay"]).id;
        for _ in 0..2 {
            let waiting = pair.server.fill();
            stays_relayed(&bed, id);
            pair.client.receive(waiting);
            bed.daemon.splice(id).unwrap();
            bed.daemon.wait_state(pair.client_port(), &[state]);
            pair.exchange(1 << 20);
            bed.daemon.unsplice(id).unwrap();
            bed.daemon.wait_state(pair.client_port(), &["relay"]);
        }
        pair.close();
        let status = bed.daemon.wait_status("its end", |s| s.spliced_total == 2);
        assert_eq!(status.relayed_total, 0, "{status:?}");
    }
}

/// A pair comes back while its reader has stopped: a command splices it again, or gives the reason against it, and
/// succeeds once the reader reads.
#[test]
fn a_return_beside_a_stopped_reader() {
    for (policy, state) in [
        (Policy::ON_DEMAND_DORMANT, "dormant"),
        (Policy::ON_DEMAND, "detached"),
    ] {
        let bed = Bed::new("slow-return", policy);
        let mut pair = bed.connect();
        bed.splice(&pair, state);
        let waiting = pair.server.fill();
        let id = bed.daemon.wait_state(pair.client_port(), &[state]).id;
        bed.daemon.unsplice(id).unwrap();
        bed.daemon
            .wait_state(pair.client_port(), &["relay", "undraining"]);
        let more = pair.server.fill();
        let asked = bed.daemon.splice(id);
        let now = bed.daemon.wait_flow("the flow", |f| f.id == id).state;
        pair.client.receive(waiting + more);
        match asked {
            Ok(()) => assert!(now == "draining" || now == state, "{now}"),
            Err(said) => {
                assert!(said.contains("stays relayed ("), "{said}");
                bed.daemon.splice(id).unwrap();
            }
        }
        bed.daemon.wait_state(pair.client_port(), &[state]);
        pair.exchange(1 << 20);
        pair.close();
    }
}

#[test]
fn a_slow_server() {
    slow_reader("slow-server", Policy::ON_DEMAND, true);
}

#[test]
fn a_slow_client() {
    slow_reader("slow-client", Policy::ON_DEMAND_DORMANT, false);
}

/// Both ends send and both are idle as readers for a while, with the splice in force: the windows close, and open
/// again.
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

/// Buffers are full in both directions when the splice is requested; then both ends read.
#[test]
fn both_directions_are_full() {
    let bed = Bed::new("slow-both", Policy::ON_DEMAND);
    let mut pair = bed.connect();
    let (to_server, to_client) = (pair.client.fill(), pair.server.fill());
    let id = bed.daemon.wait_state(pair.client_port(), &["relay"]).id;
    stays_relayed(&bed, id);
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
        // The splice begins before the first byte.
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

/// The splice begins between a greeting and its answer.
#[test]
fn a_server_that_speaks_first() {
    for state in ["detached", "dormant"] {
        let detach = if state == "detached" { "now" } else { "never" };
        let policy = Policy {
            splice: "after=1",
            detach,
        };
        let bed = Bed::with("idle-greeting", LineOptions::default(), policy, |c| c);
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
