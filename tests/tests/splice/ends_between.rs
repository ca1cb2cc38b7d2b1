//! Ends of pairs between two states: in a drain that waits, on their way back to a caller, and awake before all that passed by is
//! acknowledged.

use std::{
    cell::RefCell,
    io::Write,
    mem::MaybeUninit,
    time::{Duration, Instant},
};

use longsplice_engine::{
    FlowState, Pair as Near, Returned, Side, Until,
    policy::{DetachPolicy, SplicePolicy},
};
use longsplice_lab::Namespace;
use longsplice_tests::{
    Bed, Pair, Policy, SOON, eventually, ip,
    library::{Call, Depth, Desk},
    nft, soon,
};
use socket2::SockRef;

use crate::routes::further_link;

/// Longest time that counts as at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Time after which a coupling has been given up.
const COUPLED: Duration = Duration::from_secs(2);

/// Drops the payload that an end is sent.
const LOSE: &str =
    "table inet lose { chain in { type filter hook input priority 0; meta length > 500 drop; }; }";
const LOSE_NOTHING: &str = "delete table inet lose";

/// Time after which a pair is spliced that is to be relayed.
const HOUR: Duration = Duration::from_secs(3600);

/// Bytes that the client lacks in its drain.
const LOST: u64 = 1_000;

/// Bytes of one segment.
const FEW: u64 = 100;

/// Bytes that pass by the sockets of a pair in its drain.
const BESIDE: u64 = 3_000;

/// Makes a drain that waits for the client: it lacks what its socket was given. Repeats with other pairs until one is drained: a
/// socket that has begun to retransmit stays in the relay.
fn drain<T>(
    client: &Namespace,
    mut begin: impl FnMut(&mut Pair) -> Option<T>,
    connect: impl Fn() -> Pair,
) -> (Pair, T) {
    eventually("a drain that waits", SOON, || {
        let mut pair = connect();
        pair.exchange(10_000);
        nft(client, LOSE);
        pair.server.send(LOST);
        let begun = begin(&mut pair);
        if begun.is_none() {
            nft(client, LOSE_NOTHING);
        }
        Some((pair, begun?))
    })
}

/// Lets bytes of the client pass the socket by: a reset of the server's own socket stands behind what that end has.
fn pass_by(pair: &mut Pair) {
    pair.client.send(BESIDE);
    pair.server.receive(BESIDE);
}

/// Returns a pair of this bed whose drain waits, and its number.
fn waiting(bed: &Bed) -> (Pair, u32) {
    let begin = |pair: &mut Pair| {
        let flow = bed.daemon.wait_state(pair.client_port(), &["relay"]);
        bed.daemon.request_splice(flow.id).ok()?;
        let asked = Instant::now();
        while asked.elapsed() < COUPLED {
            let flows = bed.daemon.flows();
            if flows.iter().any(|f| f.id == flow.id && f.state == "draining") {
                return Some(flow.id);
            }
        }
        None
    };
    drain(&bed.net.client, begin, || bed.connect())
}

#[test]
fn a_drain_ends_when_that_is_asked_for() {
    let bed = Bed::new("eb-kill", Policy::ON_DEMAND);
    let (mut pair, id) = waiting(&bed);
    pass_by(&mut pair);
    bed.daemon.kill_flow(id).unwrap();
    pair.server.expect_reset(AT_ONCE);
    pair.client.expect_reset(AT_ONCE);
    bed.daemon.wait_reaped();
}

#[test]
fn a_drain_ends_with_the_grace_period_of_a_shutdown() {
    let mut bed = Bed::with("eb-stop", Default::default(), Policy::ON_DEMAND, |c| {
        c.set("shutdown_timeout = \"100ms\"\n[access_log]\npath = \"access.log\"")
    });
    let (mut pair, _) = waiting(&bed);
    pass_by(&mut pair);
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    pair.server.expect_reset(AT_ONCE);
    pair.client.expect_reset(AT_ONCE);
    let log = std::fs::read_to_string(bed.daemon.dir().join("access.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("\"shutdown\"")).collect();
    assert_eq!(lines.len(), 1, "{log}");
}

/// A segment passed the programs before its flow was registered, and waits in a shaper, or for a processor, while the drain
/// begins: here it comes by an interface that is not watched. The programs let the server acknowledge it all the same.
#[test]
fn a_segment_that_comes_late_to_its_socket_is_counted() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        for ends in [false, true] {
            let bed = Bed::with("eb-late", Default::default(), policy, |c| {
                c.set("interfaces = [\"f0\", \"f1\"]")
            });
            further_link(&bed.net, &bed.net.client, ["f2", "c2"], 3);
            let (mut pair, _) = waiting(&bed);
            let way_around = |verb| {
                let route = format!("route {verb} 198.18.1.2/32 via 198.18.3.2 dev c2");
                ip(&bed.net.client, &route);
            };
            way_around("replace");
            if ends {
                pair.client.finish();
                pair.server.expect_end();
            } else {
                pair.client.send(FEW);
                pair.server.receive(FEW);
            }
            way_around("del");
            nft(&bed.net.client, LOSE_NOTHING);
            pair.client.receive(LOST);
            bed.daemon.wait_state(pair.client_port(), &[state]);
            pair.server.send(10_000);
            pair.client.receive(10_000);
            pair.server.finish();
            pair.client.expect_end();
            if !ends {
                pair.client.finish();
                pair.server.expect_end();
            }
            bed.daemon.wait_reaped();
        }
    }
}

/// The programs of the flow translate the resets of its sockets, which stand below what the server has.
#[test]
fn the_ends_of_a_call_that_is_dropped_in_its_drain_are_reset() {
    let desk = Desk::new("eb-drop");
    let calls = RefCell::new(None);
    let splicer = desk.library.splicer();
    let begin = |pair: &mut Pair| {
        let call: Call<'_> = calls.borrow_mut().take()?;
        let flow = desk.library.wait_state(pair.client_port(), &[FlowState::Relay]);
        let asked = desk.library.spawn({
            let splicer = splicer.clone();
            async move { splicer.request_splice(flow.id).await }
        });
        let since = Instant::now();
        while since.elapsed() < COUPLED && !asked.is_finished() {
            if splicer
                .flows()
                .any(|f| f.id == flow.id && f.state == FlowState::Draining)
            {
                return Some(call);
            }
        }
        None
    };
    let (mut pair, call) = drain(&desk.net.client, begin, || {
        let (pair, sockets) = desk.connect();
        let sockets = sockets
            .with_splice(SplicePolicy::AfterTime(HOUR))
            .with_detach(DetachPolicy::Never);
        calls.replace(Some(desk.library.splice(sockets, Until::closed())));
        pair
    });
    pass_by(&mut pair);
    call.abandon();
    pair.server.expect_reset(AT_ONCE);
    pair.client.expect_reset(AT_ONCE);
}

/// The reader of a pair that is to come back has stopped, with bytes of the pump that it has no room for.
#[test]
fn a_pair_that_cannot_be_given_back_is_reset_when_it_is_idle() {
    let policy = Policy {
        splice: "after=1GB",
        detach: "never",
    };
    let bed = Bed::with("eb-idle", Default::default(), policy, |c| {
        c.with("unsplice = \"after=1s\"\nrelay_idle_timeout = \"2s\"")
    });
    let mut pair = bed.connect();
    pair.server.fill();
    soon("the end of an idle pair", || {
        bed.daemon.log().contains("nothing has passed for too long")
    });
    pair.server.expect_reset(AT_ONCE);
}

/// A pair comes back each second, as it is idle, and is spliced again at once: it is never relayed for long.
#[test]
fn a_pair_that_comes_back_because_it_is_idle_ends_in_time() {
    let policy = Policy {
        splice: "now",
        detach: "never",
    };
    let bed = Bed::with("eb-again", Default::default(), policy, |c| {
        c.with("unsplice = \"idle=1s\"\nrelay_idle_timeout = \"2s\"")
            .set("idle_timeout = \"3s\"")
    });
    let mut pair = bed.connect();
    pair.exchange(10_000);
    // Between two splices the pair is in no list for a moment.
    soon("the end of an idle pair", || {
        bed.daemon.log().contains("connection ended")
    });
    assert!(bed.daemon.status().returned("idle") > 0, "it came back");
    // Parked sockets are closed in silence: each end is reset by its next segment then.
    for side in Side::BOTH {
        let [end, _] = pair.ends(side);
        soon("a reset", || (&end.stream).write(b"?").is_err());
    }
}

/// Both ends have closed, and the client lacks bytes that passed by. Its socket, alone, would acknowledge them to the server.
#[test]
fn the_end_of_the_process_acknowledges_nothing_that_an_end_lacks() {
    let mut bed = Bed::new("eb-lacks", Policy::ON_DEMAND_DORMANT);
    let mut pair = bed.connect();
    pair.exchange(10_000);
    bed.splice(&pair, "dormant");
    let flow = bed.daemon.wait_state(pair.client_port(), &["dormant"]);
    nft(&bed.net.client, LOSE);
    let before = bed.daemon.status().segments("forwarded");
    pair.server.send(LOST);
    soon("the bytes to pass", || {
        bed.daemon.status().segments("forwarded") > before
    });
    bed.daemon.unsplice(flow.id).unwrap();
    bed.daemon.wait_state(pair.client_port(), &["undraining"]);
    pair.server.finish();
    pair.client.finish();
    soon("the end of the relay", || {
        bed.daemon.log().contains("connection ended")
    });
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    pair.client.expect_reset(AT_ONCE);
    // It has the end of the client's stream already.
    soon("a reset of the server", || {
        pair.server.stream.take_error().unwrap().is_some()
    });
}

/// A reset concerns the sockets alone while they relay, and what came before it is in one of them: a later call reads it.
#[test]
fn what_came_before_a_reset_is_relayed_by_a_later_call() {
    const LAST: usize = 40_000;
    let desk = Desk::new("eb-before");
    // The client has room for little.
    desk.net
        .client
        .sysctl("net.ipv4.tcp_rmem", "4096 8192 8192")
        .unwrap();
    let (mut pair, call) = desk.spliced(Depth::Dormant, Until::closed());
    let port = pair.client_port();
    let later = |returned: Returned, side, bytes| {
        let later = Near::from(returned).with_splice(SplicePolicy::AfterTime(HOUR));
        desk.library.splice(later, Until::bytes_from(side, bytes))
    };
    let flow = desk.library.wait_state(port, &[FlowState::Dormant]);
    desk.library.unsplice(flow.id);
    // The flow is kept for a while, and its sockets relay.
    let relayed = later(call.returned(), Side::Client, FEW);
    desk.library.wait_state(port, &[FlowState::Relay]);
    pair.client.send(FEW);
    pair.server.receive(FEW);
    let returned = relayed.returned();
    pair.server.send(LAST as u64);
    soon("the last bytes", || {
        let mut buffer = [MaybeUninit::uninit(); LAST];
        SockRef::from(&returned.server).peek(&mut buffer).unwrap() == LAST
    });
    pair.server.reset();
    soon("the reset", || returned.server.peer_addr().is_err());
    // A reset overtakes what its own socket still holds, so that holds little.
    SockRef::from(&returned.client)
        .set_send_buffer_size(4_096)
        .unwrap();
    let call = later(returned, Side::Server, 1 << 30);
    let received = pair.client.expect_reset(AT_ONCE);
    assert!(received > LAST as u64 / 2, "{received} bytes, of {LAST}");
    assert!(call.closed().reset);
}
