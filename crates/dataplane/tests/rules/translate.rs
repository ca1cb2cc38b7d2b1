//! Translation by a record.

use std::net::SocketAddr;

use longsplice_core::rules::{Action, Match, Translation};

use crate::{
    frames::{Frame, frame},
    support::{
        flow::{REDIRECT, SHOT},
        net::{OUR_MAC, PEER_MAC},
        packet::{ACK, PSH, Packet, SYN, assert_frame, pattern},
    },
    ways::{Ways, rule},
};

const TO: &str = "198.18.2.2:9000";

fn ways() -> Ways {
    let address = |a: &str| a.parse::<SocketAddr>().unwrap();
    Ways::new(&[rule(
        Match {
            flags: "any".parse().unwrap(),
            to_ports: vec![80.into()],
            ..Match::default()
        },
        Action::Translate(Translation {
            from: address("198.18.2.1:7000"),
            to: address(TO),
            seq: 1_000_000,
            ack: 0xffff_0000,
            tsval: 77,
            tsecr: 0x8000_0000,
        }),
    )])
}

fn packet() -> Packet {
    Packet {
        dst_mac: OUR_MAC[0],
        src_mac: PEER_MAC[0],
        tos: 0x2a,
        id: 4711,
        fragment: 0x4000,
        ttl: 60,
        src: "198.18.1.2:40000".parse().unwrap(),
        dst: "198.18.1.1:80".parse().unwrap(),
        seq: 0xffff_ff00,
        ack: 0x0001_0001,
        reserved: 0,
        flags: ACK | PSH,
        window: 501,
        urgent: 0,
        // NOP NOP timestamps: TSval 1000, TSecr 5; NOP NOP SACK of one block.
        options: [
            &[1, 1, 8, 10, 0, 0, 3, 232, 0, 0, 0, 5][..],
            &[1, 1, 5, 10, 0, 1, 0, 10, 0, 1, 0, 20],
        ]
        .concat(),
        payload: pattern(700),
        padding: Vec::new(),
    }
}

#[test]
fn every_header_is_translated_by_the_record() {
    let ways = ways();
    let expected = Packet {
        dst_mac: PEER_MAC[1],
        src_mac: OUR_MAC[1],
        ttl: 59,
        src: "198.18.2.1:7000".parse().unwrap(),
        dst: TO.parse().unwrap(),
        seq: 0xffff_ff00_u32.wrapping_add(1_000_000),
        ack: 1,
        options: [
            &[1, 1, 8, 10, 0, 0, 4, 53, 128, 0, 0, 5][..],
            &[1, 1, 5, 10, 0, 0, 0, 10, 0, 0, 0, 20],
        ]
        .concat(),
        ..packet()
    };
    let (verdicts, ran) = ways.verdicts_of(&packet().bytes());
    assert_eq!(
        verdicts.into_iter().collect::<Vec<_>>(),
        [("translated".to_owned(), 1)]
    );
    assert_eq!(ran.verdict, REDIRECT);
    assert_frame(&ran.packet, &expected.bytes(), "translated");
    assert_eq!(ways.plane.verdicts()["forwarded"], 1);
}

#[test]
fn a_drop_on_the_way_is_named() {
    let ways = ways();
    let old = Packet { ttl: 1, ..packet() };
    ways.gives(&old.bytes(), "translated", SHOT);
    assert_eq!(ways.plane.verdicts()["drop_ttl"], 1);
    ways.net.ip("route add blackhole 198.18.2.2/32");
    ways.gives(&packet().bytes(), "translated", SHOT);
    assert_eq!(ways.plane.verdicts()["drop_no_route"], 1);
}

#[test]
fn what_cannot_be_translated_goes_on() {
    let ways = ways();
    let v4 = frame("198.18.1.2:40000", "198.18.1.1:80", SYN);
    let first = Frame {
        fragment: 0x2000,
        ..v4.clone()
    };
    let options = Frame {
        between: vec![1, 1, 1, 0],
        ..v4
    };
    for f in [first, options] {
        ways.leaves(&f.bytes(), "untranslatable");
    }
    // The rule's record is of IPv4: it takes no other packets.
    ways.leaves(
        &frame("[2001:db8:1::2]:1", "[2001:db8:1::1]:80", SYN).bytes(),
        "unmatched",
    );
}
