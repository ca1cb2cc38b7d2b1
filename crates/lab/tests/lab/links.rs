//! Emulated links do what was configured. Needs root.
//!
//! These tests look at the clock, so they run one at a time. Where a late emulator would spoil the result, a run that
//! does not count is repeated.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::{Udp, linked, one_at_a_time, to_server};
use longsplice_lab::emulator::schedule::{Fate, Schedule};
use longsplice_lab::traffic::Transfer;
use longsplice_lab::{ConnectionSpec, Direction, Emulated, Traffic, TrafficServer, TrafficSpec};

const MS: Duration = Duration::from_millis(1);

/// Largest number of repetitions of a run that does not count.
const ATTEMPTS: usize = 100;

/// Measures round trips of single packets; returns them sorted.
fn round_trips(udp: &Udp, count: usize) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            let start = Instant::now();
            udp.client.send(b"x").unwrap();
            udp.server.recv(&mut [0]).unwrap();
            udp.server.send(b"x").unwrap();
            udp.client.recv(&mut [0]).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    times
}

/// Largest number of turns in which the shortest round trip is looked for.
const TURNS: usize = 10;

/// Measures round trips of single packets in turns of `count`, until one is below `in_time`; returns them sorted. The shortest
/// counts: the measuring thread has no priority, and may be stopped in each round trip of a turn.
fn shortest_round_trips(net: &Emulated, udp: &Udp, count: usize, in_time: Duration) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..TURNS {
        let turn = net.emulator().counted(ATTEMPTS, || round_trips(udp, count));
        times.extend(turn.unwrap());
        times.sort();
        if times[0] < in_time {
            break;
        }
    }
    times
}

#[test]
fn round_trips_are_those_of_the_legs() {
    let _turn = one_at_a_time();
    for (preset, rtt, count) in [
        ("rtt1", 1, 20),
        ("rtt20", 20, 5),
        ("rtt100", 100, 3),
        ("rtt300", 300, 2),
    ] {
        let net = linked("lab-rtt", preset, "wire");
        let udp = Udp::new(&net);
        let in_time = rtt * MS + 2 * MS;
        let times = shortest_round_trips(&net, &udp, count, in_time);
        assert!(times[0] >= rtt * MS, "never early: {times:?}");
        assert!(
            times[0] < in_time,
            "{preset}: {times:?}, not real time: {:?}",
            net.emulator().not_real_time()
        );
    }
}

#[test]
fn both_links_of_a_path_add_up_and_count_every_packet() {
    let _turn = one_at_a_time();
    let net = linked("lab-delay", "10ms/15ms", "25ms/20ms");
    let udp = Udp::new(&net);
    let times = shortest_round_trips(&net, &udp, 5, 72 * MS);
    assert!((70 * MS..72 * MS).contains(&times[0]), "{times:?}");
    // The report is that of the last turn.
    let report = net.report();
    assert_eq!(
        (report.forwarded, report.lost, report.dropped),
        (20, 0, 0),
        "{report:?}"
    );
    assert_eq!(report.lateness.count(), 20);
}

/// Returns the numbers of the packets that a direction delivers, duplicates twice, when they come one right after the
/// other: the seed alone decides.
fn predicted(direction: &Direction, count: u32) -> Vec<u32> {
    let mut schedule = Schedule::new(direction.clone());
    let mut numbers = Vec::new();
    for number in 0..count {
        if let Fate::Delivered { duplicated, .. } = schedule.offer(0, 64) {
            numbers.extend(std::iter::repeat_n(number, 1 + usize::from(duplicated)));
        }
    }
    numbers
}

#[test]
fn packets_meet_the_fates_that_their_seed_has_in_store() {
    let _turn = one_at_a_time();
    let arrived = |link: &str| {
        let net = linked("lab-fate", link, "wire");
        let expected = predicted(&net.link_reports()[0].link.to_server, 500);
        let (mut numbers, _) = Udp::new(&net).send(&net, 500, 64);
        numbers.sort_unstable();
        assert_eq!(numbers, expected, "{link}");
        let report = to_server(&net);
        let mut different = numbers.clone();
        different.dedup();
        assert_eq!(report.lost, 500 - different.len() as u64, "{link}");
        assert_eq!(
            report.duplicated,
            (numbers.len() - different.len()) as u64,
            "{link}"
        );
        (report.lost, report.duplicated)
    };
    let first = arrived("1ms,loss=20%,dup=10%,jitter=1ms,reorder=5%,seed=5");
    // Three standard deviations of the binomial distribution: 9 for losses, 6 of the rest for duplicates.
    assert!(
        (70..130).contains(&first.0) && (20..60).contains(&first.1),
        "{first:?}"
    );
    assert_eq!(
        first,
        arrived("1ms,loss=20%,dup=10%,jitter=1ms,reorder=5%,seed=5")
    );
    assert_ne!(
        first,
        arrived("1ms,loss=20%,dup=10%,jitter=1ms,reorder=5%,seed=6")
    );
    let bursts = arrived("1ms,burst=5%:20%");
    assert!((40..180).contains(&bursts.0) && bursts.1 == 0, "{bursts:?}");
}

#[test]
fn one_direction_does_not_do_what_the_other_was_asked() {
    let _turn = one_at_a_time();
    let net = linked("lab-oneway", "1ms,loss=30%/1ms", "wire");
    let udp = Udp::new(&net);
    udp.send(&net, 100, 64);
    for _ in 0..50 {
        udp.server.send(b"x").unwrap();
        udp.client.recv(&mut [0]).unwrap();
    }
    let reports = net.link_reports();
    assert!(reports[0].to_server.lost > 10, "{reports:?}");
    assert_eq!(
        (reports[0].to_client.lost, reports[0].to_client.forwarded),
        (0, 50)
    );
}

#[test]
fn every_fourth_packet_is_overtaken_by_those_behind_it() {
    let _turn = one_at_a_time();
    let net = linked(
        "lab-reorder",
        "20ms,reorder=100%,gap=4,reorder-delay=50ms",
        "wire",
    );
    // All packets are under way before the first one that is held back arrives.
    let numbers = Udp::new(&net).send_at_once(&net, 100, 64, 40 * MS, ATTEMPTS);
    let held = |number: &u32| number % 4 == 3;
    let expected: Vec<u32> = (0..100)
        .filter(|n| !held(n))
        .chain((0..100).filter(held))
        .collect();
    assert_eq!(numbers, expected);
    assert_eq!(to_server(&net).reordered, 25);
}

#[test]
fn jitter_changes_the_order_only_where_it_may() {
    let _turn = one_at_a_time();
    let arrived = |link: &str| {
        let net = linked("lab-jitter", link, "wire");
        let udp = Udp::new(&net);
        // The receiving thread may be preempted, and then read packets at once that came one after the other.
        let mut runs = (0..ATTEMPTS).map(|_| {
            net.emulator().reset();
            let (numbers, spread) = udp.send(&net, 200, 64);
            assert_eq!(numbers.len(), 200, "{link}");
            (numbers.is_sorted(), spread, to_server(&net).reordered)
        });
        let spread_out = runs.find(|(_, spread, _)| *spread > 10 * MS);
        spread_out.unwrap_or_else(|| panic!("{link}: never later than 10 ms after the first"))
    };
    let (in_order, _, reordered) = arrived("30ms,jitter=20ms,normal");
    assert!(in_order && reordered == 0, "{reordered}");
    let (in_order, _, reordered) = arrived("30ms,jitter=20ms,jitter-reorders");
    assert!(!in_order && reordered > 50, "{reordered}");
}

#[test]
fn the_rate_is_kept_within_five_percent() {
    let _turn = one_at_a_time();
    for mbit in [5, 20, 100] {
        let net = linked("lab-rate", &format!("1ms,{mbit}Mbit,queue=2000p"), "wire");
        let udp = Udp::new(&net);
        let count = mbit * 10;
        // Frames of 1,514 bytes; the time of the first one on the wire is not measured.
        let expected = f64::from((count - 1) * 1514 * 8) / f64::from(mbit * 1_000_000);
        let ratio = || {
            let (numbers, spread) = udp.send(&net, count, 1472);
            assert_eq!(numbers.len(), count as usize);
            spread.as_secs_f64() / expected
        };
        // The measuring thread has no priority, and may be late itself.
        let mut ratios = (0..ATTEMPTS).filter_map(|_| net.emulator().counted(1, ratio).ok());
        assert!(ratios.any(|ratio| (0.95..1.05).contains(&ratio)), "{mbit} Mbit/s");
    }
}

#[test]
fn the_queue_drops_what_does_not_fit() {
    let _turn = one_at_a_time();
    let passed = |queue: &str| {
        // A packet takes 12 ms: at most one leaves while the others are sent.
        let net = linked("lab-queue", &format!("1ms,1Mbit,queue={queue}"), "wire");
        let numbers = Udp::new(&net).send_at_once(&net, 50, 1472, 12 * MS, ATTEMPTS);
        assert_eq!(to_server(&net).dropped, 50 - numbers.len() as u64);
        assert_eq!(numbers[..8], [0, 1, 2, 3, 4, 5, 6, 7], "{queue}");
        numbers.len()
    };
    // One more passes where sending was so slow that a packet had left.
    assert!((10..12).contains(&passed("10p")));
    assert!((8..10).contains(&passed("12KiB")), "8 of 1,514 bytes in 12,288");
}

/// Runs so many bytes each way on a few connections, all of which must arrive.
fn transfer(net: &Emulated, to_server: u64, to_client: u64) -> longsplice_lab::Outcome {
    let server = TrafficServer::start(&net.server, SocketAddr::from((net.server_addr, 7000))).unwrap();
    let spec = ConnectionSpec::new(Transfer::of(to_server), Transfer::of(to_client));
    let outcome = Traffic::run(&net.client, server.addr(), &TrafficSpec::same(4, spec)).unwrap();
    assert!(outcome.all_ok(), "{outcome}");
    outcome
}

#[test]
fn changed_bits_are_found_by_checksums() {
    let _turn = one_at_a_time();
    let net = linked("lab-corrupt", "1ms,corrupt=3%", "wire");
    transfer(&net, 300_000, 300_000);
    let report = net.report();
    let found = |namespace: &longsplice_lab::Namespace| {
        let counters = namespace.snmp().unwrap();
        counters.tally().bad_checksums + counters.get("Ip.InHdrErrors")
    };
    let found = found(&net.client) + found(&net.server) + found(&net.forwarder);
    assert!(
        report.corrupted > 10 && found > report.corrupted as i64 / 2,
        "{report:?}, {found} found"
    );
}

#[test]
fn verified_traffic_survives_every_impairment() {
    let _turn = one_at_a_time();
    let net = linked("lab-bad", "bad,50Mbit,burst=0.05%:30%,seed=11", "rtt1");
    let outcome = transfer(&net, 2_000_000, 500_000);
    // 8 MB at 50 Mbit/s.
    assert!(outcome.duration_us > 1_280_000, "{}", outcome.duration_us);
    assert!(outcome.total_retrans() > 0);
    let report = net.report();
    for (what, count) in [
        ("lost", report.lost),
        ("reordered", report.reordered),
        ("duplicated", report.duplicated),
    ] {
        assert!(count > 0, "{what}: {report:?}");
    }
    assert_eq!(report.refused, 0);
}

#[test]
fn links_with_the_same_seed_are_told_apart() {
    let _turn = one_at_a_time();
    let net = linked("lab-apart", "wire", "wire");
    let seeds: Vec<u64> = net
        .link_reports()
        .iter()
        .flat_map(|link| [link.link.to_server.seed, link.link.to_client.seed])
        .collect();
    assert_eq!(seeds[0], 1);
    assert!(
        !seeds[2..].contains(&seeds[0]) && !seeds[2..].contains(&seeds[1]),
        "{seeds:?}"
    );
}
