//! The end of a stream is passed on once its buffer is empty, in its direction; an error of either socket ends both.

use std::io::Read;

use longsplice_engine::{Ended, PerSide, Side, Until};
use longsplice_tests::{
    Pair,
    library::{Depth, Desk, at_once, close_both, near, trap_of},
    soon,
};
use socket2::SockRef;

use crate::oracle::AT_ONCE;

fn end_both(pair: &mut Pair, first: Side) {
    let [one, other] = pair.ends(first);
    one.finish();
    other.expect_end();
    other.send(300_000);
    one.receive(300_000);
    other.finish();
    one.expect_end();
}

/// Either side half-closes, before the splice, during it and after the return.
#[test]
fn an_end_in_one_direction() {
    for depth in Depth::BOTH {
        for first in Side::BOTH {
            let desk = Desk::new("or-half");
            let trap = Until::bytes_from(first.other(), 1 << 30);
            // Before: the FIN waits in the source's socket, behind bytes.
            let (mut pair, near_pair) = desk.connect_for(depth);
            let [one, other] = pair.ends(first);
            one.send(10_000);
            one.finish();
            let call = desk.library.splice(near_pair, trap);
            other.receive(10_000);
            close_rest(&mut pair, first);
            assert!(!call.closed().reset);
            // During, from both depths; a FIN does not fire a trap for data of its side.
            let (mut pair, call) = desk.spliced(depth, Until::data_from(first));
            end_both(&mut pair, first);
            let summary = call.closed();
            assert!(!summary.reset, "{depth:?}, {first:?}: {summary:?}");
            // The FIN has passed, then data of the other side brings the pair back.
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
            // The socket knows of the FIN that bypassed it.
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
    // Wait until the other end has received the FIN, too.
    other.expect_end();
}

/// Either side resets, before the splice, during it and after the return.
#[test]
fn a_reset_before_during_and_after() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-reset");
        for by in Side::BOTH {
            // Before: the socket has the reset when the splice begins.
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
            // During the splice.
            let (mut pair, call) = desk.spliced(depth, Until::data_from(by));
            let [one, far] = pair.ends(by);
            far.send(50_000);
            one.receive(50_000);
            let (ending, mut other) = split(pair, by);
            ending.reset();
            other.expect_reset(AT_ONCE);
            assert!(call.closed().reset, "{depth:?}, {by:?}");
            // After: the handler's sockets are ordinary ones, and the other leg is the handler's.
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

/// All buffers are full, the server sleeps, and the client has already closed when the splice is made: its FIN comes
/// last.
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
                assert_eq!(returned.passed, PerSide::new(sent, 0));
                let last = desk.library.read(&mut returned.server, 5);
                pair.client.vouch(&last);
                close_both(returned);
                pair.client.expect_end();
            }
        }
    }
}
