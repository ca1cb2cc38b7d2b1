//! Splices and unsplices, again and again, of busy connections: at full rate both ways, beside slow readers, over long
//! and bad links, and while daemons are killed. Every byte arrives once and in order.
//!
//! `LONGSPLICE_CYCLES` sets the total number of cycles; `make soak` runs many.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::{Ended, Pair as Near, Side, Splicer, Until};
use longsplice_lab::{ConnectionSpec, Traffic, TrafficServer, TrafficSpec};
use longsplice_tests::{
    Bed, Config, Daemon, Pair, Policy, SOON, assert_all_ok, assert_whole_or_reset, capture, emulated,
    library::{Depth, Desk, Library, at_once, connect, target, trap_of},
    rng, soon, times, veth_line,
};
use parking_lot::Mutex;

/// Total number of cycles by default.
const FEW: u64 = 240;

/// Returns this share, in percent, of the total number of cycles.
fn share(percent: u64) -> u64 {
    let all = times("LONGSPLICE_CYCLES", FEW);
    (all * percent / 100).max(1)
}

/// Serializes tests: each has the processors to itself.
fn one_at_a_time<T>(work: impl FnOnce() -> T) -> T {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    work()
}

/// Number of cycles wanted, and number made so far.
#[derive(Debug)]
struct Quota {
    wanted: u64,
    made: AtomicU64,
    /// Number of pairs that came back before they were spliced.
    early: AtomicU64,
}

impl Quota {
    fn new(wanted: u64) -> Arc<Quota> {
        Arc::new(Quota {
            wanted,
            made: AtomicU64::new(0),
            early: AtomicU64::new(0),
        })
    }

    fn is_full(&self) -> bool {
        self.made.load(Ordering::Relaxed) >= self.wanted
    }
}

/// Splices a pair and takes it back after random numbers of bytes, from random depths, until the quota is full; then
/// leaves it spliced.
async fn cycle(splicer: Splicer, mut pair: Near, mut rng: fastrand::Rng, quota: Arc<Quota>, most: u64) {
    while !quota.is_full() {
        let side = Side::BOTH[rng.usize(0..2)];
        let depth = Depth::BOTH[rng.usize(0..2)];
        let bytes = rng.u64(1..most);
        let until = Until::bytes_from(side, bytes);
        match splicer.splice(at_once(pair, depth), until).await.unwrap() {
            Ended::Returned(returned) => {
                assert_eq!((returned.why, returned.passed[side]), (trap_of(side), bytes));
                let count = if returned.spliced {
                    &quota.made
                } else {
                    &quota.early
                };
                count.fetch_add(1, Ordering::Relaxed);
                pair = returned.into();
            }
            // Other pairs have filled the quota meanwhile, and the ends have closed.
            Ended::Closed(summary) if quota.is_full() => return assert!(!summary.reset, "{summary:?}"),
            other => panic!("in mid-transfer: {other:?}"),
        }
    }
    if let Ended::Closed(summary) = splicer.splice(pair, Until::closed()).await.unwrap() {
        assert!(!summary.reset, "{summary:?}");
    }
}

/// Rates of the readers, in bytes per second.
#[derive(Debug, Clone, Copy)]
struct Readers {
    client: Option<u64>,
    server: Option<u64>,
}

const FAST: Readers = Readers {
    client: None,
    server: None,
};

/// Sends so many bytes each way.
fn exchange(pair: &mut Pair, bytes: u64, readers: Readers) {
    let (client, server) = (pair.client.split(), pair.server.split());
    thread::scope(|scope| {
        scope.spawn(|| client.0.send(bytes));
        scope.spawn(|| server.0.send(bytes));
        scope.spawn(|| client.1.receive_slowly(bytes, readers.client));
        server.1.receive_slowly(bytes, readers.server);
    });
}

/// Keeps connections busy until the quota is full.
fn busy(
    library: &Library,
    pairs: Vec<(Pair, Near)>,
    rng: &mut fastrand::Rng,
    quota: &Arc<Quota>,
    most: u64,
    readers: Readers,
) {
    let mut tasks = Vec::new();
    thread::scope(|scope| {
        for (mut far, near) in pairs {
            let splicer = library.splicer().clone();
            let task = library.spawn(cycle(splicer, near, rng.fork(), quota.clone(), most));
            tasks.push(task);
            scope.spawn(move || {
                while !quota.is_full() {
                    exchange(&mut far, most * 2, readers);
                }
                far.close();
            });
        }
    });
    for task in tasks {
        library.run(task).unwrap();
    }
    let counters = library.splicer().counters();
    assert_eq!(counters.segments["aborted"], 0, "{counters:?}");
    assert!(quota.is_full());
}

fn report(name: &str, start: Instant, quota: &Quota) {
    let (made, early) = (
        quota.made.load(Ordering::Relaxed),
        quota.early.load(Ordering::Relaxed),
    );
    eprintln!(
        "{name}: {made} cycles in {:.1} s, and {early} returns before the splice",
        start.elapsed().as_secs_f64()
    );
}

fn on_veth(name: &str, percent: u64, connections: usize, most: u64, readers: Readers) {
    one_at_a_time(|| {
        let mut rng = rng();
        let desk = Desk::new(name);
        let quota = Quota::new(share(percent));
        let start = Instant::now();
        let pairs = (0..connections).map(|_| desk.connect()).collect();
        busy(&desk.library, pairs, &mut rng, &quota, most, readers);
        report(name, start, &quota);
        desk.library.wait_reaped();
    });
}

#[test]
fn at_full_rate_both_ways() {
    on_veth("cy-full", 40, 4, 600_000, FAST);
}

/// Distances are short, so that conditions are met within the splice.
#[test]
fn at_short_distances() {
    on_veth("cy-short", 20, 2, 20_000, FAST);
}

#[test]
fn beside_a_slow_server() {
    let readers = Readers {
        server: Some(8 << 20),
        ..FAST
    };
    on_veth("cy-slow-s", 10, 3, 300_000, readers);
}

#[test]
fn beside_a_slow_client() {
    let readers = Readers {
        client: Some(8 << 20),
        ..FAST
    };
    on_veth("cy-slow-c", 10, 3, 300_000, readers);
}

/// Runs cycles over emulated links, by their names in `longsplice-lab links`.
fn on_links(name: &str, links: [&str; 2], percent: u64, most: u64) {
    one_at_a_time(|| {
        let mut rng = rng();
        let [client, server] = links.map(|text| {
            let text = format!("{text},seed={}", rng.u64(1..1 << 32));
            text.parse().unwrap()
        });
        let net = emulated(name, client, server);
        let _captures = capture(&net);
        let library = Library::open(&net.forwarder);
        let listener = target(&net);
        let quota = Quota::new(share(percent));
        let start = Instant::now();
        let pairs = (0..3).map(|_| connect(&library, &net, &listener)).collect();
        busy(&library, pairs, &mut rng, &quota, most, FAST);
        report(name, start, &quota);
    });
}

#[test]
fn over_1_and_20_ms() {
    on_links("cy-1-20", ["rtt1", "rtt20"], 5, 300_000);
}

#[test]
fn over_100_and_1_ms() {
    on_links("cy-100-1", ["rtt100", "rtt1"], 3, 500_000);
}

#[test]
fn over_20_and_300_ms() {
    on_links("cy-20-300", ["rtt20", "rtt300"], 1, 300_000);
}

#[test]
fn over_a_bad_link_and_a_good_one() {
    on_links("cy-bad", ["bad", "rtt1"], 3, 200_000);
}

#[test]
fn over_a_good_link_and_a_bad_one() {
    on_links("cy-bad2", ["rtt1", "bad"], 3, 200_000);
}

#[test]
fn over_two_bad_links() {
    on_links("cy-bursty", ["bursty", "bad"], 2, 200_000);
}

/// Daemons are killed while pairs go between relay and splice: each end is served, or sees a reset, and the next daemon
/// works.
#[test]
fn while_daemons_are_killed() {
    one_at_a_time(|| {
        let mut rng = rng();
        let net = veth_line("cy-kill", Default::default());
        let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
        let front = |n: u16| (net.forwarder_client_addr, 8080 + n).into();
        let conditions = ["bytes=client:2MB", "bytes=server:900kB,after=3ms", "data=server"];
        let mut config = Config::new();
        for (n, unsplice) in conditions.iter().enumerate() {
            let detach = ["now", "never", "after=1ms"][n];
            config = config
                .listener(front(n as u16), server.addr(), "now", detach)
                .with(&format!("unsplice = \"{unsplice}\""));
        }
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        let (rounds, mut lost, mut unspliced) = (share(2), 0, 0);
        for round in 0..rounds {
            let runs = AtomicU64::new(0);
            let outcomes = thread::scope(|scope| {
                let traffic: Vec<_> = (0..conditions.len() as u16)
                    .map(|n| {
                        let mut spec = TrafficSpec::same(2, ConnectionSpec::both_ways(24 << 20));
                        spec.seed = rng.u64(..);
                        for connection in &mut spec.connections {
                            connection.stall = SOON / 2;
                        }
                        let (client, to, runs) = (&net.client, front(n), &runs);
                        scope.spawn(move || {
                            runs.fetch_add(1, Ordering::Relaxed);
                            Traffic::run(client, to, &spec).unwrap()
                        })
                    })
                    .collect();
                soon("cycles", || {
                    daemon.status().resumed_total > 0 || traffic.iter().all(|t| t.is_finished())
                });
                thread::sleep(Duration::from_micros(rng.u64(0..60_000)));
                unspliced += daemon.status().resumed_total;
                daemon.kill();
                // Some flows run without a daemon for a while.
                thread::sleep(Duration::from_micros(rng.u64(0..100_000)));
                daemon.start(&net.forwarder);
                traffic.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
            });
            lost += outcomes
                .iter()
                .map(|o| assert_whole_or_reset(o, round))
                .sum::<usize>();
            let left = |s: &longsplice_tests::Status| s.listeners.iter().all(|l| l.open == 0);
            daemon.wait_status("all connections to end", left);
        }
        eprintln!(
            "{lost} of {} connections were reset, {unspliced} unsplices",
            rounds * 6
        );
        let spec = TrafficSpec::same(3, ConnectionSpec::both_ways(4 << 20));
        for n in 0..conditions.len() as u16 {
            assert_all_ok(&Traffic::run(&net.client, front(n), &spec).unwrap());
        }
        daemon.wait_reaped();
    });
}

/// Runs a flow that its daemon left spliced, and checks its return under the next daemon.
fn adopted(name: &str, unsplice: &str, depth: Depth, come_back: impl Fn(&Bed, &mut Pair)) {
    one_at_a_time(|| {
        let detach = if depth == Depth::Detached { "now" } else { "never" };
        let state = if depth == Depth::Detached {
            "detached"
        } else {
            "dormant"
        };
        let policy = Policy {
            splice: "now",
            detach,
        };
        let mut bed = Bed::with(name, Default::default(), policy, |c| {
            c.with(&format!("unsplice = \"{unsplice}\""))
        });
        let mut pair = bed.connect_spliced(state);
        pair.exchange(50_000);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            bed.daemon.kill();
            // The flow runs on, within the limits of its conditions.
            let quiet = scope.spawn(|| {
                pair.exchange(50_000);
                over.store(true, Ordering::Relaxed);
            });
            quiet.join().unwrap();
        });
        assert!(over.load(Ordering::Relaxed));
        bed.daemon.start(&bed.net.forwarder);
        assert_eq!(bed.daemon.status().adopted_total, 1);
        come_back(&bed, &mut pair);
        let status = bed.daemon.wait_status("its return", |s| s.resumed_total >= 1);
        assert_eq!(status.segments("aborted"), 0, "{status:?}");
        pair.exchange(2 << 20);
        pair.close();
        bed.daemon.wait_reaped();
    });
}

#[test]
fn an_adopted_flow_comes_back_by_command() {
    for depth in Depth::BOTH {
        adopted("cy-adopt", "bytes=client:500MB", depth, |bed, pair| {
            bed.daemon.take_back(pair.client_port(), "detached");
            pair.exchange(1 << 20);
        });
    }
}

/// The trap is in the kernel, where it catches its packet.
#[test]
fn an_adopted_flow_comes_back_by_a_trap_of_its_first_daemon() {
    for depth in Depth::BOTH {
        adopted("cy-adopt-trap", "bytes=client:200kB", depth, |_, pair| {
            pair.exchange(1 << 20);
        });
        adopted("cy-adopt-trap2", "bytes=server:200kB", depth, |_, pair| {
            pair.server.send(200_000);
            pair.client.receive(200_000);
        });
    }
}
