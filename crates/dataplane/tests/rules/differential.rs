//! Compares the kernel half's choice of an entry with that of `longsplice_core::rules`, for random rules and packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use longsplice_core::rules::{Action, Match, Network, Ports, Program, Rule, Seen, compile};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use crate::{
    frames::frame,
    support::{flow::SHOT, packet::Packet},
    ways::{Ways, drop, rule},
};

/// Generates addresses with few different bits, so that many match.
fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = (0u32..4, 0u32..4).prop_map(|(a, b)| IpAddr::V4(Ipv4Addr::from(0xc612_0000 | a << 14 | b)));
    let v6 = (0u128..4, 0u128..4)
        .prop_map(|(a, b)| IpAddr::V6(Ipv6Addr::from(0x2001_0db8_u128 << 96 | a << 63 | b)));
    prop_oneof![v4, v6]
}

fn network() -> impl Strategy<Value = Network> {
    (address(), prop_oneof![0u32..=16, 0u32..=128]).prop_map(|(address, bits)| match address {
        IpAddr::V4(a) => {
            let bits = bits.min(32);
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            format!("{}/{bits}", Ipv4Addr::from(a.to_bits() & mask))
                .parse()
                .unwrap()
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            let network = Ipv6Addr::from(a.to_bits() & mask);
            format!("{network}/{bits}").parse().unwrap()
        }
    })
}

fn ports() -> impl Strategy<Value = Ports> {
    (0u16..6, 0u16..6).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b)).parse().unwrap())
}

fn a_rule() -> impl Strategy<Value = Rule> {
    let networks = || vec(network(), 0..3);
    let flags = prop_oneof![
        Just("new"),
        Just("any"),
        Just("syn"),
        Just("!ack,psh"),
        Just("rst,ack")
    ];
    let interface = prop_oneof![4 => Just(None), 1 => Just(Some("b0")), 4 => Just(Some("a0"))];
    let action = prop_oneof![Just(Action::Pass), Just(Action::Count), Just(drop("x"))];
    (
        networks(),
        networks(),
        vec(ports(), 0..2),
        vec(ports(), 0..3),
        flags,
        interface,
        action,
    )
        .prop_map(|(from, to, from_ports, to_ports, flags, interface, action)| {
            let interface = interface.map(str::to_owned);
            let flags = flags.parse().unwrap();
            rule(
                Match {
                    interface,
                    from,
                    to,
                    from_ports,
                    to_ports,
                    flags,
                    spliced: false,
                },
                action,
            )
        })
}

fn a_packet() -> impl Strategy<Value = Packet> {
    let flags = prop_oneof![
        Just(0x02u8),
        Just(0x10),
        Just(0x12),
        Just(0x18),
        Just(0x14),
        any::<u8>()
    ];
    (address(), address(), 0u16..6, 0u16..6, flags)
        .prop_filter("one family", |(a, b, ..)| a.is_ipv4() == b.is_ipv4())
        .prop_map(|(from, to, sport, dport, flags)| {
            let [from, to] =
                [(from, sport), (to, dport)].map(|(ip, port)| SocketAddr::new(ip, port).to_string());
            frame(&from, &to, flags)
        })
}

/// Returns the rules that can form a set, each with a name of its own.
fn good(rules: Vec<Rule>) -> (Vec<Rule>, Program) {
    let mut kept: Vec<Rule> = Vec::new();
    for rule in rules {
        let named = Rule {
            name: kept.len().to_string(),
            ..rule
        };
        kept.push(named);
        if compile(&kept).is_err() {
            kept.pop();
        }
    }
    let program = compile(&kept).unwrap();
    (kept, program)
}

#[test]
fn the_kernel_half_chooses_as_the_specification_does() {
    let ways = Ways::new(&[]);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let input = (vec(a_rule(), 0..8), vec(a_packet(), 12));
    let met_in = std::cell::Cell::new(0);
    runner
        .run(&input, |(rules, packets)| {
            let (rules, program) = good(rules);
            ways.set(&rules);
            for packet in packets {
                let seen = Seen {
                    interface: "a0".into(),
                    from: packet.src,
                    to: packet.dst,
                    flags: packet.flags,
                };
                let expected = program.first(&seen).map(|e| e.rule);
                let before = ways.rules.counts(rules.len());
                let (verdicts, ran) = ways.verdicts_of(&packet.bytes());
                let after = ways.rules.counts(rules.len());
                let decided =
                    (0..rules.len()).find(|n| after[*n] != before[*n] && rules[*n].action != Action::Count);
                prop_assert_eq!(decided, expected, "{:?} {:?}", rules, packet);
                let verdict = match expected.map(|n| &rules[n].action) {
                    None => "unmatched",
                    Some(Action::Pass) => "passed",
                    Some(_) => "dropped",
                };
                prop_assert!(verdicts.contains_key(verdict), "{:?} {}", verdicts, verdict);
                prop_assert_eq!(ran.verdict == SHOT, verdict == "dropped");
                met_in.set(met_in.get() + u32::from(expected.is_some()));
            }
            Ok(())
        })
        .unwrap();
    let met = met_in.get();
    assert!(met > 300, "too little fits: {met}");
}
