//! The BSDs have spliced sockets in the kernel since OpenBSD 4.9 (setsockopt SO_SPLICE, sosplice(9); FreeBSD 14.2 took the
//! interface over), and what theirs promises is an oracle for ours. In our words:
//!
//! - at most `sp_max` bytes pass, then the splice dissolves (EFBIG); what is beyond is left to read, and a second splice with
//!   the same maximum goes on from there. Ours: [`Until::bytes_from`]. (Their maximum of 0 means none; ours means
//!   [`Until::data_from`], and no maximum is not to name one.)
//! - if nothing passes for `sp_idle` the splice dissolves (ETIMEDOUT). Ours: [`Until::idle`];
//! - it dissolves by hand (a drain of -1); the bytes so far can be asked for afterwards. Ours: `request_unsplice`, `passed`;
//! - what is spliced cannot be spliced (EBUSY), what is not cannot be unspliced (EPROTO);
//! - what waits in the source's buffer when the splice begins passes first;
//! - the end of a stream is passed on once its buffer is empty, and only in its direction (their splice is of one
//!   direction; ours is of both, so that it ends when both have);
//! - an error of either socket ends it, before, during and after;
//! - urgent data passes inline, its mark where that is possible;
//! - all of this with buffers of any size, and with a reader that sleeps.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::{Ended, Pair as Near, RequestError, Side, Trap, Until};
use longsplice_lab::pattern::Pattern;
use longsplice_tests::{
    Bed, Luck, Pair, Policy, SOON,
    library::{Depth, Desk, at_once, close_both, near, trap_of},
    soon,
};
use socket2::SockRef;

/// How soon is at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Their tests' number.
const MAX: u64 = 32_117;

/// A maximum, again and again with the same number; all of the stream is through in the end.
#[test]
fn a_maximum_again_and_again() {
    const TIMES: u64 = 20;
    for depth in Depth::BOTH {
        let desk = Desk::new("or-max");
        for side in Side::BOTH {
            let (mut pair, mut next) = desk.connect_for(depth);
            let all = TIMES * MAX + 500;
            thread::scope(|scope| {
                let [from, to] = pair.ends(side);
                scope.spawn(move || from.send(all));
                for time in 0..TIMES {
                    let call = desk.library.splice(next, Until::bytes_from(side, MAX));
                    to.receive(MAX);
                    let returned = call.returned();
                    assert_eq!(
                        (returned.why, returned.passed[side.index()]),
                        (trap_of(side), MAX)
                    );
                    assert_eq!(to.arrived(), (time + 1) * MAX);
                    next = at_once(returned, depth);
                }
                let call = desk.library.splice(next, Until::data_from(side));
                let mut returned = call.returned();
                let rest = desk.library.read(near(&mut returned, side), 500);
                to.vouch(&rest);
            });
        }
    }
}

/// The handler sleeps before it splices: what has come meanwhile, more than the maximum, waits in its socket.
#[test]
fn what_waits_in_the_source_passes_first() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-waits");
        for beyond in [0, 1, 20_000] {
            let (mut pair, near_pair) = desk.connect_for(depth);
            pair.client.send(MAX + beyond);
            soon("all to be there", || {
                u64::from(longsplice_repair::unread(&near_pair.client).unwrap()) == MAX + beyond
            });
            let call = desk
                .library
                .splice(near_pair, Until::bytes_from(Side::Client, MAX));
            pair.server.receive(MAX);
            let mut returned = call.returned();
            assert_eq!((returned.why, returned.passed), (Trap::Client, [MAX, 0]));
            let rest = desk.library.read(&mut returned.client, beyond as usize);
            pair.server.vouch(&rest);
        }
    }
}

/// The maximum is reached, and then the client ends, or had ended before: the handler sees the end behind the rest.
#[test]
fn a_maximum_and_the_end_behind_it() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-max-end");
        for beyond in [0u64, 1, 5_000] {
            let (mut pair, call) = desk.spliced(depth, Until::bytes_from(Side::Client, MAX));
            pair.client.send(MAX + beyond);
            pair.client.finish();
            pair.server.receive(MAX);
            let mut returned = call.returned();
            assert_eq!(
                (returned.why, returned.passed),
                (Trap::Client, [MAX, 0]),
                "{depth:?}, {beyond}"
            );
            let rest = desk.library.read(&mut returned.client, beyond as usize);
            pair.server.vouch(&rest);
            desk.library.write(&mut returned.server, &rest);
            let mut rest_there = vec![0; rest.len()];
            pair.server.stream.read_exact(&mut rest_there).unwrap();
            // It goes on, in the other direction only.
            let call = desk
                .library
                .splice(at_once(returned, depth), Until::data_from(Side::Client));
            pair.server.expect_end();
            pair.server.send(100_000);
            pair.client.receive(100_000);
            pair.server.finish();
            pair.client.expect_end();
            assert!(!call.closed().reset);
        }
    }
}

/// A trickle keeps a splice, a silence ends it; the sockets are as good as before.
#[test]
fn an_idle_time() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-idle");
        let (mut pair, call) = desk.spliced(depth, Until::idle(Duration::from_millis(800)));
        for _ in 0..15 {
            thread::sleep(Duration::from_millis(100));
            pair.server.send(1);
            pair.client.receive(1);
        }
        assert!(!call.is_over(), "{depth:?}");
        let silence = Instant::now();
        let returned = call.returned();
        let took = silence.elapsed();
        assert_eq!((returned.why, returned.passed), (Trap::Idle, [0, 15]));
        assert!(took >= Duration::from_millis(500) && took < AT_ONCE, "{took:?}");
        let call = desk
            .library
            .splice(at_once(returned, depth), Until::data_from(Side::Client));
        pair.client.send(10);
        assert_eq!(call.returned().why, Trap::Client);
    }
}

/// By hand, while both directions are busy; the numbers of bytes are those that have passed.
#[test]
fn by_hand_in_mid_stream() {
    let mut luck = Luck::new();
    for depth in Depth::BOTH {
        let desk = Desk::new("or-hand");
        let (mut pair, near_pair) = desk.connect_for(depth);
        let port = pair.client_port();
        let mut next = Some(near_pair);
        let mut passed = [0, 0];
        for _ in 0..20 {
            let call = desk
                .library
                .splice(next.take().unwrap(), Until::bytes_from(Side::Client, 1 << 40));
            let flow = desk.library.wait_state(port, &[depth.state()]);
            let bytes = luck.of(1..2 << 20);
            let delay = Duration::from_micros(luck.of(0..3_000));
            thread::scope(|scope| {
                let pair = &mut pair;
                let exchange = scope.spawn(move || pair.exchange(bytes));
                thread::sleep(delay);
                assert!(desk.library.unsplice(flow.id).is_none());
                let mut returned = call.returned();
                assert_eq!((returned.why, returned.id), (Trap::Asked, flow.id));
                let mut add = |more: [u64; 2]| {
                    for side in Side::BOTH {
                        passed[side.index()] += more[side.index()];
                    }
                };
                add(returned.passed);
                // The rest of the exchange needs somebody to carry it, however often it pauses (a busy machine, a lost segment).
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
            assert_eq!(passed, [pair.client.sent(), pair.server.sent()]);
        }
    }
}

/// Requests that make no sense have an answer that says so.
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
        // It is in the handler's hands.
        let back = splicer.clone();
        let asked = desk
            .library
            .run(desk.library.spawn(async move { back.request_unsplice(id).await }));
        assert!(asked.unwrap().is_err(), "{depth:?}");
        drop(returned);
    }
}

fn end_both(pair: &mut Pair, first: Side) {
    let [one, other] = pair.ends(first);
    one.finish();
    other.expect_end();
    other.send(300_000);
    one.receive(300_000);
    other.finish();
    one.expect_end();
}

/// Half-close, before the splice, during it and after it has come back, by either side.
#[test]
fn an_end_in_one_direction() {
    for depth in Depth::BOTH {
        for first in Side::BOTH {
            let desk = Desk::new("or-half");
            let trap = Until::bytes_from(first.other(), 1 << 30);
            // Before: its end waits in the source's socket, behind bytes.
            let (mut pair, near_pair) = desk.connect_for(depth);
            let [one, other] = pair.ends(first);
            one.send(10_000);
            one.finish();
            let call = desk.library.splice(near_pair, trap);
            other.receive(10_000);
            close_rest(&mut pair, first);
            assert!(!call.closed().reset);
            // During, from both depths; a trap for its data does not mind its end.
            let (mut pair, call) = desk.spliced(depth, Until::data_from(first));
            end_both(&mut pair, first);
            let summary = call.closed();
            assert!(!summary.reset, "{depth:?}, {first:?}: {summary:?}");
            // Its end has passed, then the pair comes back, by the other side's data.
            let (mut pair, call) = desk.spliced(depth, Until::data_from(first.other()));
            let [one, other] = pair.ends(first);
            one.finish();
            other.expect_end();
            other.send(1_000);
            let mut returned = call.returned();
            assert_eq!(returned.why, trap_of(first.other()));
            let trapped = desk.library.read(near(&mut returned, first.other()), 1_000);
            desk.library.write(near(&mut returned, first), &trapped);
            one.receive(1_000);
            // The socket knows of the end that passed by it.
            let mut byte = [0];
            let read = desk.library.run(tokio::io::AsyncReadExt::read(
                near(&mut returned, first),
                &mut byte,
            ));
            assert_eq!(read.unwrap(), 0, "{depth:?}, {first:?}");
            let call = desk.library.splice(at_once(returned, depth), Until::closed());
            close_rest(&mut pair, first);
            drop(call);
        }
    }
}

fn close_rest(pair: &mut Pair, first: Side) {
    let [one, other] = pair.ends(first);
    other.send(300_000);
    one.receive(300_000);
    other.finish();
    one.expect_end();
    // Not before the other end has heard of it, too.
    other.expect_end();
}

/// A reset before the splice, during it, and after the pair has come back.
#[test]
fn a_reset_before_during_and_after() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-reset");
        for by in Side::BOTH {
            // Before: the socket has it when the splice begins.
            let (pair, near_pair) = desk.connect_for(depth);
            let (ending, mut other) = split(pair, by);
            ending.reset();
            let port = match by {
                Side::Client => &near_pair.client,
                Side::Server => &near_pair.server,
            };
            soon("the reset to be there", || {
                longsplice_repair::tcp_info(port).unwrap().state() == longsplice_repair::State::Closed
            });
            let until = Until::data_from(by);
            let splicer = desk.library.splicer().clone();
            let task = desk
                .library
                .spawn(async move { splicer.splice(near_pair, until).await });
            match desk.library.run(task).unwrap() {
                Ok(Ended::Closed(summary)) => assert!(summary.reset, "{depth:?}, {by:?}: {summary:?}"),
                // The sockets were unusable from the start.
                Err(_) => {}
                other => panic!("{depth:?}, {by:?}: {other:?}"),
            }
            other.expect_reset(AT_ONCE);
            // During.
            let (mut pair, call) = desk.spliced(depth, Until::data_from(by));
            let [one, far] = pair.ends(by);
            far.send(50_000);
            one.receive(50_000);
            let (ending, mut other) = split(pair, by);
            ending.reset();
            other.expect_reset(AT_ONCE);
            assert!(call.closed().reset, "{depth:?}, {by:?}");
            // After: the handler's sockets are ordinary ones, and the other end is the handler's.
            let (mut pair, call) = desk.spliced(depth, Until::data_from(by));
            pair.ends(by)[0].send(100);
            let mut returned = call.returned();
            desk.library.read(near(&mut returned, by), 100);
            let (ending, mut other) = split(pair, by);
            ending.reset();
            let mut byte = [0];
            let read = desk
                .library
                .run(tokio::io::AsyncReadExt::read(near(&mut returned, by), &mut byte));
            assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
            let last = b"sorry";
            desk.library.write(near(&mut returned, by.other()), last);
            close_both(returned);
            let mut there = [0; 5];
            other.stream.read_exact(&mut there).unwrap();
            assert_eq!(&there, last);
            other.expect_end();
        }
        desk.library.wait_reaped();
    }
}

fn split(pair: Pair, by: Side) -> (longsplice_tests::End, longsplice_tests::End) {
    match by {
        Side::Client => (pair.client, pair.server),
        Side::Server => (pair.server, pair.client),
    }
}

/// The least buffers that sockets can have, at all four of them, by turns; and a reader that sleeps.
#[test]
fn small_buffers() {
    let set = |socket: &SockRef<'_>| {
        socket.set_recv_buffer_size(4_096).unwrap();
        socket.set_send_buffer_size(4_096).unwrap();
    };
    for depth in Depth::BOTH {
        let desk = Desk::new("or-small");
        for which in ["client", "server", "near", "all"] {
            let (mut pair, near_pair) = desk.connect_for(depth);
            if matches!(which, "client" | "all") {
                set(&SockRef::from(&pair.client.stream));
            }
            if matches!(which, "server" | "all") {
                set(&SockRef::from(&pair.server.stream));
            }
            if matches!(which, "near" | "all") {
                set(&SockRef::from(&near_pair.client));
                set(&SockRef::from(&near_pair.server));
            }
            let mut next: Near = near_pair;
            for round in 0..4 {
                let side = Side::BOTH[round % 2];
                let call = desk.library.splice(next, Until::bytes_from(side, MAX));
                let returned = thread::scope(|scope| {
                    let [from, to] = pair.ends(side);
                    scope.spawn(move || from.send(MAX));
                    // It fills what there is meanwhile.
                    thread::sleep(Duration::from_millis(50));
                    to.receive(MAX);
                    call.returned()
                });
                assert_eq!(
                    (returned.why, returned.passed[side.index()]),
                    (trap_of(side), MAX),
                    "{which}"
                );
                next = at_once(returned, depth);
            }
            let call = desk.library.splice(next, Until::data_from(Side::Server));
            pair.client.send(10);
            pair.server.receive(10);
            pair.server.send(10);
            assert_eq!(call.returned().why, Trap::Server, "{which}");
        }
    }
}

/// All buffers are full, the server sleeps, and the client has ended already when the splice is made: its end comes last.
#[test]
fn the_end_of_a_stream_behind_full_buffers() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-eof");
        for trap in [Until::closed(), Until::data_from(Side::Server)] {
            let (mut pair, near_pair) = desk.connect_for(depth);
            for socket in [&near_pair.client, &near_pair.server] {
                SockRef::from(socket).set_send_buffer_size(4_096).unwrap();
            }
            SockRef::from(&pair.server.stream)
                .set_recv_buffer_size(4_096)
                .unwrap();
            let call = desk.library.splice(near_pair, trap);
            let sent = pair.client.fill();
            pair.client.finish();
            pair.server.receive(sent);
            pair.server.expect_end();
            if trap.is_closed() {
                pair.server.finish();
                pair.client.expect_end();
                drop(call);
            } else {
                pair.server.send(5);
                let mut returned = call.returned();
                assert_eq!(returned.passed, [sent, 0]);
                let last = desk.library.read(&mut returned.server, 5);
                pair.client.vouch(&last);
                close_both(returned);
                pair.client.expect_end();
            }
        }
    }
}

/// A long stream from the server, and one byte of the client's in between now and then.
#[test]
fn a_long_stream_backwards() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-back");
        let (mut pair, call) = desk.spliced(depth, Until::bytes_from(Side::Server, 100 << 20));
        pair.exchange_unevenly(50, 100 << 20);
        assert_eq!(call.returned().passed, [50, 100 << 20]);
    }
}

/// A stream with an urgent byte in it, as the peer reads it that wants urgent data inline.
fn urgent(client: &mut TcpStream, server: &mut TcpStream, seed: u64) {
    SockRef::from(&*server).set_out_of_band_inline(true).unwrap();
    let text = Pattern::new(seed);
    client.write_all(text.at(0, 1_000)).unwrap();
    assert_eq!(
        SockRef::from(&*client)
            .send_out_of_band(text.at(1_000, 1))
            .unwrap(),
        1
    );
    client.write_all(text.at(1_001, 999)).unwrap();
    let mut there = vec![0; 2_000];
    server.set_read_timeout(Some(SOON)).unwrap();
    server
        .read_exact(&mut there)
        .unwrap_or_else(|e| panic!("with an urgent byte: {e}"));
    assert_eq!(text.mismatch(0, &there), None);
}

/// Spliced, an urgent byte is a byte like the others, with its mark; nothing of the stream is lost by it.
#[test]
fn urgent_data_passes_a_splice() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-urgent");
        let (mut pair, call) = desk.spliced(depth, Until::bytes_from(Side::Server, 100));
        for round in 0..5 {
            urgent(&mut pair.client.stream, &mut pair.server.stream, round);
        }
        pair.server.send(101);
        pair.client.receive(100);
        let returned = call.returned();
        assert_eq!(returned.passed, [10_000, 100]);
    }
}

/// Relayed, it must not be lost either; nor where a pair comes back and is spliced again around it.
#[test]
fn urgent_data_passes_a_relay() {
    for (policy, state) in [
        (Policy::ON_DEMAND, "detached"),
        (Policy::ON_DEMAND_DORMANT, "dormant"),
    ] {
        let bed = Bed::new("or-urgent-relay", policy);
        let mut pair = bed.connect();
        urgent(&mut pair.client.stream, &mut pair.server.stream, 1);
        bed.splice(&pair, state);
        urgent(&mut pair.client.stream, &mut pair.server.stream, 2);
        let id = bed.daemon.wait_state(pair.client_port(), &[state]).id;
        bed.daemon.unsplice(id).unwrap();
        bed.daemon
            .wait_state(pair.client_port(), &["relay", "undraining"]);
        urgent(&mut pair.client.stream, &mut pair.server.stream, 3);
        pair.close();
    }
}

/// Urgent data is data: it is trapped, and is read inline.
#[test]
fn urgent_data_is_trapped() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-urgent-trap");
        let (pair, near_pair) = desk.connect_for(depth);
        let call = desk.library.splice(near_pair, Until::data_from(Side::Client));
        desk.library.wait_state(pair.client_port(), &[depth.state()]);
        assert_eq!(
            SockRef::from(&pair.client.stream).send_out_of_band(b"!").unwrap(),
            1
        );
        let mut returned = call.returned();
        assert_eq!((returned.why, returned.passed), (Trap::Client, [0, 0]));
        // A socket that was built anew knows nothing of the wish.
        SockRef::from(&returned.client)
            .set_out_of_band_inline(true)
            .unwrap();
        assert_eq!(desk.library.read(&mut returned.client, 1), b"!");
    }
}
