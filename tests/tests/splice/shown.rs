//! `longsplice flows` tells of a connection as a whole, whether its segments pass sockets or not.

use std::{thread, time::Duration};

use longsplice_tests::{Bed, Pair, Policy, SOON, eventually, soon};

/// Bytes of each exchange.
const BYTES: u64 = 200_000;

#[test]
fn a_spliced_connection_that_carries_data_is_not_idle() {
    for (name, policy, state, more) in [
        ("shown-dormant", Policy::DORMANT, "dormant", ""),
        (
            "shown-waited",
            Policy::DETACHED,
            "detached",
            "unsplice = \"idle=1h\"",
        ),
    ] {
        let bed = Bed::with(name, Default::default(), policy, |c| c.with(more));
        let mut pair = bed.connect_spliced(state);
        soon("an age, and no idle time", || {
            pair.exchange(1_000);
            thread::sleep(Duration::from_millis(20));
            let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
            flow.age_seconds > 4.0 && flow.idle_seconds.is_some_and(|idle| idle < 1.5)
        });
    }
}

/// Splices and unsplices by command: the number stays, and so does all that it has carried.
fn all_is_counted(name: &str, policy: Policy<'_>, state: &str) {
    let bed = Bed::new(name, policy);
    let mut pair = bed.connect();
    let (mut sent, mut last, mut first) = (0, (0, 0.0), None);
    let mut look = |pair: &mut Pair| {
        pair.exchange(BYTES);
        sent += BYTES;
        let flow = eventually("its bytes", SOON, || {
            let flow = bed
                .daemon
                .wait_flow("the flow", |flow| flow.client.peer.port() == pair.client_port());
            let now = (flow.to_server.bytes.min(flow.to_client.bytes), flow.age_seconds);
            assert!(now.0 >= last.0, "{} bytes after {}: {flow:?}", now.0, last.0);
            assert_eq!(*first.get_or_insert(flow.id), flow.id);
            // A detached one counts its age from its registration.
            let ages = flow.state != "detached";
            assert!(!ages || now.1 >= last.1, "{} s after {}: {flow:?}", now.1, last.1);
            last = (now.0, if ages { now.1 } else { 0.0 });
            (now.0 >= sent).then_some(flow)
        });
        for direction in [&flow.to_server, &flow.to_client] {
            // Some may have been sent again.
            assert!(direction.bytes < sent + BYTES / 2, "after {sent}: {flow:?}");
        }
    };
    for _ in 0..3 {
        look(&mut pair);
        bed.splice(&pair, state);
        look(&mut pair);
        bed.daemon.take_back(pair.client_port(), state);
    }
    look(&mut pair);
    pair.close();
}

#[test]
fn what_passed_before_a_return_is_counted_from_dormant() {
    all_is_counted("shown-back", Policy::ON_DEMAND_DORMANT, "dormant");
}

#[test]
fn what_passed_before_a_return_is_counted_from_detached() {
    all_is_counted("shown-again", Policy::ON_DEMAND, "detached");
}
