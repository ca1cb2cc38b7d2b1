//! Requests and replies on one connection: replies pass spliced, each next request is trapped, read by the handler, and
//! passed on. The handler changes every byte of a request: an unchanged one at the server has bypassed the handler.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::mpsc,
    thread,
};

use longsplice_engine::{Ended, Pair as Near, Side, Splicer, Trap, Until};
use longsplice_lab::pattern::Pattern;
use longsplice_tests::{
    Pair, SOON,
    library::{Depth, Desk, at_once},
    rng,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
};

const REQUEST: usize = 1024;
const KEY: u8 = 0x5a;

/// Result of a connection, for its handler.
#[derive(Debug, Default)]
struct Served {
    /// True if an end was reset.
    reset: bool,
    /// Number of returns.
    returns: u64,
    /// Number of bytes that the handler read.
    read: u64,
    /// Number of calls in which it was spliced.
    spliced: u64,
}

/// Handles requests until the connection ends.
async fn serve(splicer: Splicer, mut pair: Near, depth: Depth) -> Served {
    let mut served = Served::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut returned = match splicer
            .splice(pair, Until::data_from(Side::Client))
            .await
            .unwrap()
        {
            Ended::Returned(returned) => returned,
            Ended::Closed(summary) => {
                if summary.reset {
                    eprintln!("the engine: {summary:?}");
                }
                served.reset = summary.reset;
                return served;
            }
            Ended::Detached(id) => panic!("flow {id} was let go of"),
        };
        assert_eq!((returned.why, returned.passed.client), (Trap::Client, 0));
        served.returns += 1;
        served.spliced += u64::from(returned.spliced);
        let handed_on = async {
            let n = returned.client.read(&mut buffer).await?;
            assert_ne!(n, 0, "there is data");
            buffer[..n].iter_mut().for_each(|byte| *byte ^= KEY);
            returned.server.write_all(&buffer[..n]).await?;
            Ok::<_, std::io::Error>(n)
        };
        match handed_on.await {
            Ok(n) => served.read += n as u64,
            Err(error) => {
                eprintln!("the handler: {error}");
                // One end is gone: reset the other one.
                let _ = returned.client.set_zero_linger();
                let _ = returned.server.set_zero_linger();
                served.reset = true;
                return served;
            }
        }
        pair = at_once(returned, depth);
    }
}

fn begin(desk: &Desk, depth: Depth) -> (Pair, JoinHandle<Served>) {
    let (far, near) = desk.connect_for(depth);
    let splicer = desk.library.splicer().clone();
    (far, desk.library.spawn(serve(splicer, near, depth)))
}

/// Returns the length of the reply to a request.
fn reply_len(number: u64) -> u64 {
    [1, 200, 1_448, 20_000, 7, 5_000, 70_000, 64][number as usize % 8]
}

fn request(seed: u64, number: u64) -> &'static [u8] {
    Pattern::new(seed).at(number * REQUEST as u64, REQUEST)
}

/// Reads a request, and checks that it went through the handler.
fn expect_request(stream: &mut TcpStream, seed: u64, number: u64) {
    let mut buffer = [0; REQUEST];
    stream
        .read_exact(&mut buffer)
        .unwrap_or_else(|e| panic!("request {number}: {e}"));
    buffer.iter_mut().for_each(|byte| *byte ^= KEY);
    assert_eq!(buffer, request(seed, number), "request {number}");
}

/// Answers so many requests, as the server.
fn answer(stream: &mut TcpStream, seed: u64, count: u64) {
    let replies = Pattern::new(!seed);
    let mut sent = 0;
    for number in 0..count {
        expect_request(stream, seed, number);
        let mut left = reply_len(number);
        while left > 0 {
            let piece = replies.at(sent, left as usize);
            stream.write_all(piece).unwrap();
            sent += piece.len() as u64;
            left -= piece.len() as u64;
        }
    }
}

/// Checks replies as they come.
struct Replies {
    pattern: Pattern,
    received: u64,
}

impl Replies {
    fn new(seed: u64) -> Replies {
        Replies {
            pattern: Pattern::new(!seed),
            received: 0,
        }
    }

    fn expect(&mut self, stream: &mut TcpStream, number: u64) {
        let mut buffer = vec![0; reply_len(number) as usize];
        stream
            .read_exact(&mut buffer)
            .unwrap_or_else(|e| panic!("reply {number}: {e}"));
        let wrong = self.pattern.mismatch(self.received, &buffer);
        assert_eq!(wrong, None, "reply {number}");
        self.received += buffer.len() as u64;
    }
}

fn expect_end(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "an end in order");
}

/// Thousands of requests on one connection, one after the other; then the client closes, and the server does.
#[test]
fn one_after_the_other() {
    const COUNT: u64 = 2_000;
    for depth in Depth::BOTH {
        let desk = Desk::new("rr-turns");
        let seed = rng().u64(..);
        let (mut far, handler) = begin(&desk, depth);
        thread::scope(|scope| {
            let (client, server) = (&mut far.client.stream, &mut far.server.stream);
            scope.spawn(move || {
                answer(server, seed, COUNT);
                expect_end(server);
                server.shutdown(Shutdown::Write).unwrap();
            });
            let mut replies = Replies::new(seed);
            for number in 0..COUNT {
                client.write_all(request(seed, number)).unwrap();
                replies.expect(client, number);
            }
            client.shutdown(Shutdown::Write).unwrap();
            expect_end(client);
        });
        let served = desk.library.run(handler).unwrap();
        assert!(!served.reset);
        assert_eq!(served.read, COUNT * REQUEST as u64);
        assert!(served.returns >= COUNT, "each is trapped: {}", served.returns);
        eprintln!(
            "{depth:?}: {} of {} calls were spliced; sent again: {} by the client, {} by the server",
            served.spliced,
            served.returns,
            far.client.sent_again(),
            far.server.sent_again()
        );
        desk.library.wait_reaped();
    }
}

/// The client does not wait for replies: several requests in one segment, and requests in pieces over several.
#[test]
fn pipelined() {
    const COUNT: u64 = 1_500;
    for depth in Depth::BOTH {
        let desk = Desk::new("rr-pipe");
        let mut rng = rng();
        let seed = rng.u64(..);
        let (mut far, handler) = begin(&desk, depth);
        thread::scope(|scope| {
            let (client, server) = (&far.client.stream, &mut far.server.stream);
            scope.spawn(move || {
                answer(server, seed, COUNT);
                expect_end(server);
                server.shutdown(Shutdown::Write).unwrap();
            });
            // Limit the number of unanswered requests: each takes a permit, which the reader of replies gives
            // back.
            let (permit, permits) = mpsc::sync_channel::<()>(12);
            let (mut read_half, mut write_half) = (client.try_clone().unwrap(), client.try_clone().unwrap());
            scope.spawn(move || {
                let mut replies = Replies::new(seed);
                for number in 0..COUNT {
                    replies.expect(&mut read_half, number);
                    permits.recv().unwrap();
                }
                expect_end(&mut read_half);
            });
            let mut number = 0;
            while number < COUNT {
                // Send some requests at once, in pieces: with no delay each write is a segment or more.
                let some = rng.u64(1..6).min(COUNT - number);
                let mut unsent: Vec<u8> = Vec::new();
                for next in number..number + some {
                    permit.send(()).unwrap();
                    unsent.extend(request(seed, next));
                }
                number += some;
                while !unsent.is_empty() {
                    let piece = rng.u64(1..unsent.len() as u64 * 2).min(unsent.len() as u64) as usize;
                    write_half.write_all(&unsent[..piece]).unwrap();
                    unsent.drain(..piece);
                }
            }
            write_half.shutdown(Shutdown::Write).unwrap();
        });
        let served = desk.library.run(handler).unwrap();
        assert!(!served.reset);
        assert_eq!(served.read, COUNT * REQUEST as u64);
        eprintln!(
            "{depth:?}: {} of {} calls were spliced",
            served.spliced, served.returns
        );
        desk.library.wait_reaped();
    }
}

/// The client closes with its last request; it still gets all replies.
#[test]
fn the_client_ends_with_its_last_request() {
    const COUNT: u64 = 20;
    for depth in Depth::BOTH {
        let desk = Desk::new("rr-half");
        for round in 0..10 {
            let seed = rng().u64(..);
            let (mut far, handler) = begin(&desk, depth);
            thread::scope(|scope| {
                let (client, server) = (&mut far.client.stream, &mut far.server.stream);
                scope.spawn(move || {
                    answer(server, seed, COUNT);
                    if round % 2 == 0 {
                        expect_end(server);
                    }
                    server.shutdown(Shutdown::Write).unwrap();
                });
                let mut replies = Replies::new(seed);
                for number in 0..COUNT {
                    client.write_all(request(seed, number)).unwrap();
                    if number + 1 == COUNT {
                        client.shutdown(Shutdown::Write).unwrap();
                    }
                    replies.expect(client, number);
                }
                expect_end(client);
            });
            let served = desk.library.run(handler).unwrap();
            assert!(!served.reset, "round {round}");
            assert_eq!(served.read, COUNT * REQUEST as u64);
        }
        desk.library.wait_reaped();
    }
}

/// The server closes with its last reply, as in HTTP/1.0; then the client closes.
#[test]
fn the_server_ends_after_a_reply() {
    for depth in Depth::BOTH {
        let desk = Desk::new("rr-server");
        for count in [1, 2, 5, 8, 12] {
            let seed = rng().u64(..);
            let (mut far, handler) = begin(&desk, depth);
            thread::scope(|scope| {
                let (client, server) = (&mut far.client.stream, &mut far.server.stream);
                scope.spawn(move || {
                    answer(server, seed, count);
                    server.shutdown(Shutdown::Write).unwrap();
                    expect_end(server);
                });
                let mut replies = Replies::new(seed);
                for number in 0..count {
                    client.write_all(request(seed, number)).unwrap();
                    replies.expect(client, number);
                }
                expect_end(client);
                client.shutdown(Shutdown::Write).unwrap();
            });
            let served = desk.library.run(handler).unwrap();
            assert!(!served.reset, "after {count} replies");
        }
        desk.library.wait_reaped();
    }
}

/// Either end resets, between two requests or in the middle of one exchange: the other end sees the reset, and so does
/// the handler.
#[test]
fn a_reset_in_the_middle() {
    let mut rng = rng();
    for depth in Depth::BOTH {
        let desk = Desk::new("rr-reset");
        for round in 0..24 {
            let (seed, count) = (rng.u64(..), rng.u64(1..12));
            let (mut far, handler) = begin(&desk, depth);
            thread::scope(|scope| {
                let (client, server) = (&mut far.client.stream, &mut far.server.stream);
                scope.spawn(move || answer(server, seed, count));
                let mut replies = Replies::new(seed);
                for number in 0..count {
                    client.write_all(request(seed, number)).unwrap();
                    replies.expect(client, number);
                }
            });
            if round % 3 == 0 {
                // In the middle of an exchange, and of a request.
                far.client.stream.write_all(&request(seed, count)[..500]).unwrap();
            }
            let (ending, other) = match round % 2 {
                0 => (far.client, far.server),
                _ => (far.server, far.client),
            };
            ending.reset();
            expect_reset(&other.stream);
            let served = desk.library.run(handler).unwrap();
            assert!(served.reset, "round {round}");
        }
        desk.library.wait_reaped();
    }
}

/// Expects a reset; ignores bytes before it.
fn expect_reset(stream: &TcpStream) {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut stream = stream;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("an end in order where a reset was due"),
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(e) => panic!("no reset: {e}"),
        }
    }
}
