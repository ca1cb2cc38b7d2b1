//! Translation by a record.

use longsplice_core::rules::{Action, Match, Translation};

use crate::{
    frames::frame,
    support::{
        flow::{REDIRECT, SHOT},
        net::{OUR_MAC, PEER_MAC},
        packet::{ACK, DESTINATIONS, PSH, Packet, assert_frame, pattern},
    },
    ways::{Ways, rule},
};

/// Addresses of each family: source and destination of the packet, and those of the record.
const WAYS: [[&str; 4]; 2] = [
    [
        "198.18.1.2:40000",
        "198.18.1.1:80",
        "198.18.2.1:7000",
        "198.18.2.2:9000",
    ],
    [
        "[2001:db8:1::2]:40000",
        "[2001:db8:1::1]:80",
        "[2001:db8:2::1]:7000",
        "[2001:db8:2::2]:9000",
    ],
];

fn ways(from: &str, to: &str) -> Ways {
    let ways = Ways::new(&[rule(
        Match {
            flags: "any".parse().unwrap(),
            to_ports: vec![80.into()],
            ..Match::default()
        },
        Action::Translate(Translation {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            seq: 1_000_000,
            ack: 0xffff_0000,
            tsval: 77,
            tsecr: 0x8000_0000,
        }),
    )]);
    ways.net
        .ip_v6("neighbour replace 2001:db8:2::2 lladdr 02:00:00:00:02:02 dev b0");
    ways
}

fn packet(from: &str, to: &str) -> Packet {
    Packet {
        tos: 0x28,
        ttl: 60,
        seq: 0xffff_ff00,
        ack: 0x0001_0001,
        window: 501,
        // NOP NOP timestamps: TSval 1000, TSecr 5; NOP NOP SACK of one block.
        options: [
            &[1, 1, 8, 10, 0, 0, 3, 232, 0, 0, 0, 5][..],
            &[1, 1, 5, 10, 0, 1, 0, 10, 0, 1, 0, 20],
        ]
        .concat(),
        payload: pattern(700),
        ..frame(from, to, ACK | PSH)
    }
}

fn translated(packet: &Packet, from: &str, to: &str) -> Packet {
    Packet {
        dst_mac: PEER_MAC[1],
        src_mac: OUR_MAC[1],
        ttl: 59,
        src: from.parse().unwrap(),
        dst: to.parse().unwrap(),
        seq: 0xffff_ff00_u32.wrapping_add(1_000_000),
        ack: 1,
        options: [
            &[1, 1, 8, 10, 0, 0, 4, 53, 128, 0, 0, 5][..],
            &[1, 1, 5, 10, 0, 0, 0, 10, 0, 0, 0, 20],
        ]
        .concat(),
        ..packet.clone()
    }
}

#[test]
fn every_header_is_translated_by_the_record() {
    for [from, to, new_from, new_to] in WAYS {
        let ways = ways(new_from, new_to);
        let plain = packet(from, to);
        let between = Packet {
            ip_options: vec![1, 1, 1, 0],
            extensions: vec![(DESTINATIONS, vec![0, 1, 4, 0, 0, 0, 0])],
            ..plain.clone()
        };
        for packet in [plain, between] {
            let (verdicts, ran) = ways.verdicts_of(&packet.bytes());
            let expected = [("translated".to_owned(), 1)];
            assert_eq!(verdicts.into_iter().collect::<Vec<_>>(), expected);
            assert_eq!(ran.verdict, REDIRECT);
            let expected = translated(&packet, new_from, new_to).bytes();
            assert_frame(&ran.packet, &expected, "translated");
        }
        assert_eq!(ways.plane.verdicts()["forwarded"], 2);
    }
}

#[test]
fn a_drop_on_the_way_is_named() {
    for [from, to, new_from, new_to] in WAYS {
        let ways = ways(new_from, new_to);
        let packet = packet(from, to);
        let old = Packet {
            ttl: 1,
            ..packet.clone()
        };
        ways.gives(&old.bytes(), "translated", SHOT);
        assert_eq!(ways.plane.verdicts()["drop_ttl"], 1);
        ways.net.ip("route add blackhole 198.18.2.2/32");
        ways.net.ip_v6("route add blackhole 2001:db8:2::2/128");
        ways.gives(&packet.bytes(), "translated", SHOT);
        assert_eq!(ways.plane.verdicts()["drop_no_route"], 1);
    }
}

#[test]
fn what_cannot_be_translated_goes_on() {
    let [[from, to, new_from, new_to], [from_v6, to_v6, ..]] = WAYS;
    let ways = ways(new_from, new_to);
    let packet = packet(from, to);
    let first = Packet {
        fragment: 0x2000,
        ..packet.clone()
    };
    ways.leaves(&first.bytes(), "untranslatable");
    let mut lies = packet.bytes();
    lies[46] = 0x40; // a data offset of 16 bytes
    ways.leaves(&lies, "untranslatable");
    // The rule's record is of IPv4: it takes no other packets.
    ways.leaves(&frame(from_v6, to_v6, ACK).bytes(), "unmatched");
}
