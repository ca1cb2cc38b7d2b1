//! Rules for spliced flows: they drop, limit and count at every depth, are replaced at once, and hold without a daemon.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::rules::RuleInfo;
use longsplice_lab::{Family, LineOptions};
use longsplice_tests::{Bed, Daemon, Pair, Policy, soon};

/// Less than a socket takes at once.
const BYTES: u64 = 20_000;

/// Returns a rule for the spliced flows of a client.
pub(crate) fn rule(client: IpAddr, name: &str, action: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nfrom = \"{client}\"\nspliced = true\naction = {action}\n")
}

pub(crate) const DROP: &str = "\"drop\"\nreason = \"unwanted\"";
const COUNT: &str = "\"count\"";

pub(crate) fn load(daemon: &Daemon, text: &str) -> Result<(), String> {
    let output = daemon.load_rules(text);
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

pub(crate) fn clear(daemon: &Daemon) {
    assert!(daemon.cli(&["rules", "clear"]).status.success());
}

fn info(bed: &Bed, name: &str) -> RuleInfo {
    let rules = bed.daemon.rules().rules;
    rules.into_iter().find(|one| one.rule.name == name).unwrap()
}

/// Sends from both ends, and checks that none of it arrives, though it is sent again.
#[track_caller]
pub(crate) fn nothing_passes(pair: &mut Pair) {
    let [client, server] = [pair.client.arrived(), pair.server.arrived()];
    let again = [pair.client.sent_again(), pair.server.sent_again()];
    pair.client.send(BYTES);
    pair.server.send(BYTES);
    soon("retransmissions", || {
        pair.client.sent_again() > again[0] && pair.server.sent_again() > again[1]
    });
    assert_eq!([pair.client.arrived(), pair.server.arrived()], [client, server]);
}

/// Receives what [`nothing_passes`] sent.
pub(crate) fn all_passes(pair: &mut Pair) {
    pair.client.receive(BYTES);
    pair.server.receive(BYTES);
}

#[test]
fn a_flow_is_dropped_at_every_depth_and_goes_on_when_the_rule_goes() {
    for (name, family, policy, state) in [
        ("sr-detached", Family::V4, Policy::DETACHED, "detached"),
        ("sr-dormant", Family::V4, Policy::DORMANT, "dormant"),
        ("sr-detached-6", Family::V6, Policy::DETACHED, "detached"),
    ] {
        let options = LineOptions {
            family,
            ..LineOptions::default()
        };
        let bed = Bed::with(name, options, policy, |c| c);
        let mut pair = bed.connect_spliced(state);
        pair.exchange(BYTES);
        load(&bed.daemon, &rule(bed.net.client_addr, "stop", DROP)).unwrap();
        nothing_passes(&mut pair);
        let stop = info(&bed, "stop");
        assert!(
            stop.packets >= 4 && stop.dropped == stop.packets,
            "{name}: {stop:?}"
        );
        assert!(stop.bytes >= 2 * 1_400 && stop.flows == 1, "{name}: {stop:?}");
        assert!(bed.daemon.rules().drops["unwanted"] >= stop.packets);
        assert!(bed.daemon.status().segments("drop_rule") >= stop.packets);
        let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
        assert_eq!(flow.rules, ["stop"], "{name}: {flow:?}");
        assert!(flow.ruled.unwrap().dropped >= stop.dropped, "{name}");
        clear(&bed.daemon);
        all_passes(&mut pair);
        let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
        assert!(flow.rules.is_empty() && flow.ruled.is_none(), "{name}: {flow:?}");
        pair.exchange(BYTES);
        pair.close();
    }
}

#[test]
fn a_flow_that_is_dropped_does_not_come_back_by_what_is_dropped() {
    let bed = Bed::with("sr-trap", LineOptions::default(), Policy::DETACHED, |c| {
        c.with("unsplice = \"data=client\"")
    });
    let mut pair = bed.connect_spliced("detached");
    load(&bed.daemon, &rule(bed.net.client_addr, "stop", DROP)).unwrap();
    let before = bed.daemon.status().resumed_total;
    nothing_passes(&mut pair);
    assert_eq!(bed.daemon.status().resumed_total, before);
    clear(&bed.daemon);
    all_passes(&mut pair);
    soon("its return", || bed.daemon.status().resumed_total > before);
    pair.close();
}

/// A flow that is spliced while the rules are in force has them from its first segment on.
#[test]
fn the_first_rule_that_does_not_only_count_decides() {
    let bed = Bed::new("sr-order", Policy::DETACHED);
    let rules = [
        rule(bed.net.client_addr, "all", COUNT),
        rule(bed.net.client_addr, "ours", "\"pass\""),
        rule(bed.net.client_addr, "stop", DROP),
    ];
    load(&bed.daemon, &rules.concat()).unwrap();
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(BYTES);
    // The rules for packets saw its SYN.
    let counted = |name: &str| {
        let info = info(&bed, name);
        (info.flows, info.packets, info.bytes)
    };
    let (flows, packets, bytes) = counted("all");
    assert!(
        flows == 1 && packets >= 6 && bytes >= 2 * BYTES,
        "{packets} {bytes}"
    );
    // A late acknowledgement may have passed since.
    let ours = counted("ours");
    assert!(
        ours.0 == flows && ours.1 >= packets && ours.2 >= bytes,
        "{ours:?}, {packets} {bytes}"
    );
    assert_eq!(counted("stop"), (0, 0, 0));
    let flow = bed.daemon.wait_state(pair.client_port(), &["detached"]);
    assert_eq!(flow.rules, ["all", "ours"]);
    pair.close();
    bed.daemon.wait_reaped();
    // The counts outlive the flow.
    let all = counted("all");
    assert!(all.0 == 1 && all.1 >= packets && all.2 >= bytes, "{all:?}");
    assert_eq!(counted("ours"), all);
    assert_eq!(counted("stop"), (0, 0, 0));
    for (text, says) in [
        (
            rule(bed.net.client_addr, "x", COUNT) + "interface = \"f0\"\n",
            "rules.toml:1:1: rule 1 (`x`): the packets",
        ),
        (
            rule(bed.net.client_addr, "x", COUNT) + "flags = \"fin\"\n",
            "leave `flags` out",
        ),
        (
            rule(bed.net.client_addr, "x", "\"ask\""),
            "use pass, drop, count or limit",
        ),
        (
            rule(bed.net.client_addr, "x", "\"limit\""),
            "rules.toml:5:10: missing key `rate_limit`",
        ),
    ] {
        let said = load(&bed.daemon, &text).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
    assert_eq!(counted("all").0, 1, "a file with an error changes nothing");
}

/// Receives so many of the server's bytes, and returns the time that it took.
fn download(pair: &mut Pair, bytes: u64) -> Duration {
    let start = Instant::now();
    pair.exchange_unevenly(0, bytes);
    start.elapsed()
}

#[test]
fn the_lesser_of_two_limits_holds_and_the_flows_own_comes_back() {
    const OWN: u64 = 8_000_000;
    const RULE: u64 = 2_000_000;
    for (name, policy, state) in [
        ("sr-limit", Policy::DETACHED, "detached"),
        ("sr-limit-d", Policy::DORMANT, "dormant"),
    ] {
        // A tenth of a second's bytes may pass at once.
        let rate_limit = |rate: u64| format!("rate_limit = \"server={rate}B/s,burst={}B\"", rate / 10);
        let bed = Bed::with(name, LineOptions::default(), policy, |c| c.with(&rate_limit(OWN)));
        let mut pair = bed.connect_spliced(state);
        let limit = |rate: u64| format!("\"limit\"\n{}", rate_limit(rate));
        let least = |bytes: u64, rate: u64| Duration::from_secs_f64(bytes as f64 / rate as f64 - 0.15);
        load(&bed.daemon, &rule(bed.net.client_addr, "slow", &limit(RULE))).unwrap();
        let took = download(&mut pair, RULE);
        assert!(took >= least(RULE, RULE), "{name}: {took:?}");
        let slow = info(&bed, "slow");
        assert!(
            slow.dropped > 0 && slow.dropped < slow.packets,
            "{name}: {slow:?}"
        );
        // The rule allows more than the flow's own limit.
        load(&bed.daemon, &rule(bed.net.client_addr, "fast", &limit(10 * OWN))).unwrap();
        let took = download(&mut pair, OWN);
        assert!(took >= least(OWN, OWN), "{name}: {took:?}");
        clear(&bed.daemon);
        let took = download(&mut pair, OWN);
        assert!(took >= least(OWN, OWN), "{name}: {took:?}");
        pair.close();
    }
}

/// The slow rule's burst is used up for a minute.
#[test]
fn a_limit_that_is_raised_lets_payload_pass_at_once() {
    for (name, policy, state) in [
        ("sr-raise", Policy::DETACHED, "detached"),
        ("sr-raise-d", Policy::DORMANT, "dormant"),
    ] {
        let bed = Bed::new(name, policy);
        let mut pair = bed.connect_spliced(state);
        let limit = |rate: &str| {
            rule(
                bed.net.client_addr,
                "rate",
                &format!("\"limit\"\nrate_limit = \"{rate}\""),
            )
        };
        load(&bed.daemon, &limit("1kB/s")).unwrap();
        for end in [&mut pair.client, &mut pair.server] {
            end.send(5 * BYTES);
        }
        soon("a drop on each side", || {
            pair.client.sent_again() > 0 && pair.server.sent_again() > 0
        });
        load(&bed.daemon, &limit("100MB/s")).unwrap();
        for end in [&mut pair.client, &mut pair.server] {
            end.receive(5 * BYTES);
        }
        pair.close();
    }
}

#[test]
fn what_rules_say_holds_without_a_daemon_until_the_next_one_decides() {
    let mut bed = Bed::new("sr-kill", Policy::DORMANT);
    let mut pair = bed.connect_spliced("dormant");
    load(&bed.daemon, &rule(bed.net.client_addr, "stop", DROP)).unwrap();
    bed.daemon.kill();
    nothing_passes(&mut pair);
    // The next one has no rules.
    bed.daemon.start(&bed.net.forwarder);
    all_passes(&mut pair);
    bed.daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
    pair.close();
}

#[test]
fn the_rules_of_the_next_daemon_hold_for_adopted_flows() {
    let mut bed = Bed::with("sr-adopt", LineOptions::default(), Policy::DETACHED, |c| {
        c.with("[[rule]]\nname = \"stop\"\nfrom_ports = \"7000\"\nspliced = true\naction = \"drop\"\nreason = \"x\"")
    });
    clear(&bed.daemon);
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(BYTES);
    bed.daemon.kill();
    pair.exchange(BYTES);
    bed.daemon.start(&bed.net.forwarder);
    // The rule matches by what the server sends.
    nothing_passes(&mut pair);
    assert_eq!(info(&bed, "stop").flows, 1);
    clear(&bed.daemon);
    all_passes(&mut pair);
    pair.close();
}

/// Streams pass in both directions while rules come and go.
#[test]
fn no_byte_is_lost_while_rules_are_replaced() {
    let bed = Bed::new("sr-load", Policy::DETACHED);
    let mut pairs: Vec<Pair> = (0..4).map(|_| bed.connect_spliced("detached")).collect();
    let sets = [
        rule(bed.net.client_addr, "count", COUNT),
        rule(bed.net.client_addr, "slow", "\"limit\"\nrate_limit = \"20MB/s\""),
        rule(bed.net.client_addr, "stop", DROP),
        rule(bed.net.client_addr, "pass", "\"pass\""),
    ];
    let is_over = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let (bed, is_over) = (&bed, &is_over);
        let loader = scope.spawn(move || {
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) || rounds == 0 {
                for set in &sets {
                    load(&bed.daemon, set).unwrap();
                }
                clear(&bed.daemon);
                rounds += 1;
            }
            rounds
        });
        let streams: Vec<_> = (pairs.iter_mut())
            .map(|pair| scope.spawn(|| (0..20).for_each(|_| pair.exchange(500_000))))
            .collect();
        let done: Vec<_> = streams.into_iter().map(|stream| stream.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        done.into_iter().for_each(|done| done.unwrap());
        loader.join().unwrap()
    });
    eprintln!("{rounds} rounds of rules");
    pairs.iter_mut().for_each(Pair::close);
}
