//! Blind attacker: guessed segments, fragments and ICMP errors, by the hundred thousand, at both legs of a spliced
//! flow, busy or idle. The bytes are right, the flow is the same one, no socket is woken, no end is reset, no table
//! fills, and each drop has a named reason. `LONGSPLICE_GUESSES` sets the number of guesses for each test,
//! `LONGSPLICE_SEED` their seed.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use longsplice_tests::{
    Bed, Policy,
    blind::{Blind, Kind},
    rng,
};

/// Number of guesses that `make test` sends in each test. `make soak` sends millions.
const GUESSES: u64 = 50_000;

/// Bytes of each direction between two checks for the end of the attack.
const BYTES: u64 = 256 << 10;

/// Largest window that the ends offer, as over a path of some 20 ms: the larger a window, the easier it is guessed.
const RECEIVE_BUFFER: &str = "4096 131072 1048576";

fn guesses() -> u64 {
    let given = std::env::var("LONGSPLICE_GUESSES").ok();
    given.map_or(GUESSES, |text| text.parse().unwrap())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    /// Both ends send all the time.
    Both,
    /// Only the client sends, while a byte of the server would bring the flow back.
    Trapped,
    /// Neither end sends.
    None,
}

fn attacked(policy: Policy<'_>, state: &str, traffic: Traffic) {
    let mut rng = rng();
    let bed = Bed::with("blind", Default::default(), policy, |c| match traffic {
        Traffic::Trapped => c.with("unsplice = \"data=server\""),
        _ => c,
    });
    for node in [&bed.net.client, &bed.net.server] {
        node.sysctl("net/ipv4/tcp_rmem", RECEIVE_BUFFER).unwrap();
    }
    let mut pair = bed.connect_spliced(state);
    let bytes = |t| if t == Traffic::Both { BYTES } else { 0 };
    pair.exchange_unevenly(BYTES, bytes(traffic));
    let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
    let before = bed.daemon.status();

    let each = guesses() / 2;
    let started = Instant::now();
    let mut legs = [
        Blind::new(&bed.net.client, rng.fork(), flow.client.peer, flow.client.local),
        Blind::new(&bed.net.server, rng.fork(), flow.server.peer, flow.server.local),
    ];
    let sent = thread::scope(|scope| {
        let attacks: Vec<_> = legs
            .iter_mut()
            .map(|blind| {
                scope.spawn(|| {
                    let mut sent = BTreeMap::<Kind, u64>::new();
                    (0..each).for_each(|_| *sent.entry(blind.guess()).or_default() += 1);
                    sent
                })
            })
            .collect();
        while traffic != Traffic::None && !attacks.iter().all(|a| a.is_finished()) {
            pair.exchange_unevenly(BYTES, bytes(traffic));
        }
        attacks.into_iter().map(|a| a.join().unwrap()).collect::<Vec<_>>()
    });
    let took = started.elapsed();

    // The flow is still the same one, and carries on.
    pair.exchange_unevenly(BYTES, bytes(traffic));
    let after = bed.daemon.status();
    // A flow with a trap stays parked for less than a quarter of all sequence numbers.
    let states: &[&str] = match traffic {
        Traffic::Trapped => &[state, "detached"],
        _ => &[state],
    };
    let now = bed.daemon.wait_state(pair.client_port(), states);
    assert_eq!((now.id, now.client.local), (flow.id, flow.client.local));
    assert!(!now.to_server.fin && !now.to_client.fin, "{now:?}");
    assert_eq!(bed.daemon.flows().len(), 1);
    assert_eq!(after.health.flows, before.health.flows);
    assert_eq!(
        (&after.flows_ended_total, &after.unsplices_total),
        (&before.flows_ended_total, &before.unsplices_total)
    );
    assert_eq!(after.resumed_total, before.resumed_total);

    let moved = |name: &str| after.segments(name) - before.segments(name);
    let of = |kinds: fn(&Kind) -> bool| -> u64 {
        let all = sent.iter().flatten();
        all.filter(|(kind, _)| kinds(kind)).map(|(_, n)| n).sum()
    };
    let all = of(|_| true);
    let dropped: BTreeMap<&String, u64> = after
        .segments
        .keys()
        .filter(|name| name.starts_with("drop_"))
        .map(|name| (name, moved(name)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let rate = all as f64 / took.as_secs_f64();
    eprintln!("{state}, {traffic:?}: {all} guesses in {took:.1?}, {rate:.0} a second: {dropped:?}");
    // A guess is never kept for user space, and never wakes a socket.
    for name in ["queued", "woken", "drop_ring_full", "syn_replaced"] {
        assert_eq!(moved(name), 0, "{name}");
    }
    // One first fragment in some 2^22 guesses old bytes and a known acknowledgement, as a repetition has them. None is allowed
    // among few of them.
    let lucky = of(|kind| *kind == Kind::FirstFragment) >> 18;
    assert!(moved("fragment") <= lucky, "{} fragments", moved("fragment"));
    for name in [
        "drop_window",
        "drop_ack",
        "drop_syn",
        "drop_fragment",
        "drop_icmp",
    ] {
        assert!(moved(name) > 0, "{name}: {dropped:?}");
    }
    // An IPv4 error that quotes 8 bytes can only be checked by its sequence number. It lies among the outstanding bytes
    // (1 MiB at most) once in 4,096 times; a sixteenth of all guesses are such errors.
    let by_chance = match flow.client.peer {
        SocketAddr::V4(_) => 8 + all / 16 / 4096 * 2,
        SocketAddr::V6(_) => 0,
    };
    let told = moved("icmp_translated");
    assert!(told <= by_chance, "{told} errors, of {by_chance} by chance");
    // Later fragments without a first one belong to no flow: they go up the stack. One SYN a second may pass, and by
    // chance a segment in the window but out of order.
    let to_be_dropped = of(|kind| *kind != Kind::LaterFragment);
    let stopped: u64 = dropped.values().sum();
    assert!(
        stopped >= to_be_dropped - to_be_dropped / 100,
        "{stopped} of {to_be_dropped}"
    );
    is_not_made_busy(&bed, took);

    if traffic == Traffic::Trapped {
        pair.server.send(1);
        pair.client.receive(1);
        assert_eq!(
            bed.daemon.status().returned("server"),
            1,
            "the trap is still there"
        );
    }
    pair.close();
}

/// Checks that few guesses passed, by the ends' challenges (RFC 5961).
fn is_not_made_busy(bed: &Bed, took: Duration) {
    for node in [&bed.net.client, &bed.net.server] {
        let challenges = node.snmp().unwrap().get("TcpExt.TCPChallengeACK");
        let allowed = 8 + 4 * took.as_secs() as i64;
        assert!(challenges <= allowed, "{challenges}, more than {allowed}");
    }
}

#[test]
fn of_a_detached_flow() {
    attacked(Policy::DETACHED, "detached", Traffic::Both);
}

#[test]
fn of_a_dormant_flow() {
    attacked(Policy::DORMANT, "dormant", Traffic::Both);
}

#[test]
fn of_an_idle_flow() {
    attacked(Policy::DETACHED, "detached", Traffic::None);
}

#[test]
fn of_a_detached_flow_with_a_trap() {
    attacked(Policy::DETACHED, "detached", Traffic::Trapped);
}

#[test]
fn of_a_dormant_flow_with_a_trap() {
    attacked(Policy::DORMANT, "dormant", Traffic::Trapped);
}
