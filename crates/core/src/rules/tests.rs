use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;

fn rule(name: &str, action: Action) -> Rule {
    Rule {
        name: name.into(),
        matching: Match::default(),
        action,
    }
}

fn deliver(to: &[&str]) -> Action {
    Action::Deliver {
        to: to.iter().map(|a| a.parse().unwrap()).collect(),
    }
}

fn networks(list: &[&str]) -> Vec<Network> {
    list.iter().map(|n| n.parse().unwrap()).collect()
}

fn seen(from: &str, to: &str, flags: u8) -> Seen {
    Seen {
        interface: "eth0".into(),
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        flags,
    }
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

#[test]
fn networks_are_read_and_written() {
    for good in [
        "198.18.0.0/15",
        "0.0.0.0/0",
        "2001:db8::/32",
        "::/0",
        "198.18.1.2",
        "2001:db8::1",
    ] {
        assert_eq!(good.parse::<Network>().unwrap().to_string(), good);
    }
    assert_eq!(
        "198.18.1.2/32".parse::<Network>().unwrap().to_string(),
        "198.18.1.2"
    );
    for (bad, says) in [
        ("", "write ADDRESS/BITS"),
        ("198.18/15", "write ADDRESS/BITS"),
        ("198.18.0.0/", "write ADDRESS/BITS"),
        ("198.18.0.0/+1", "write ADDRESS/BITS"),
        ("198.18.0.0/999", "write ADDRESS/BITS"),
        ("198.18.0.0/33", "which has 32"),
        ("2001:db8::/129", "which has 128"),
        ("198.18.1.2/15", "write 198.18.0.0/15"),
        ("2001:db8::1/32", "write 2001:db8::/32"),
        ("::ffff:198.18.0.0/112", "write it as IPv4"),
    ] {
        let e = bad.parse::<Network>().unwrap_err().to_string();
        assert!(e.contains(says), "{bad}: {e}");
    }
}

#[test]
fn ports_and_flags_are_read_and_written() {
    for good in ["0", "80", "1024-65535"] {
        assert_eq!(good.parse::<Ports>().unwrap().to_string(), good);
    }
    for (bad, says) in [
        ("", "no port"),
        ("65536", "no port"),
        ("-", "no port"),
        ("+1", "no port"),
        ("9-8", "write 8-9"),
    ] {
        let e = bad.parse::<Ports>().unwrap_err().to_string();
        assert!(e.contains(says), "{bad}: {e}");
    }
    for good in ["new", "any", "syn,ack", "!syn,rst", "fin,!ack,cwr"] {
        assert_eq!(good.parse::<Flags>().unwrap().to_string(), good);
    }
    assert_eq!("syn, !ack".parse(), Ok(Flags::NEW), "the same, said at length");
    for (bad, says) in [
        ("", "no TCP flag"),
        ("SYN", "no TCP flag"),
        ("syn,!syn", "twice"),
        ("!", "no TCP flag"),
    ] {
        let e = bad.parse::<Flags>().unwrap_err().to_string();
        assert!(e.contains(says), "{bad}: {e}");
    }
}

#[test]
fn the_first_rule_decides_and_counting_does_not() {
    let rules = [
        rule("all", Action::Count),
        Rule {
            matching: Match {
                to: networks(&["198.18.2.0/24"]),
                ..Match::default()
            },
            ..rule("spare", Action::Pass)
        },
        rule("rest", Action::Drop { reason: "x".into() }),
    ];
    let program = compile(&rules).unwrap();
    let first = |to: &str, flags| program.first(&seen("198.18.1.2:4000", to, flags)).map(|e| e.rule);
    assert_eq!(first("198.18.2.9:80", SYN), Some(1));
    assert_eq!(first("198.18.3.9:80", SYN), Some(2));
    assert_eq!(
        first("198.18.3.9:80", ACK),
        None,
        "by default only what opens a connection"
    );
    assert_eq!(first("198.18.3.9:80", SYN | ACK), None);
}

#[test]
fn a_network_of_one_family_takes_nothing_of_the_other() {
    for (network, v4, v6) in [("0.0.0.0/0", true, false), ("::/0", false, true)] {
        let mut one = rule("one", Action::Pass);
        one.matching.to = networks(&[network]);
        let program = compile(&[one]).unwrap();
        let takes = |from, to| program.first(&seen(from, to, SYN)).is_some();
        assert_eq!(takes("198.18.1.2:1", "198.18.2.2:2"), v4, "{network}");
        assert_eq!(takes("[2001:db8::1]:1", "[2001:db8::2]:2"), v6, "{network}");
    }
}

#[test]
fn listeners_are_chosen_by_family() {
    let program = compile(&[rule("both", deliver(&["0.0.0.0:8080", "[::]:8080"]))]).unwrap();
    let target = |from, to| match program.first(&seen(from, to, ACK)).unwrap().verb {
        Verb::Deliver(place) => program.targets[place],
        other => panic!("{other:?}"),
    };
    let listener = |a: &str| Target::Listener(Some(a.parse().unwrap()));
    assert_eq!(target("198.18.1.2:1", "198.18.2.2:2"), listener("127.0.0.1:8080"));
    assert_eq!(
        target("[2001:db8::1]:1", "[2001:db8::2]:2"),
        listener("[::1]:8080")
    );
}

#[test]
fn what_cannot_be_meant_is_refused_with_the_remedy() {
    let with = |action, m: Match| Rule {
        matching: m,
        ..rule("r", action)
    };
    let to = |list: &[&str]| Match::from(networks(list).as_slice());
    let translation = |from: &str, to: &str| {
        Action::Translate(Translation {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            seq: 0,
            ack: 0,
            tsval: 0,
            tsecr: 0,
        })
    };
    let interface = |name: &str| Match {
        interface: Some(name.into()),
        ..Match::default()
    };
    for (rules, says) in [
        (
            vec![rule("a", Action::Pass), rule("a", Action::Count)],
            "rule 2 (`a`): another rule",
        ),
        (vec![rule("", Action::Pass)], "the name must have"),
        (vec![rule("a\nb", Action::Pass)], "rule 1 (`a\\nb`): the name"),
        (
            vec![rule(
                "a",
                Action::Drop {
                    reason: "x".repeat(65),
                },
            )],
            "the reason must have",
        ),
        (vec![rule("a", deliver(&[]))], "no listener"),
        (vec![rule("a", deliver(&["127.0.0.1:0"]))], "has no port"),
        (
            vec![rule("a", deliver(&["127.0.0.1:1", "127.0.0.1:2"]))],
            "two listeners",
        ),
        (
            vec![with(
                deliver(&["127.0.0.1:1"]),
                to(&["198.18.0.0/15", "2001:db8::/32"]),
            )],
            "2001:db8::/32 is of another family",
        ),
        (
            vec![with(
                Action::Follow,
                Match {
                    flags: Flags::ANY,
                    ..Match::default()
                },
            )],
            "leave `flags` out",
        ),
        (
            vec![with(
                Action::Pass,
                Match {
                    from: networks(&["::/0"]),
                    ..to(&["0.0.0.0/0"])
                },
            )],
            "one family in `from` and `to`",
        ),
        (vec![with(Action::Pass, interface("lo"))], "not for those on `lo`"),
        (vec![with(Action::Pass, interface("a/b"))], "`a/b` cannot be"),
        (
            vec![rule("a", translation("198.18.0.1:1", "[2001:db8::1]:1"))],
            "of one family",
        ),
    ] {
        let e = compile(&rules).unwrap_err().to_string();
        assert!(e.contains(says), "{rules:?}: {e}");
    }
}

#[test]
fn the_number_of_entries_is_bounded() {
    let list: Vec<Network> = (0..16u8)
        .map(|n| format!("198.18.{n}.0/24").parse().unwrap())
        .collect();
    let ports: Vec<Ports> = (1..=16u16).map(Ports::from).collect();
    let full = Rule {
        matching: Match {
            from: list.clone(),
            to_ports: ports,
            ..Match::default()
        },
        ..rule("full", Action::Pass)
    };
    assert_eq!(
        compile(std::slice::from_ref(&full)).unwrap().entries.len(),
        MAX_ENTRIES
    );
    let more = [full.clone(), rule("one more", Action::Pass)];
    assert_eq!(compile(&more).unwrap_err().what, Wrong::TooMany(257));
    let mut huge = full;
    huge.matching.to = list.repeat(10_000);
    assert_eq!(compile(&[huge]).unwrap_err().what, Wrong::TooMany(160_000));
    let many: Vec<Rule> = (1..=65u16)
        .map(|port| rule(&port.to_string(), deliver(&[&format!("127.0.0.1:{port}")])))
        .collect();
    assert_eq!(compile(&many).unwrap_err().what, Wrong::TooManyTargets(65));
}

#[test]
fn rules_survive_the_way_through_json() {
    let rules = [Rule {
        name: "a".into(),
        matching: Match {
            interface: Some("eth0".into()),
            from: networks(&["2001:db8::/32"]),
            to_ports: vec![Ports::from(80), "90-99".parse().unwrap()],
            flags: "syn,rst".parse().unwrap(),
            ..Match::default()
        },
        action: Action::Drop { reason: "x".into() },
    }];
    let text = serde_json::to_string(&rules).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Rule>>(&text).unwrap(), rules, "{text}");
}

proptest! {
    #[test]
    fn no_text_brings_the_parsers_down(text in ".{0,40}", digits in "[0-9a-f:./,!-]{0,40}") {
        for s in [text, digits] {
            let _ = s.parse::<Network>();
            let _ = s.parse::<Ports>();
            let _ = s.parse::<Flags>();
        }
    }

    #[test]
    fn a_network_takes_its_own_addresses_and_no_others(bits in 0u8..=32, address: u32, other: u32) {
        let base = u64::from(u32::MAX) << (32 - bits);
        let network: Network = format!("{}/{bits}", std::net::Ipv4Addr::from(address & base as u32)).parse().unwrap();
        let mut one = rule("one", Action::Pass);
        one.matching.to = vec![network];
        let program = compile(&[one]).unwrap();
        let to = |a: u32| SocketAddr::from((std::net::Ipv4Addr::from(a), 80));
        let takes = |a| program.first(&Seen { to: to(a), ..seen("198.18.1.2:1", "198.18.1.3:1", SYN) }).is_some();
        prop_assert!(takes(address));
        prop_assert_eq!(takes(other), (other ^ address) & base as u32 == 0);
    }
}
