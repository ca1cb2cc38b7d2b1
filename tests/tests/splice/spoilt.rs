//! Corrupt segments: one bit is flipped on the way, and the checksum stays as it was. None is delivered, in any state
//! of the connection. `LONGSPLICE_SPOILT` sets their number in each test, `LONGSPLICE_SEED` their seed.

use std::{env, thread, time::Instant};

use longsplice_lab::{Emulated, LinkSpec};
use longsplice_tests::{Config, Daemon, Pair, Status, emulated, library::target, rng};
use parking_lot::Mutex;

/// Number of corrupt segments in `make test`. `make soak` makes thousands.
const FEW: u64 = 400;

/// Number of connections that are busy at the same time.
const PAIRS: usize = 4;

/// Largest number of bytes of each direction between two checks.
const BYTES: u64 = 400_000;

/// Short link: a retransmission takes as long as a round trip.
const LINK: &str = "500us,100Mbit,queue=256KiB";

/// Share of corrupt packets among all that come to the forwarder. Packets that leave it stay intact: in a segment that
/// is corrupted on both links, the two wrong bits cancel out once in 32 times (the same position in two words, one set
/// and one cleared), which TCP's checksum cannot detect, behind a router either.
const SHARE: f64 = 0.03;

const FRONT_PORT: u16 = 8080;

fn wanted() -> u64 {
    let given = env::var("LONGSPLICE_SPOILT").ok();
    given.map_or(FEW, |text| text.parse().unwrap())
}

/// Serializes tests: the emulator must be in time, so each has the processors to itself.
fn one_at_a_time<T>(work: impl FnOnce() -> T) -> T {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    work()
}

/// Policies of a pair, and the state in which it waits for its first bytes.
#[derive(Debug, Clone, Copy)]
struct Kind {
    splice: &'static str,
    detach: &'static str,
    unsplice: Option<&'static str>,
    state: &'static str,
}

const RELAYED: Kind = Kind {
    splice: "never",
    detach: "now",
    unsplice: None,
    state: "relay",
};

const DORMANT: Kind = Kind {
    splice: "now",
    detach: "never",
    unsplice: None,
    state: "dormant",
};

const DETACHED: Kind = Kind {
    detach: "now",
    state: "detached",
    ..DORMANT
};

/// Carries checked streams through listeners of these kinds until the links have corrupted enough segments. Returns the
/// daemon's status.
fn carried(name: &str, kinds: &[Kind]) -> Status {
    let mut rng = rng();
    let [mut client_link, mut server_link] = [(); 2].map(|()| {
        let link: LinkSpec = LINK.parse().unwrap();
        link.with_seed(rng.u64(1..1 << 32))
    });
    client_link.to_server.corrupt = SHARE;
    server_link.to_client.corrupt = SHARE;
    let net = emulated(name, client_link, server_link);
    let listener = target(&net);
    let front = |n: usize| (net.forwarder_client_addr, FRONT_PORT + n as u16).into();
    let to = listener.local_addr().unwrap();
    let mut config = Config::new();
    for (n, kind) in kinds.iter().enumerate() {
        config = config.listener(front(n), to, kind.splice, kind.detach);
        if let Some(unsplice) = kind.unsplice {
            config = config.with(&format!("unsplice = \"{unsplice}\""));
        }
    }
    let mut daemon = Daemon::of(&config);
    daemon.start(&net.forwarder);
    let mut pairs: Vec<Pair> = (0..PAIRS)
        .map(|n| {
            let n = n % kinds.len();
            let pair = Pair::connect(&net.client, front(n), &listener);
            daemon.wait_state(pair.client_port(), &[kinds[n].state]);
            pair
        })
        .collect();
    let (before, started) = (net.report().corrupted, Instant::now());
    let spoilt = |net: &Emulated| net.report().corrupted - before;
    while spoilt(&net) < wanted() {
        let uneven = [rng.u64(1..BYTES), rng.u64(1..BYTES)];
        thread::scope(|scope| {
            for pair in &mut pairs {
                scope.spawn(|| pair.exchange_unevenly(uneven[0], uneven[1]));
            }
        });
    }
    for (n, pair) in pairs.iter_mut().enumerate() {
        let kind = kinds[n % kinds.len()];
        if kind.unsplice.is_none() {
            daemon.wait_state(pair.client_port(), &[kind.state]);
        }
        pair.close();
    }
    let status = daemon.status();
    let delivered: u64 = pairs
        .iter()
        .map(|p| p.client.received() + p.server.received())
        .sum();
    eprintln!(
        "{name}: {} segments spoilt, 0 delivered among {delivered} bytes, in {:.1?}; {} splices, {} returns, {} dropped by name",
        spoilt(&net),
        started.elapsed(),
        status.spliced_total,
        status.resumed_total,
        status.segments("drop_checksum"),
    );
    assert_eq!(status.segments("aborted"), 0, "{status:?}");
    status
}

/// Keeps connections in one state, which each corrupt segment meets.
fn in_one_state(name: &str, kind: Kind) {
    one_at_a_time(|| {
        let status = carried(name, &[kind]);
        assert_eq!(status.resumed_total, 0, "{status:?}");
        let relays = kind.state == RELAYED.state;
        assert!(relays || status.segments("drop_checksum") > 0, "{status:?}");
    });
}

#[test]
fn relayed() {
    in_one_state("spoilt-relay", RELAYED);
}

#[test]
fn dormant() {
    in_one_state("spoilt-park", DORMANT);
}

#[test]
fn detached() {
    in_one_state("spoilt-detach", DETACHED);
}

/// Keeps connections cycling: traps fire in mid-stream, and held segments get new checksums; drains and returns are
/// under way all the time.
fn cycling(name: &str, depth: Kind) {
    one_at_a_time(|| {
        let kinds = [
            "bytes=client:60kB",
            "bytes=server:45kB",
            "data=server",
            "data=client",
        ];
        let kinds = kinds.map(|unsplice| Kind {
            unsplice: Some(unsplice),
            ..depth
        });
        let status = carried(name, &kinds);
        assert!(status.resumed_total > PAIRS as u64, "{status:?}");
        assert!(status.segments("drop_checksum") > 0, "{status:?}");
    });
}

#[test]
fn cycling_to_dormant() {
    cycling("spoilt-cycle", DORMANT);
}

#[test]
fn cycling_to_detached() {
    cycling("spoilt-cycle2", DETACHED);
}
