//! Legs that were spliced are ordinary sockets again: they can be joined with others, pooled, dropped and
//! closed.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::{Pair as Near, Returned, Side, Trap, Until};
use longsplice_lab::pattern::Pattern;
use longsplice_tests::{
    Bed, Policy, SOON,
    library::{Depth, Desk, at_once, close, close_both},
    rng,
};

/// Returns a message unlike any other one.
fn message(len: u64) -> &'static [u8] {
    static SEED: AtomicU64 = AtomicU64::new(1 << 40);
    Pattern::new(SEED.fetch_add(1, Ordering::Relaxed)).at(0, len as usize)
}

fn expect(stream: &mut TcpStream, message: &[u8]) {
    let mut buffer = vec![0; message.len()];
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
        .read_exact(&mut buffer)
        .unwrap_or_else(|e| panic!("cannot read {} bytes: {e}", message.len()));
    assert!(buffer == message, "a message of {} bytes is wrong", message.len());
}

/// Sends a message from one end to the other, through the forwarder.
fn pass(from: &mut TcpStream, to: &mut TcpStream, len: u64) {
    let message = message(len);
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(message).unwrap());
        expect(to, message);
    });
}

fn expect_end(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "an end in order");
}

/// Starts a second server in the same namespace.
fn second_target(desk: &Desk) -> TcpListener {
    let at = SocketAddr::from((desk.net.server_addr, 7001));
    desk.net.server.run(|| TcpListener::bind(at)).unwrap().unwrap()
}

/// Connects a client of the library; returns its far end and its near one.
fn client(desk: &Desk) -> (TcpStream, tokio::net::TcpStream) {
    let front = SocketAddr::from((desk.net.forwarder_client_addr, 8080));
    let far = desk
        .net
        .client
        .run(|| TcpStream::connect(front))
        .unwrap()
        .unwrap();
    far.set_nodelay(true).unwrap();
    (far, desk.library.accept())
}

/// Makes one exchange through the handler: the reply passes spliced, then the next request is trapped. Returns the pair
/// with that request unread.
fn exchange(
    desk: &Desk,
    pair: Near,
    client: &mut TcpStream,
    server: &mut TcpStream,
    next_request: &[u8],
    rng: &mut fastrand::Rng,
) -> Returned {
    let port = client.local_addr().unwrap().port();
    let depth = if rng.bool() {
        Depth::Dormant
    } else {
        Depth::Detached
    };
    let call = desk
        .library
        .splice(at_once(pair, depth), Until::data_from(Side::Client));
    desk.library.wait_state(port, &[depth.state()]);
    pass(server, client, rng.u64(1..200_000));
    client.write_all(next_request).unwrap();
    let returned = call.returned();
    assert_eq!((returned.why, returned.spliced), (Trap::Client, true));
    returned
}

/// Requests of one client go to two servers by turns; both server connections stay open.
#[test]
fn the_same_client_and_two_servers_by_turns() {
    const TURNS: usize = 60;
    let mut rng = rng();
    let desk = Desk::new("os-turns");
    let targets = [desk.listener.try_clone().unwrap(), second_target(&desk)];
    let (mut far_client, mut near_client) = client(&desk);
    let mut servers = targets
        .iter()
        .map(|target| desk.library.connect(&near_client, target))
        .map(|(near, far)| (Some(near), far))
        .collect::<Vec<_>>();
    let mut request = message(700);
    far_client.write_all(request).unwrap();
    for turn in 0..TURNS {
        let (near, far_server) = &mut servers[turn % 2];
        let mut near_server = near.take().unwrap();
        let read = desk.library.read(&mut near_client, request.len());
        assert!(read == request);
        desk.library.write(&mut near_server, &read);
        expect(far_server, request);
        request = message(rng.u64(1..3_000));
        let pair = Near::new(near_client, near_server);
        let returned = exchange(&desk, pair, &mut far_client, far_server, request, &mut rng);
        near_client = returned.client;
        servers[turn % 2].0 = Some(returned.server);
        if turn % 10 == 9 {
            // Long enough for the legs to separate: each then has a mapping of its own.
            thread::sleep(Duration::from_millis(300));
        }
    }
    close(near_client);
    for (near, mut far) in servers {
        close(near.unwrap());
        expect_end(&mut far);
    }
}

/// Connections to the server go back to a pool, and serve any client that comes next.
#[test]
fn a_pool_of_connections_to_the_server() {
    const CLIENTS: usize = 40;
    let mut rng = rng();
    let desk = Desk::new("os-pool");
    let mut pool: Vec<(tokio::net::TcpStream, TcpStream)> = Vec::new();
    let mut connected = 0;
    for round in 0..CLIENTS {
        let (mut far_client, mut near_client) = client(&desk);
        let (mut near_server, mut far_server) = match pool.is_empty() || (pool.len() < 3 && round % 4 == 0) {
            true => {
                connected += 1;
                desk.library.connect(&near_client, &desk.listener)
            }
            false => pool.remove(rng.usize(0..pool.len())),
        };
        let mut request = message(500);
        far_client.write_all(request).unwrap();
        for _ in 0..rng.u64(1..4) {
            let read = desk.library.read(&mut near_client, request.len());
            assert!(read == request);
            desk.library.write(&mut near_server, &read);
            expect(&mut far_server, request);
            request = message(rng.u64(1..3_000));
            let pair = Near::new(near_client, near_server);
            let returned = exchange(&desk, pair, &mut far_client, &mut far_server, request, &mut rng);
            (near_client, near_server) = (returned.client, returned.server);
        }
        // The handler answers the last request itself.
        let read = desk.library.read(&mut near_client, request.len());
        assert!(read == request);
        let goodbye = message(1_000);
        desk.library.write(&mut near_client, goodbye);
        expect(&mut far_client, goodbye);
        close(near_client);
        expect_end(&mut far_client);
        pool.push((near_server, far_server));
    }
    assert!(connected <= CLIENTS / 4 + 1, "{connected} connections were made");
    for (near, mut far) in pool {
        close(near);
        expect_end(&mut far);
    }
}

/// The handler drops a returned pair while bytes are under way: no end is left waiting, all received bytes are right,
/// and the stream ends in order only where the handler closes it so.
#[test]
fn sockets_that_are_dropped_at_once() {
    const ROUNDS: u64 = 30;
    let mut rng = rng();
    let desk = Desk::new("os-drop");
    for round in 0..ROUNDS {
        let depth = Depth::BOTH[round as usize % 2];
        let may = rng.u64(1..2 << 20);
        let (mut pair, call) = desk.spliced(depth, Until::bytes_from(Side::Client, may));
        thread::scope(|scope| {
            let client = &pair.client.stream;
            scope.spawn(move || {
                let mut client = client;
                // Write until the connection is gone.
                while client.write_all(Pattern::new(round).at(0, 64 << 10)).is_ok() {}
            });
            let server = &mut pair.server.stream;
            let reader = scope.spawn(move || {
                server.set_read_timeout(Some(SOON)).unwrap();
                let (mut all, mut buffer) = (0, vec![0; 64 << 10]);
                loop {
                    match server.read(&mut buffer) {
                        Ok(0) => return (all, "end"),
                        Ok(n) => {
                            for (at, byte) in buffer[..n].iter().enumerate() {
                                let place = (all as usize + at) % (64 << 10);
                                assert_eq!(*byte, Pattern::new(round).at(0, 64 << 10)[place]);
                            }
                            all += n as u64;
                        }
                        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return (all, "reset"),
                        Err(e) => panic!("round {round}, after {all} bytes: {e}"),
                    }
                }
            });
            let returned = call.returned();
            assert_eq!((returned.why, returned.passed.client), (Trap::Client, may));
            let in_order = round % 4 < 2;
            match in_order {
                true => close_both(returned),
                false => drop(returned),
            }
            let (all, how) = reader.join().unwrap();
            match in_order {
                true => assert_eq!((all, how), (may, "end"), "round {round}, {depth:?}"),
                // The reset overtakes bytes, as any reset does.
                false => assert!(
                    all <= may && how == "reset",
                    "round {round}, {depth:?}: {all} of {may}, {how}"
                ),
            }
        });
    }
    desk.library.wait_reaped();
}

/// The handler sends the last bytes on both legs, and closes them.
#[test]
fn a_returned_pair_that_the_handler_closes_ends_in_order() {
    let mut rng = rng();
    let desk = Desk::new("os-close");
    for round in 0..40 {
        let depth = Depth::BOTH[round % 2];
        let (mut pair, call) = desk.spliced(depth, Until::data_from(Side::Client));
        pair.exchange_unevenly(0, rng.u64(1..500_000));
        pair.client.send(100);
        let mut returned = call.returned();
        let read = desk.library.read(&mut returned.client, 100);
        pair.server.vouch(&read);
        if round % 4 < 2 {
            let last = message(rng.u64(1..100_000));
            desk.library.write(&mut returned.client, last);
            desk.library.write(&mut returned.server, last);
            close_both(returned);
            expect(&mut pair.client.stream, last);
            expect(&mut pair.server.stream, last);
        } else {
            close_both(returned);
        }
        for end in [&mut pair.client, &mut pair.server] {
            end.expect_end();
            // Close the other direction, too.
            end.finish();
        }
    }
    desk.library.wait_reaped();
}

/// A mapped leg depends on the daemon's programs and sockets: it dies with the daemon, at both ends, at once.
#[test]
fn legs_in_a_dead_daemon_are_reset() {
    for policy in [Policy::ON_DEMAND, Policy::ON_DEMAND_DORMANT] {
        for pause in [Duration::ZERO, Duration::from_millis(400)] {
            let mut bed = Bed::new("os-dead", policy);
            let mut pair = bed.connect();
            let state = if policy.detach == "now" {
                "detached"
            } else {
                "dormant"
            };
            bed.splice(&pair, state);
            pair.exchange(300_000);
            bed.daemon.take_back(pair.client_port(), state);
            pair.exchange(300_000);
            // Try it with and without time to settle.
            thread::sleep(pause);
            let start = Instant::now();
            bed.daemon.kill();
            pair.client.expect_reset(Duration::from_secs(5));
            pair.server.expect_reset(Duration::from_secs(5));
            assert!(start.elapsed() < Duration::from_secs(2), "{state}: promptly");
            // The next daemon finds nothing to adopt, and works.
            bed.daemon.start(&bed.net.forwarder);
            let mut pair = bed.connect();
            bed.splice(&pair, state);
            pair.exchange(300_000);
            pair.close();
        }
    }
}
