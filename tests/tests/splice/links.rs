//! Splices over slow, long and bad links: the emulator delays, loses, reorders and duplicates, and every byte arrives
//! once and in order.

use std::{net::SocketAddr, time::Duration};

use longsplice_lab::{
    ConnectionSpec, Direction, Emulated, LinkSpec, Queue, Report, Traffic, TrafficServer, TrafficSpec,
    traffic::Transfer,
};
use longsplice_tests::{Config, Daemon, Status, assert_all_ok, emulated, rng};
use parking_lot::Mutex;

const MS: Duration = Duration::from_millis(1);
const MBIT_100: u64 = 100_000_000;

/// Returns a direction with a queue of a quarter of a second at its rate.
fn slow(delay: Duration) -> Direction {
    Direction {
        delay,
        rate: Some(MBIT_100),
        queue: Queue::Bytes(MBIT_100 / 8 / 4),
        ..Direction::default()
    }
}

/// Serializes tests: the emulator must be in time, so each has the processors to itself.
fn one_at_a_time<T>(work: impl FnOnce() -> T) -> T {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    work()
}

/// Runs connections of so many bytes each way through listeners with these policies, all at once, and returns the
/// daemon's counters.
fn run(name: &str, links: [LinkSpec; 2], bytes: u64, policies: &[(&str, &str)]) -> (Status, Emulated) {
    let [client_link, server_link] = links;
    let net = emulated(name, client_link, server_link);
    let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
    let mut config = Config::new();
    let front = |n: usize| SocketAddr::from((net.forwarder_client_addr, 8080 + n as u16));
    for (n, (splice, detach)) in policies.iter().enumerate() {
        config = config.listener(front(n), server.addr(), splice, detach);
    }
    let mut daemon = Daemon::of(&config);
    daemon.start(&net.forwarder);
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..policies.len())
            .map(|n| {
                let (client, to) = (&net.client, front(n));
                scope.spawn(move || {
                    let transfer = Transfer::of(bytes);
                    let spec = TrafficSpec::same(2, ConnectionSpec::new(transfer.clone(), transfer));
                    Traffic::run(client, to, &spec).unwrap()
                })
            })
            .collect();
        for run in runs {
            assert_all_ok(&run.join().unwrap());
        }
    });
    let pairs = 2 * policies.len() as u64;
    let status = daemon.wait_status("all connections to end", |s| {
        s.spliced_total + s.relayed_total == pairs
    });
    assert_eq!(status.segments("aborted"), 0, "{status:?}");
    // An honest segment that a bad link delays or repeats is not mistaken for a guess. But one that comes when its
    // socket is gone is answered by a reset that is too old for either end.
    let [late, rest @ ..] =
        ["drop_window", "drop_ack", "drop_tsecr", "drop_syn"].map(|name| status.segments(name));
    assert!(late <= pairs && rest == [0; 3], "{status:?}");
    drop(daemon);
    (status, net)
}

/// Runs over good links: all connections are spliced.
fn clean(name: &str, client_delay: Duration, server_delay: Duration) {
    one_at_a_time(|| {
        let mut rng = rng();
        let links = [
            LinkSpec::symmetric(slow(client_delay)),
            LinkSpec::symmetric(slow(server_delay)),
        ];
        let after = format!("after={}", rng.u64(500_000..2_000_000));
        let policies = [("now", "now"), (after.as_str(), "never")];
        let (status, _net) = run(name, links, 8_000_000, &policies);
        assert_eq!((status.spliced_total, status.relayed_total), (4, 0), "{status:?}");
    });
}

#[test]
fn legs_of_20_and_80_ms() {
    clean("link-long", 10 * MS, 40 * MS);
}

#[test]
fn legs_of_2_and_2_ms() {
    clean("link-short", MS, MS);
}

/// Runs over bad links: where a leg is in recovery, the splice waits, and may come too late; all bytes arrive, spliced
/// or not.
fn bad(name: &str, change: impl Fn(&mut Direction), count: fn(&Report) -> u64) {
    one_at_a_time(|| run_bad(name, change, count));
}

fn run_bad(name: &str, change: impl Fn(&mut Direction), count: fn(&Report) -> u64) -> Emulated {
    let mut rng = rng();
    let links = [2 * MS, 4 * MS].map(|delay| {
        let mut direction = slow(delay);
        direction.seed = rng.u64(..);
        change(&mut direction);
        LinkSpec::symmetric(direction)
    });
    let after = format!("after={}", rng.u64(100_000..1_000_000));
    let policies = [("now", "now"), ("now", "never"), (after.as_str(), "after=50ms")];
    let (status, net) = run(name, links, 2_000_000, &policies);
    assert!(count(&net.report()) > 0, "the links were bad: {:?}", net.report());
    assert!(status.spliced_total > 0, "{status:?}");
    net
}

#[test]
fn one_percent_of_loss() {
    one_at_a_time(|| {
        let net = run_bad("link-loss", |d| d.loss = 0.01, |r| r.lost);
        // The SACK blocks of an end fit the other one's sequence numbers. (A block about a duplicate may be too old to
        // be of use; few are.)
        let lost = net.report().lost as i64;
        for end in [&net.client, &net.server] {
            let discarded = end.snmp().unwrap().get("TcpExt.TCPSACKDiscard");
            assert!(discarded < lost / 4, "{discarded} in {}, {lost} lost", end.name());
        }
    });
}

#[test]
fn reordering() {
    let change = |d: &mut Direction| (d.reorder, d.reorder_delay) = (0.02, 3 * MS);
    bad("link-reorder", change, |r| r.reordered);
}

#[test]
fn duplication() {
    bad("link-double", |d| d.duplicate = 0.05, |r| r.duplicated);
}

#[test]
fn everything_at_once() {
    let change = |d: &mut Direction| {
        (d.loss, d.duplicate, d.jitter) = (0.005, 0.01, MS);
        (d.reorder, d.reorder_delay) = (0.01, 3 * MS);
    };
    bad("link-all", change, |r| r.lost.min(r.reordered).min(r.duplicated));
}
