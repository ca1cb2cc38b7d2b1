//! Matching of packets by rules, and their counters.

use longsplice_core::rules::{Action, Match};
use longsplice_dataplane::rules::Count;

use crate::{
    frames::{frame, length},
    support::{
        flow::SHOT,
        packet::{ACK, DESTINATIONS, FRAGMENT, HOP_BY_HOP, Packet, RST, SYN},
    },
    ways::{Ways, drop, rule, to},
};

const V4: [&str; 2] = ["198.18.1.2:40000", "198.18.2.2:80"];
const V6: [&str; 2] = ["[2001:db8:1::2]:40000", "[2001:db8:2::2]:80"];

fn both(flags: u8) -> [Packet; 2] {
    [V4, V6].map(|[from, to]| frame(from, to, flags))
}

#[test]
fn without_rules_everything_goes_on() {
    let ways = Ways::new(&[]);
    for f in both(SYN).into_iter().chain(both(ACK)) {
        ways.leaves(&f.bytes(), "unmatched");
    }
}

#[test]
fn each_part_of_a_match_counts() {
    let ways = Ways::new(&[]);
    let with = |change: fn(&mut Match)| {
        let mut m = Match::default();
        change(&mut m);
        m
    };
    let takes: [fn(&mut Match); 9] = [
        |_| {},
        |m| m.interface = Some("a0".into()),
        |m| {
            m.from = vec![
                "198.18.1.0/24".parse().unwrap(),
                "2001:db8:1::/48".parse().unwrap(),
            ]
        },
        |m| m.to = vec!["198.18.2.2".parse().unwrap(), "2001:db8:2::2".parse().unwrap()],
        |m| m.to = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
        |m| m.from_ports = vec!["40000".parse().unwrap()],
        |m| m.to_ports = vec!["1-79".parse().unwrap(), "80-80".parse().unwrap()],
        |m| m.flags = "syn".parse().unwrap(),
        |m| m.flags = "any".parse().unwrap(),
    ];
    let leaves: [fn(&mut Match); 9] = [
        |m| m.interface = Some("b0".into()),
        |m| m.interface = Some("none".into()),
        |m| {
            m.from = vec![
                "198.18.1.0/31".parse().unwrap(),
                "2001:db8:1::/127".parse().unwrap(),
            ]
        },
        |m| m.to = vec!["198.18.1.2".parse().unwrap(), "2001:db8:1::2".parse().unwrap()],
        |m| m.from_ports = vec!["39999".parse().unwrap(), "40001-65535".parse().unwrap()],
        |m| m.to_ports = vec!["0-79".parse().unwrap(), "81".parse().unwrap()],
        |m| m.flags = "!syn".parse().unwrap(),
        |m| m.flags = "syn,ack".parse().unwrap(),
        |m| m.flags = "rst".parse().unwrap(),
    ];
    for f in both(SYN) {
        for change in takes {
            ways.set(&[rule(with(change), drop("x"))]);
            ways.gives(&f.bytes(), "dropped", SHOT);
        }
        for change in leaves {
            ways.set(&[rule(with(change), drop("x"))]);
            ways.leaves(&f.bytes(), "unmatched");
        }
    }
}

#[test]
fn a_network_is_of_one_family() {
    let ways = Ways::new(&[]);
    let [v4, v6] = both(SYN).map(|f| f.bytes());
    for (network, taken, left) in [("0.0.0.0/0", &v4, &v6), ("::/0", &v6, &v4)] {
        ways.set(&[rule(to(&[network]), drop("x"))]);
        ways.gives(taken, "dropped", SHOT);
        ways.leaves(left, "unmatched");
    }
}

#[test]
fn by_default_only_what_opens_a_connection_is_taken() {
    let ways = Ways::new(&[rule(Match::default(), drop("x"))]);
    for flags in [ACK, SYN | ACK, RST, RST | ACK, 0] {
        for f in both(flags) {
            ways.leaves(&f.bytes(), "unmatched");
        }
    }
}

#[test]
fn the_first_rule_decides_and_each_counts() {
    let ways = Ways::new(&[
        rule(Match::default(), Action::Count),
        rule(to(&["198.18.2.0/24"]), Action::Pass),
        rule(Match::default(), drop("rest")),
    ]);
    let [v4, v6] = both(SYN);
    ways.leaves(&v4.bytes(), "passed");
    ways.gives(&v6.bytes(), "dropped", SHOT);
    ways.gives(&v6.bytes(), "dropped", SHOT);
    let count = |packets, bytes| Count { packets, bytes };
    assert_eq!(ways.count(0), count(3, length(&v4) + 2 * length(&v6)));
    assert_eq!(ways.count(1), count(1, length(&v4)));
    assert_eq!(ways.count(2), count(2, 2 * length(&v6)));
}

#[test]
fn a_rule_of_several_networks_counts_a_packet_once() {
    let two = to(&["198.18.0.0/15", "198.18.2.0/24"]);
    let ways = Ways::new(&[rule(two.clone(), Action::Count)]);
    ways.leaves(&both(SYN)[0].bytes(), "unmatched");
    assert_eq!(ways.count(0).packets, 1);
    ways.set(&[rule(two, Action::Pass)]);
    ways.leaves(&both(SYN)[0].bytes(), "passed");
    assert_eq!(ways.count(0).packets, 1, "from zero: the rules are others");
}

#[test]
fn headers_between_are_passed_over() {
    let ways = Ways::new(&[rule(Match::default(), drop("x"))]);
    let [v4, v6] = both(SYN);
    let options = Packet {
        ip_options: vec![1, 1, 1, 0],
        ..v4
    };
    ways.gives(&options.bytes(), "dropped", SHOT);
    let extended = |extensions: &[(u8, Vec<u8>)]| {
        let extensions = extensions.to_vec();
        Packet {
            extensions,
            ..v6.clone()
        }
        .bytes()
    };
    let padded = |kind| (kind, vec![0, 1, 4, 0, 0, 0, 0]);
    let fragment = |offset: u16| {
        let [a, b] = offset.to_be_bytes();
        (FRAGMENT, vec![0, a, b, 0, 0, 0, 9])
    };
    for packet in [
        extended(&[padded(HOP_BY_HOP)]),
        extended(&[padded(HOP_BY_HOP), padded(DESTINATIONS)]),
        extended(&[fragment(1)]),
        extended(&[padded(DESTINATIONS), fragment(0)]),
        extended(&vec![padded(DESTINATIONS); 9]),
        // Fill 1,500 bytes.
        extended(&vec![padded(DESTINATIONS); 180]),
    ] {
        ways.gives(&packet, "dropped", SHOT);
    }
    // Later fragments have no ports.
    ways.ignores(&extended(&[fragment(8)]));
}

#[test]
fn fragments_without_ports_and_cut_headers_go_on() {
    let ways = Ways::new(&[rule(Match::default(), drop("x"))]);
    let [v4, v6] = both(SYN);
    let fragment = |fragment| {
        Packet {
            fragment,
            ..v4.clone()
        }
        .bytes()
    };
    ways.ignores(&fragment(1));
    ways.gives(&fragment(0x2000), "dropped", SHOT);
    for bytes in [v4.bytes(), v6.bytes()] {
        for cut in 1..20 {
            ways.ignores(&bytes[..bytes.len() - cut]);
        }
    }
    // The ports are there behind options, the flags are not.
    let options = Packet {
        ip_options: vec![1; 40],
        ..v4.clone()
    }
    .bytes();
    ways.leaves(&options[..14 + 60 + 12], "odd");
    let mut wrong = v4.bytes();
    wrong[14] = 0x44;
    ways.ignores(&wrong);
}

#[test]
fn what_is_not_tcp_is_not_looked_at() {
    let ways = Ways::new(&[rule(
        Match {
            flags: "any".parse().unwrap(),
            ..Match::default()
        },
        drop("x"),
    )]);
    let [v4, v6] = both(SYN).map(|f| f.bytes());
    let with = |frame: &[u8], at: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        frame
    };
    for udp in [
        with(&v4, 23, 17),
        with(&v6, 20, 17),
        with(&v4, 23, 1),
        with(&v6, 20, 58),
    ] {
        ways.ignores(&udp);
    }
    ways.ignores(&with(&v4, 13, 6)); // ARP's EtherType
    ways.ignores(&with(&v6, 14, 0x40));
}
