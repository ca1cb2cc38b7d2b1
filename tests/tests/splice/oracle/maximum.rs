//! Maximum of bytes: those that wait in the source pass first, those beyond it stay unread, with buffers of any size.

use std::{io::Read, thread, time::Duration};

use longsplice_engine::{Pair as Near, PerSide, Side, Trap, Until};
use longsplice_tests::{
    library::{Depth, Desk, at_once, near, trap_of},
    soon,
};
use socket2::SockRef;

/// Number of bytes in the tests of OpenBSD.
const MAX: u64 = 32_117;

/// Splices with one maximum, again and again; in the end the whole stream has passed.
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
                    assert_eq!((returned.why, returned.passed[side]), (trap_of(side), MAX));
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

/// The handler sleeps before it splices: the bytes that have come meanwhile, more than the maximum, wait in its
/// socket.
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
            assert_eq!(
                (returned.why, returned.passed),
                (Trap::Client, PerSide::new(MAX, 0))
            );
            let rest = desk.library.read(&mut returned.client, beyond as usize);
            pair.server.vouch(&rest);
        }
    }
}

/// The client closes after the maximum, or had closed before: the handler reads the end behind the rest.
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
                (Trap::Client, PerSide::new(MAX, 0)),
                "{depth:?}, {beyond}"
            );
            let rest = desk.library.read(&mut returned.client, beyond as usize);
            pair.server.vouch(&rest);
            desk.library.write(&mut returned.server, &rest);
            let mut rest_there = vec![0; rest.len()];
            pair.server.stream.read_exact(&mut rest_there).unwrap();
            // The other direction goes on.
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

/// All four sockets have the smallest possible buffers, by turns, and the reader sleeps.
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
                    // The sender fills the buffers meanwhile.
                    thread::sleep(Duration::from_millis(50));
                    to.receive(MAX);
                    call.returned()
                });
                assert_eq!(
                    (returned.why, returned.passed[side]),
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

/// The server sends a long stream, and the client a few bytes.
#[test]
fn a_long_stream_backwards() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-back");
        let (mut pair, call) = desk.spliced(depth, Until::bytes_from(Side::Server, 100 << 20));
        pair.exchange_unevenly(50, 100 << 20);
        assert_eq!(call.returned().passed, PerSide::new(50, 100 << 20));
    }
}
