//! A rate limit holds in every state of a connection: in the relay, and in the kernel half with a daemon or without
//! one.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::{Pair as Near, Side, Until, policy::SplicePolicy};
use longsplice_lab::{Emulated, LinkSpec};
use longsplice_repair::tcp_info;
use longsplice_tests::{Config, Daemon, Pair, Raise, emulated, library::Desk, soon};
use parking_lot::Mutex;
use socket2::SockRef;

/// Limit, in bytes per second.
const RATE: u64 = 4_000_000;
/// Default burst, as a share of a second's bytes.
const BURST: f64 = 0.3;
/// Delay each way of ends that are far from each other.
const DELAY: Duration = Duration::from_millis(10);
/// Number of bytes sent and received at a time.
const PIECE: u64 = 100_000;

/// Serializes tests: the emulator must be in time, so each has the processors to itself.
fn one_at_a_time() -> impl Drop {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Ends far from each other or near, with a limit for the server's bytes.
struct Limited {
    daemon: Daemon,
    pair: Pair,
    net: Emulated,
}

impl Limited {
    fn new(name: &str, delay: Duration, splice: &str, detach: &str) -> Limited {
        let net = emulated(name, LinkSpec::delay(delay), LinkSpec::default());
        let (front, target) = (
            SocketAddr::from((net.forwarder_client_addr, 8080)),
            SocketAddr::from((net.server_addr, 7000)),
        );
        let listener = net.server.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let config = Config::new().listener(front, target, splice, detach);
        let mut daemon = Daemon::of(&config.with(&format!("rate_limit = \"server={RATE}B/s\"")));
        daemon.start(&net.forwarder);
        let pair = Pair::connect(&net.client, front, &listener);
        SockRef::from(&pair.server.stream)
            .set_tcp_congestion(b"cubic")
            .unwrap();
        Limited { daemon, pair, net }
    }
}

/// Waits until so many seconds' worth of the rate has arrived. Right after a change CUBIC may still be slow; it may
/// exceed the rate only by a burst that it has not used before.
#[track_caller]
fn is_in_force(what: &str, client: &TcpStream, seconds: u64, net: &Emulated) {
    let arrived = || tcp_info(client).unwrap().bytes_received();
    let (start, before) = (Instant::now(), arrived());
    soon(what, || arrived() >= before + seconds * RATE);
    let part = (arrived() - before) as f64 / start.elapsed().as_secs_f64() / RATE as f64;
    is_within(what, part, 0.4, 1.05 + BURST / seconds as f64, net);
}

/// Checks that a stream reached this part of its limit: never more than `most`, and at least `least` on a machine that
/// keeps up. Where the processors stand still drops pile up, and the emulator reports that.
#[track_caller]
fn is_within(what: &str, part: f64, least: f64, most: f64, net: &Emulated) {
    let verdict = net.verdict();
    let least = if verdict.counts() { least } else { 0.0 };
    let found = format!("{what}: {:.1} % of the limit", part * 100.0);
    eprintln!("{found}");
    assert!((least..=most).contains(&part), "{found}; {verdict}");
}

/// A pair comes back when the burst of its limit is used up for a minute.
#[test]
fn a_pair_that_came_back_owes_no_time_of_its_old_limit() {
    const BURST: u64 = 64 << 10;
    let desk = Desk::new("rate-raised");
    let (mut pair, near) = desk.connect();
    let near = near.with_splice(SplicePolicy::Never);
    let slow = near.with_rate_limit("server=1kB/s".parse().unwrap());
    let call = desk.library.splice(slow, Until::bytes_from(Side::Server, BURST));
    pair.exchange_unevenly(0, BURST);
    let mut next = Near::from(call.returned());
    next.rate_limit = "server=100MB/s".parse().unwrap();
    let call = desk.library.splice(next, Until::closed());
    pair.exchange_unevenly(0, BURST);
    pair.close();
    call.closed();
}

/// Checks that a spliced download over links of this delay each way has `least` of its limit. CUBIC runs from its slow
/// start on against a bucket that drops.
#[track_caller]
fn comes_near_its_limit(name: &str, delay: Duration, least: f64) {
    const SECONDS: u64 = 5;
    let _turn = one_at_a_time();
    let mut limited = Limited::new(name, delay, "now", "now");
    let port = limited.pair.client_port();
    limited.daemon.wait_state(port, &["detached"]);
    let (to_server, to_client) = (2 * RATE, SECONDS * RATE);
    let start = Instant::now();
    // The client's bytes have no limit.
    limited.pair.exchange_unevenly(to_server, to_client);
    let part = SECONDS as f64 / start.elapsed().as_secs_f64();
    let most = 1.03 + BURST / SECONDS as f64;
    is_within("spliced", part, least, most, &limited.net);
    let status = limited.daemon.status();
    assert!(status.segments("drop_rate") > 0, "{status:?}");
    assert!(
        limited.pair.client.sent_again() < 100,
        "nothing of the client's was dropped"
    );
    limited.pair.close();
}

#[test]
fn a_spliced_stream_comes_near_its_limit_and_not_beyond() {
    comes_near_its_limit("rate-spliced", DELAY, 0.7);
}

/// A whole window is dropped at once: only the sender's retransmission timer sends it again.
#[test]
fn a_stream_without_delay_comes_near_its_limit() {
    comes_near_its_limit("rate-near", Duration::ZERO, 0.85);
}

/// One stream lasts through all states of a connection.
#[test]
fn the_limit_is_the_same_before_during_and_after_a_splice_and_without_a_daemon() {
    let _turn = one_at_a_time();
    let Limited {
        mut daemon,
        mut pair,
        net,
    } = Limited::new("rate-life", DELAY, "never", "after=1h");
    let port = pair.client_port();
    let arriving = pair.client.stream.try_clone().unwrap();
    let enough = AtomicBool::new(false);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let [server, client] = [&mut pair.server, &mut pair.client];
        let enough = &enough;
        scope.spawn(move || {
            while !enough.load(Ordering::Relaxed) {
                tell.send(PIECE).unwrap();
                server.send(PIECE);
            }
            server.finish();
        });
        scope.spawn(move || {
            told.into_iter().for_each(|piece| client.receive(piece));
            client.expect_end();
        });
        let _end = Raise(enough);
        is_in_force("relayed", &arriving, 2, &net);
        let flow = daemon.wait_state(port, &["relay"]);
        daemon.splice(flow.id).unwrap();
        is_in_force("on the way", &arriving, 1, &net);
        daemon.wait_state(port, &["dormant"]);
        is_in_force("dormant", &arriving, 2, &net);
        daemon.unsplice(flow.id).unwrap();
        is_in_force("unspliced", &arriving, 2, &net);
        let id = daemon.wait_state(port, &["relay"]).id;
        daemon.splice(id).unwrap();
        daemon.wait_state(port, &["dormant"]);
        daemon.kill();
        is_in_force("without a daemon", &arriving, 2, &net);
        daemon.start(&net.forwarder);
        daemon.wait_state(port, &["detached"]);
        is_in_force("adopted", &arriving, 1, &net);
        // The next daemon rebuilds the sockets, and knows the limit from the record alone.
        daemon.unsplice(id).unwrap();
        is_in_force("reclaimed", &arriving, 2, &net);
    });
    let status = daemon.status();
    assert!(status.segments("drop_rate") > 0, "{status:?}");
}
