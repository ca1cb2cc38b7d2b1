//! The splice dissolves after silence, and by hand; a request that makes no sense is refused.

use std::{
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::{PerSide, RequestError, Side, Trap, Until};
use longsplice_tests::{
    library::{Depth, Desk, at_once},
    rng,
};

/// A trickle keeps a splice, a silence ends it; the returned sockets work as before.
#[test]
fn an_idle_time() {
    // Both depths wait at the same time.
    thread::scope(|scope| {
        for depth in Depth::BOTH {
            scope.spawn(move || an_idle_time_at(depth));
        }
    });
}

fn an_idle_time_at(depth: Depth) {
    // A machine whose processors are gone now and then makes pauses in the trickle, but none as long as this.
    const IDLE: Duration = Duration::from_secs(2);
    let desk = Desk::new("or-idle");
    let (mut pair, call) = desk.spliced(depth, Until::idle(IDLE));
    let begin = Instant::now();
    let (mut silence, mut passed) = (begin, 0);
    while begin.elapsed() < IDLE + Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(100));
        silence = Instant::now();
        pair.server.send(1);
        pair.client.receive(1);
        passed += 1;
    }
    assert!(!call.is_over(), "{depth:?}");
    let returned = call.returned();
    let took = silence.elapsed();
    assert_eq!(
        (returned.why, returned.passed),
        (Trap::Idle, PerSide::new(0, passed))
    );
    let due = IDLE..IDLE + Duration::from_secs(2);
    assert!(due.contains(&took), "{took:?}");
    let call = desk
        .library
        .splice(at_once(returned, depth), Until::data_from(Side::Client));
    pair.client.send(10);
    assert_eq!(call.returned().why, Trap::Client);
}

/// The splice dissolves by hand, while both directions are busy; the numbers of bytes are those that have
/// passed.
#[test]
fn by_hand_in_mid_stream() {
    let mut rng = rng();
    for depth in Depth::BOTH {
        let desk = Desk::new("or-hand");
        let (mut pair, near_pair) = desk.connect_for(depth);
        let port = pair.client_port();
        let mut next = Some(near_pair);
        let mut passed = PerSide::both(0);
        for _ in 0..20 {
            let call = desk
                .library
                .splice(next.take().unwrap(), Until::bytes_from(Side::Client, 1 << 40));
            let flow = desk.library.wait_state(port, &[depth.state()]);
            let bytes = rng.u64(1..2 << 20);
            let delay = Duration::from_micros(rng.u64(0..3_000));
            thread::scope(|scope| {
                let pair = &mut pair;
                let exchange = scope.spawn(move || pair.exchange(bytes));
                thread::sleep(delay);
                assert!(desk.library.unsplice(flow.id).is_none());
                let mut returned = call.returned();
                assert_eq!((returned.why, returned.id), (Trap::Admin, flow.id));
                let mut add = |more: PerSide<u64>| {
                    for side in Side::BOTH {
                        passed[side] += more[side];
                    }
                };
                add(returned.passed);
                // Splice the rest of the exchange again after each pause (of a busy machine, or after a lost segment).
                let mut over = false;
                while !over {
                    over = exchange.is_finished();
                    let rest = at_once(returned, depth);
                    let rest = desk.library.splice(rest, Until::idle(Duration::from_millis(100)));
                    returned = rest.returned();
                    assert_eq!(returned.why, Trap::Idle);
                    add(returned.passed);
                }
                next = Some(at_once(returned, depth));
            });
            assert_eq!(passed, PerSide::new(pair.client.sent(), pair.server.sent()));
        }
    }
}

/// A request that makes no sense gets an error that says so.
#[test]
fn requests_out_of_order() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-order");
        let splicer = desk.library.splicer().clone();
        let (pair, call) = desk.spliced(depth, Until::data_from(Side::Client));
        let id = desk.library.wait_state(pair.client_port(), &[depth.state()]).id;
        let again = splicer.clone();
        let asked = desk
            .library
            .run(desk.library.spawn(async move { again.request_splice(id).await }));
        assert!(matches!(asked.unwrap(), Err(RequestError::AlreadySpliced(_))));
        assert!(desk.library.unsplice(id).is_none());
        let returned = call.returned();
        // The pair is in the handler's hands.
        let back = splicer.clone();
        let asked = desk
            .library
            .run(desk.library.spawn(async move { back.request_unsplice(id).await }));
        assert!(asked.unwrap().is_err(), "{depth:?}");
        drop(returned);
    }
}
