//! A spliced pair comes back: by command and by each kind of condition, from both depths, at exactly the right byte,
//! and is spliced again.

use std::{
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::{PerSide, Returned, Side, Trap, Until, policy::SplicePolicy};
use longsplice_tests::{
    Bed, Pair, Policy, SOON, eventually,
    library::{Depth, Desk, Library, at_once, near, trap_of},
    rng, soon,
};

/// Splices and unsplices by command, with bytes in both directions in every state.
fn to_and_fro(name: &str, policy: Policy<'_>, state: &str) {
    const CYCLES: u64 = 20;
    let bed = Bed::new(name, policy);
    let mut pair = bed.connect();
    pair.exchange(10_000);
    for _ in 0..CYCLES {
        bed.splice(&pair, state);
        pair.exchange(50_000);
        bed.daemon.take_back(pair.client_port(), state);
        pair.exchange(50_000);
    }
    pair.close();
    let status = bed
        .daemon
        .wait_status("as many of each", |s| s.resumed_total == CYCLES);
    assert_eq!(status.spliced_total, CYCLES, "{status:?}");
    assert_eq!(status.returned("admin"), CYCLES, "{status:?}");
    bed.daemon.wait_reaped();
}

#[test]
fn by_command_from_dormant() {
    to_and_fro("un-dormant", Policy::ON_DEMAND_DORMANT, "dormant");
}

#[test]
fn by_command_from_detached() {
    to_and_fro("un-detached", Policy::ON_DEMAND, "detached");
}

/// The pair stays relayed under any listener's policy: the caller that unspliced it wants to keep it.
#[test]
fn after_a_command_it_stays_relayed_until_asked() {
    for (policy, state) in [(Policy::DORMANT, "dormant"), (Policy::DETACHED, "detached")] {
        let bed = Bed::new("un-stays", policy);
        let mut pair = bed.connect_spliced(state);
        pair.exchange(1 << 20);
        let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
        bed.daemon.unsplice(flow.id).unwrap();
        let back = bed.daemon.wait_state(pair.client_port(), &["relay"]);
        assert_eq!(back.id, flow.id, "it keeps its identity");
        assert_eq!(back.reason.as_deref(), Some("by_command"));
        // Enough bytes to trigger any policy.
        for _ in 0..20 {
            pair.exchange(500_000);
        }
        let status = bed.daemon.status();
        assert_eq!((status.spliced_total, status.resumed_total), (1, 1), "{status:?}");
        bed.splice(&pair, state);
        pair.exchange(1 << 20);
        pair.close();
        assert_eq!(bed.daemon.status().spliced_total, 2);
    }
}

/// A command for a relayed pair, or for an unknown flow, fails with the reason.
#[test]
fn a_command_that_cannot_be_followed_says_why() {
    let bed = Bed::new("un-why", Policy::ON_DEMAND);
    let mut pair = bed.connect();
    let flow = bed.daemon.wait_state(pair.client_port(), &["relay"]);
    for (id, code, says) in [
        (flow.id, 1, "not spliced"),
        (4_000_000_000, 1, "there is no flow"),
    ] {
        let output = bed.daemon.cli(&["unsplice", &id.to_string()]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(says), "{text}");
    }
    pair.exchange(1 << 20);
    pair.close();
}

/// Runs a listener whose connections come back by a condition, and are spliced again.
fn by_condition(name: &str, unsplice: &str, causes: &[&str], mut work: impl FnMut(&Bed, &mut Pair)) {
    for detach in ["never", "now"] {
        let policy = Policy {
            splice: "now",
            detach,
        };
        let bed = Bed::with(name, Default::default(), policy, |c| {
            c.with(&format!("unsplice = \"{unsplice}\""))
        });
        let mut pair = bed.connect();
        // A busy pair waits for a moment at which it can be spliced again.
        soon("two returns", || {
            work(&bed, &mut pair);
            bed.daemon.status().resumed_total >= 2
        });
        pair.close();
        let status = bed
            .daemon
            .wait_status("the end", |s| s.listeners.iter().all(|l| l.open == 0));
        assert_eq!(status.segments("aborted"), 0, "{detach}: {status:?}");
        for cause in causes {
            assert!(status.returned(cause) > 0, "{detach}: {cause}: {status:?}");
        }
        assert_eq!(
            causes.iter().map(|c| status.returned(c)).sum::<u64>(),
            status.unsplices_total.values().sum::<u64>(),
            "{detach}: no other causes: {status:?}"
        );
    }
}

fn many_exchanges(_: &Bed, pair: &mut Pair) {
    for _ in 0..40 {
        pair.exchange(300_000);
        pair.exchange_unevenly(1_000, 30_000);
        pair.exchange_unevenly(30_000, 1_000);
    }
}

#[test]
fn by_bytes_of_the_client() {
    by_condition("un-bytes-c", "bytes=client:200kB", &["client"], many_exchanges);
}

#[test]
fn by_bytes_of_the_server() {
    by_condition("un-bytes-s", "bytes=server:200kB", &["server"], many_exchanges);
}

#[test]
fn by_data_of_the_client() {
    by_condition("un-data-c", "data=client", &["client"], many_exchanges);
}

#[test]
fn by_data_of_the_server() {
    by_condition("un-data-s", "data=server", &["server"], many_exchanges);
}

#[test]
fn by_data_of_either_side() {
    by_condition("un-data", "data", &["client", "server"], |bed, pair| {
        for (to_server, to_client) in [(30_000, 0), (0, 30_000)].repeat(5) {
            bed.daemon
                .wait_state(pair.client_port(), &["dormant", "detached"]);
            pair.exchange_unevenly(to_server, to_client);
        }
    });
}

#[test]
fn after_some_time() {
    by_condition("un-after", "after=40ms", &["elapsed"], |bed, pair| {
        while bed.daemon.status().resumed_total < 5 {
            pair.exchange(1 << 20);
        }
    });
}

#[test]
fn by_idleness() {
    by_condition("un-idle", "idle=100ms", &["idle"], |_, pair| {
        for _ in 0..3 {
            pair.exchange(200_000);
            // This silence is the condition.
            thread::sleep(Duration::from_millis(700));
        }
    });
}

#[test]
fn by_whatever_comes_first() {
    by_condition(
        "un-first",
        "bytes=client:50kB,bytes=server:5MB,after=10s",
        &["client"],
        |_, pair| {
            for _ in 0..10 {
                pair.exchange_unevenly(60_000, 6_000);
            }
        },
    );
}

/// Checks a return by bytes: one end has sent `beyond` more bytes than may pass, and the other one has received the
/// permitted ones; the rest is readable here.
fn exactly(library: &Library, pair: &mut Pair, returned: &mut Returned, side: Side, may: u64, beyond: u64) {
    assert_eq!(returned.why, trap_of(side));
    let [from, to] = pair.ends(side);
    assert_eq!(returned.passed[side], may);
    assert_eq!(to.arrived(), to.received(), "and no more");
    let rest = library.read(near(returned, side), beyond as usize);
    to.vouch(&rest);
    assert_eq!(to.received(), from.sent());
    assert_eq!(to.arrived() + beyond, from.sent(), "nothing came by another way");
}

/// The sizes are around those of segments and super-packets, and random.
#[test]
fn exactly_so_many_bytes_pass() {
    let mut rng = rng();
    for depth in Depth::BOTH {
        let desk = Desk::new("un-exact");
        for side in Side::BOTH {
            let random: Vec<u64> = (0..6).map(|_| rng.u64(1..400_000)).collect();
            for may in [1, 2, 1447, 1448, 1449, 65_536].into_iter().chain(random) {
                let beyond = rng.u64(1..100_000);
                let (mut pair, call) = desk.spliced(depth, Until::bytes_from(side, may));
                let [from, to] = pair.ends(side);
                let mut returned = thread::scope(|scope| {
                    scope.spawn(|| from.send(may + beyond));
                    to.receive(may);
                    call.returned()
                });
                assert!(returned.spliced);
                exactly(&desk.library, &mut pair, &mut returned, side, may, beyond);
                // The other direction still works.
                let [from, to] = pair.ends(side);
                to.send(777);
                let there = library_reads(&desk.library, &mut returned, side, 777);
                from.vouch(&there);
                // The splice can go on.
                let call = desk.library.splice(at_once(returned, depth), Until::closed());
                pair.exchange(20_000);
                pair.close();
                drop(call);
            }
        }
    }
}

fn library_reads(library: &Library, returned: &mut Returned, side: Side, bytes: usize) -> Vec<u8> {
    library.read(near(returned, side.other()), bytes)
}

/// The budget is used up while the pair is being spliced, somewhere between relay and splice.
#[test]
fn exactly_so_many_bytes_pass_during_the_splice() {
    let mut rng = rng();
    let desk = Desk::new("un-exact-during");
    for round in 0..60 {
        let depth = Depth::BOTH[round % 2];
        let side = Side::BOTH[round / 2 % 2];
        let (may, beyond) = (rng.u64(1..3 << 20), rng.u64(1..50_000));
        let (mut pair, near_pair) = desk.connect_for(depth);
        let call = desk.library.splice(near_pair, Until::bytes_from(side, may));
        let [from, to] = pair.ends(side);
        let mut returned = thread::scope(|scope| {
            scope.spawn(|| from.send(may + beyond));
            to.receive(may);
            call.returned()
        });
        assert_eq!((returned.why, returned.passed[side]), (trap_of(side), may));
        let there = desk.library.read(near(&mut returned, side), beyond as usize);
        let [_, to] = pair.ends(side);
        to.vouch(&there);
        assert_eq!(to.arrived(), may);
    }
}

/// Less than the least retransmission timeout (`TCP_RTO_MIN`, 200 ms).
pub(crate) const LEAST_RTO: Duration = Duration::from_millis(150);

/// A request is trapped whole, and is readable at once: its sender's timers do not notice.
#[test]
fn data_is_trapped_whole_and_at_once() {
    const ROUNDS: u32 = 60;
    for depth in Depth::BOTH {
        for side in Side::BOTH {
            let desk = Desk::new("un-data-once");
            let (mut pair, near_pair) = desk.connect_for(depth);
            pair.client.stream.set_nodelay(true).unwrap();
            let mut next = near_pair;
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                let call = desk.library.splice(next, Until::data_from(side));
                desk.library.wait_state(pair.client_port(), &[depth.state()]);
                let [from, to] = pair.ends(side);
                // The other direction passes all the while.
                to.send(3_000);
                from.receive(3_000);
                let start = Instant::now();
                from.send(1_000);
                let mut returned = call.returned();
                let request = desk.library.read(near(&mut returned, side), 1_000);
                times.push(start.elapsed());
                assert_eq!((returned.why, returned.passed[side]), (trap_of(side), 0));
                assert_eq!(to.arrived(), to.received(), "none of it was forwarded");
                desk.library.write(near(&mut returned, side.other()), &request);
                to.receive(1_000);
                next = at_once(returned, depth);
            }
            times.sort_unstable();
            let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
            // A sender that was stopped for as long as its timer takes repeats what is held; its receiver sees that once.
            if worst < LEAST_RTO {
                soon(&format!("nothing to be lost: {depth:?}, {side:?}"), || {
                    pair.lost() == 0
                });
            }
            eprintln!("{depth:?}, data of the {side:?}: readable after {median:?}, at most {worst:?}");
        }
    }
}

/// Limit of a condition of time: a pair is spliced and its bytes pass within it, though processors are gone now and then.
const LIMIT: Duration = Duration::from_secs(2);

/// Conditions of time bring back an idle pair, and a busy one.
#[test]
fn time_is_kept() {
    // Both depths wait at the same time.
    thread::scope(|scope| {
        for depth in Depth::BOTH {
            scope.spawn(move || time_is_kept_at(depth));
        }
    });
}

fn time_is_kept_at(depth: Depth) {
    let desk = Desk::new("un-time");
    for (until, why) in [
        (Until::elapsed(LIMIT), Trap::Elapsed),
        (Until::idle(LIMIT), Trap::Idle),
    ] {
        let start = Instant::now();
        let (mut pair, call) = desk.spliced(depth, until);
        pair.exchange(100_000);
        let mut returned = call.returned();
        let took = start.elapsed();
        assert_eq!((returned.why, returned.passed), (why, PerSide::both(100_000)));
        // The engine checks an idle spliced flow every 500 ms. The limit is that of a machine whose processors are gone now and then.
        let due = LIMIT..LIMIT + Duration::from_secs(4);
        assert!(due.contains(&took), "{why:?} after {took:?}");
        pair.client.send(10);
        let read = desk.library.read(&mut returned.client, 10);
        pair.server.vouch(&read);
    }
    // Each byte restarts the idle time.
    let (mut pair, call) = desk.spliced(depth, Until::idle(LIMIT));
    let start = Instant::now();
    while start.elapsed() < LIMIT + Duration::from_secs(1) {
        pair.exchange(100);
        assert!(!call.is_over());
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(call.returned().why, Trap::Idle);
}

/// A returned pair goes to the caller that waits for it; a flow without such a caller goes to the one that
/// requests it.
#[test]
fn it_comes_back_to_who_waits_or_to_who_asks() {
    for depth in Depth::BOTH {
        let desk = Desk::new("un-asked");
        let (mut pair, call) = desk.spliced(depth, Until::bytes_from(Side::Client, 1 << 30));
        pair.exchange(100_000);
        let id = desk.library.wait_state(pair.client_port(), &[depth.state()]).id;
        assert!(desk.library.unsplice(id).is_none());
        let returned = call.returned();
        assert_eq!(
            (returned.why, returned.passed, returned.id),
            (Trap::Admin, PerSide::both(100_000), id)
        );
        // This flow has no waiting caller any more.
        let call = desk
            .library
            .splice(at_once(returned, Depth::Detached), Until::closed());
        assert_eq!(call.detached(), id);
        pair.exchange(100_000);
        let mut returned = desk.library.unsplice(id).unwrap();
        assert_eq!((returned.why, returned.id), (Trap::Admin, id));
        pair.client.send(1_000);
        let read = desk.library.read(&mut returned.client, 1_000);
        pair.server.vouch(&read);
        let call = desk
            .library
            .splice(at_once(returned, depth), Until::data_from(Side::Server));
        desk.library.wait_state(pair.client_port(), &[depth.state()]);
        pair.server.send(1_000);
        let mut returned = call.returned();
        let read = desk.library.read(&mut returned.server, 1_000);
        pair.client.vouch(&read);
    }
}

/// A condition is met before the splice is made: relayed or spliced, the caller sees no difference.
#[test]
fn a_pair_that_is_only_relayed_comes_back_just_so() {
    let mut rng = rng();
    let desk = Desk::new("un-relayed");
    for side in Side::BOTH {
        let may = rng.u64(1..200_000);
        let (mut pair, near_pair) = desk.connect();
        let near_pair = near_pair.with_splice(SplicePolicy::Never);
        let call = desk.library.splice(near_pair, Until::bytes_from(side, may));
        let [from, to] = pair.ends(side);
        from.send(may + 500);
        to.receive(may);
        let mut returned = call.returned();
        assert!(!returned.spliced);
        exactly(&desk.library, &mut pair, &mut returned, side, may, 500);
        let call = desk.library.splice(returned, Until::data_from(side.other()));
        let [from, to] = pair.ends(side);
        from.send(50_000);
        to.receive(50_000);
        assert!(!call.is_over());
        to.send(1);
        let mut returned = call.returned();
        assert_eq!(
            (returned.why, returned.passed[side]),
            (trap_of(side.other()), 50_000)
        );
        let read = desk.library.read(near(&mut returned, side.other()), 1);
        from.vouch(&read);
        let id = returned.id;
        let call = desk.library.splice(returned, Until::elapsed(Duration::ZERO));
        assert_eq!(call.returned().id, id, "it keeps its identity");
    }
}

/// A request finds a pair that has just come back, and that its handler is about to pass on: nothing else tells it from one that
/// is gone.
#[test]
fn a_pair_is_found_while_it_comes_back() {
    for (policy, state) in [
        (Policy::ON_DEMAND_DORMANT, "dormant"),
        (Policy::ON_DEMAND, "detached"),
    ] {
        let bed = Bed::new("uns-again", policy);
        let mut pair = bed.connect();
        bed.splice(&pair, state);
        let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
        for round in 0..100 {
            bed.daemon.unsplice(flow.id).unwrap();
            eventually("its return", SOON, || match bed.daemon.unsplice(flow.id) {
                Ok(()) => None,
                Err(error) if error.contains("409") => Some(()),
                Err(error) => panic!("round {round}: {error}"),
            });
            // It is spliced until it is back.
            eventually("another splice", SOON, || {
                match bed.daemon.request_splice(flow.id) {
                    Ok(()) => Some(()),
                    Err(error) if error.contains("409") => None,
                    Err(error) => panic!("round {round}: {error}"),
                }
            });
            bed.daemon.wait_state(pair.client_port(), &[state]);
        }
        pair.exchange(1 << 20);
        pair.close();
    }
}

#[test]
fn a_command_about_a_closed_flow_says_that_it_is_ending() {
    let bed = Bed::with("unsplice-closed", Default::default(), Policy::DETACHED, |c| {
        c.record_ttl("60s")
    });
    let mut pair = bed.connect_spliced("detached");
    let port = pair.client_port();
    pair.close();
    let flow = bed.daemon.wait_state(port, &["closing"]);
    let answers = [
        bed.daemon.request_splice(flow.id),
        bed.daemon.unsplice(flow.id),
        bed.daemon.kill_flow(flow.id),
    ];
    for answer in answers {
        let error = answer.expect_err("it is closed");
        assert!(error.contains("is ending"), "{error}");
    }
}
