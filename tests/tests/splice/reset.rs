//! A reset by either end reaches the other one at once, in every state of the flow, and the record is reaped.

use std::{thread, time::Duration};

use longsplice_engine::Side;
use longsplice_tests::{Bed, Pair, Policy, SOON, eventually, nft, rng, soon};

/// Longest time that counts as at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
enum By {
    Client,
    Server,
}

fn reset(name: &str, policy: Policy<'_>, state: &str, by: By) {
    let bed = Bed::new(name, policy);
    let mut pair = bed.connect_spliced(state);
    pair.exchange(1 << 20);
    let (ending, mut other) = match by {
        By::Client => (pair.client, pair.server),
        By::Server => (pair.server, pair.client),
    };
    ending.reset();
    other.expect_reset(AT_ONCE);
    bed.daemon.wait_reaped();
    let status = bed.daemon.status();
    let ended = (status.spliced_total, status.ended("reset"), status.relayed_total);
    let expected = if state == "relay" { (0, 0, 1) } else { (1, 1, 0) };
    assert_eq!(ended, expected, "{status:?}");
    assert_eq!(status.health.flows, 0, "{status:?}");
}

#[test]
fn by_the_client_while_relayed() {
    reset("rst-rc", Policy::ON_DEMAND, "relay", By::Client);
}

#[test]
fn by_the_server_while_relayed() {
    reset("rst-rs", Policy::ON_DEMAND, "relay", By::Server);
}

#[test]
fn by_the_client_while_dormant() {
    reset("rst-dc", Policy::DORMANT, "dormant", By::Client);
}

#[test]
fn by_the_server_while_dormant() {
    reset("rst-ds", Policy::DORMANT, "dormant", By::Server);
}

#[test]
fn by_the_client_while_detached() {
    reset("rst-xc", Policy::DETACHED, "detached", By::Client);
}

#[test]
fn by_the_server_while_detached() {
    reset("rst-xs", Policy::DETACHED, "detached", By::Server);
}

/// An end resets after its FIN, and the other one does not write: only the reset can tell it.
#[test]
fn behind_the_end_of_its_stream() {
    for (policy, state) in [
        (Policy::ON_DEMAND, "relay"),
        (Policy::DORMANT, "dormant"),
        (Policy::DETACHED, "detached"),
    ] {
        let bed = Bed::new("rst-behind", policy);
        for by in Side::BOTH {
            let mut pair = bed.connect_spliced(state);
            let [ending, other] = pair.ends(by);
            ending.finish();
            other.expect_end();
            let (ending, other) = match by {
                Side::Client => (pair.client, pair.server),
                Side::Server => (pair.server, pair.client),
            };
            ending.reset();
            soon("the reset", || other.stream.take_error().unwrap().is_some());
        }
        bed.daemon.wait_reaped();
    }
}

/// In mid-transfer the reset overtakes bytes, as any reset does; the bytes before it were right.
#[test]
fn in_mid_transfer() {
    for (policy, state) in [(Policy::DORMANT, "dormant"), (Policy::DETACHED, "detached")] {
        let bed = Bed::new("rst-mid", policy);
        let mut pair = bed.connect_spliced(state);
        pair.exchange(1 << 20);
        pair.client.fill();
        pair.server.fill();
        pair.client.reset();
        pair.server.expect_reset(AT_ONCE);
        bed.daemon.wait_reaped();
    }
}

/// Splices a pair of which an end lacks bytes, and returns whether a drain waits for them. A socket that has begun to retransmit
/// refuses, as it does where a processor is gone for as long as its timer takes.
fn drains(bed: &Bed, pair: &Pair, id: u32) -> bool {
    match bed.daemon.request_splice(id) {
        Ok(()) => {
            bed.daemon.wait_state(pair.client_port(), &["draining"]);
            true
        }
        Err(refusal) => {
            assert!(refusal.contains("recovery"), "{refusal}");
            false
        }
    }
}

/// A server resets while a pair is drained, and the client lacks bytes of its socket as well as some that went past it: no reset
/// stands where the client expects one, and it challenges the first one only.
#[test]
fn beyond_a_hole() {
    let lose = "table inet lose {
        chain in { type filter hook input priority 0; meta length > 500 drop; }
    }";
    let bed = Bed::new("rst-hole", Policy::ON_DEMAND);
    bed.net.client.sysctl("net.ipv4.tcp_sack", "0").unwrap();
    for _ in 0..10 {
        let mut pair = eventually("a drain that waits", SOON, || {
            let mut pair = bed.connect();
            pair.exchange(10_000);
            let flow = bed.daemon.wait_state(pair.client_port(), &["relay"]);
            nft(&bed.net.client, lose);
            pair.server.send(1_000);
            if drains(&bed, &pair, flow.id) {
                return Some(pair);
            }
            nft(&bed.net.client, "delete table inet lose");
            pair.client.reset();
            None
        });
        pair.server.send(3_000);
        thread::sleep(Duration::from_millis(10));
        pair.server.reset();
        pair.client.expect_reset(AT_ONCE);
        nft(&bed.net.client, "delete table inet lose");
    }
    bed.daemon.wait_reaped();
}

/// The server has acknowledged all and has closed, but the socket toward it has not taken that: the server answers what the
/// socket sends again with a reset. Both ends have closed in order all the same.
#[test]
fn in_answer_to_a_late_duplicate() {
    let lose = "table inet lose {
        chain in { type filter hook input priority 0; meta length > 500 drop; }
    }";
    // The programs are before this chain, and the socket is behind it.
    let deafen = "table inet deafen {
        chain in { type filter hook input priority 0; iifname f1 tcp flags & (ack | rst) == ack drop; }
    }";
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let (bed, mut pair) = eventually("a drain that waits", SOON, || {
            let bed = Bed::new("rst-late", policy);
            let mut pair = bed.connect();
            pair.exchange(10_000);
            bed.splice(&pair, state);
            let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
            bed.daemon.unsplice(flow.id).unwrap();
            bed.daemon.wait_state(pair.client_port(), &["relay"]);
            nft(&bed.net.server, lose);
            pair.client.send(1_000);
            drains(&bed, &pair, flow.id).then_some((bed, pair))
        });
        nft(&bed.net.forwarder, deafen);
        nft(&bed.net.server, "delete table inet lose");
        pair.server.receive(1_000);
        pair.close();
        drop(pair);
        bed.daemon.wait_reaped();
        let status = bed.daemon.status();
        assert_eq!(
            (status.ended("closed"), status.ended("reset")),
            (1, 0),
            "{status:?}"
        );
    }
}

/// An end resets somewhere between relay and splice, with bytes under way in both directions.
#[test]
fn during_the_splice() {
    const ROUNDS: u64 = 30;
    let mut rng = rng();
    let bed = Bed::new("rst-during", Policy::DETACHED);
    for round in 0..ROUNDS {
        let mut pair = bed.connect();
        pair.client.send(100_000);
        pair.server.send(100_000);
        thread::sleep(Duration::from_micros(rng.u64(0..4_000)));
        let (ending, mut other) = match round % 2 {
            0 => (pair.client, pair.server),
            _ => (pair.server, pair.client),
        };
        ending.reset();
        other.expect_reset(AT_ONCE);
    }
    // A reset that came before the connection to the server was complete counts as a refusal.
    bed.daemon.wait_status("all to end", |s| {
        s.spliced_total + s.relayed_total + s.listeners[0].refused_total == ROUNDS
    });
    bed.daemon.wait_reaped();
}

/// An end resets while its pair comes back by command: the reset may pass right before the sockets are awake, and reach neither of
/// them. The pair ends all the same.
#[test]
fn during_the_return() {
    const ROUNDS: usize = 60;
    let mut rng = rng();
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let bed = Bed::new("rst-return", policy);
        for round in 0..ROUNDS {
            let pair = bed.connect();
            bed.splice(&pair, state);
            let id = bed.daemon.wait_state(pair.client_port(), &[state]).id;
            let after = Duration::from_micros(rng.u64(0..2_000));
            let (ending, mut other) = match round % 2 {
                0 => (pair.client, pair.server),
                _ => (pair.server, pair.client),
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(after);
                    ending.reset();
                });
                // The flow may have ended already.
                let _ = bed.daemon.unsplice(id);
            });
            other.expect_reset(AT_ONCE);
        }
        bed.daemon.wait_reaped();
    }
}
