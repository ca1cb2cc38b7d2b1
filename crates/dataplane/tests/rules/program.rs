//! Packets for a program.

use std::{
    thread,
    time::{Duration, Instant},
};

use longsplice_core::rules::{Action, Match};
use longsplice_dataplane::rules::RulePacket;

use crate::{
    frames::frame,
    support::{
        flow::SHOT,
        packet::{ETH, Packet, SYN, pattern},
    },
    ways::{Ways, rule, to},
};

#[test]
fn a_program_gets_the_packet_or_a_copy() {
    let ways = Ways::new(&[
        rule(to(&["198.18.0.0/15"]), Action::Ask),
        rule(Match::default(), Action::Copy),
    ]);
    let mut ring = ways.rules.packets().unwrap();
    let before = longsplice_dataplane::monotonic();
    let asked = frame("198.18.1.2:1", "198.18.2.2:2", SYN);
    let long = Packet {
        payload: pattern(3000),
        ..asked.clone()
    };
    let copied = frame("[2001:db8:1::2]:1", "[2001:db8:2::2]:2", SYN);
    ways.gives(&asked.bytes(), "asked", SHOT);
    ways.gives(&long.bytes(), "asked", SHOT);
    ways.leaves(&copied.bytes(), "copied");
    let packet = |rule, copy, frame: &Packet| RulePacket {
        rule,
        copy,
        ifindex: ways.net.ifindex("a0"),
        at: 0,
        packet: frame.bytes(),
    };
    let expected = [
        packet(0, false, &asked),
        packet(0, false, &long),
        packet(1, true, &copied),
    ];
    let mut taken = ring.take().unwrap();
    let times: Vec<_> = taken.iter_mut().map(|p| std::mem::take(&mut p.at)).collect();
    assert!(times.is_sorted() && times[0] >= before, "{before} {times:?}");
    assert!(times[2] <= longsplice_dataplane::monotonic(), "{times:?}");
    assert_eq!(taken, expected);
    assert_eq!(ring.take().unwrap(), []);
}

/// Before Linux 6.6 the rules outlive a program that was killed.
#[test]
fn a_program_that_reads_no_more_is_passed_by() {
    let ways = Ways::new(&[rule(Match::default(), Action::Ask)]);
    let mut ring = ways.rules.packets().unwrap();
    let packet = frame("198.18.1.2:1", "198.18.2.2:2", SYN).bytes();
    let (begun, mut asked) = (Instant::now(), 0);
    while ways.verdicts_of(&packet).0.contains_key("asked") {
        asked += 1;
        assert!(begun.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(50));
    }
    assert!(
        begun.elapsed() >= Duration::from_secs(5),
        "{asked} were asked about"
    );
    ways.leaves(&packet, "ask_lost");
    ways.set(&[rule(Match::default(), Action::Copy)]);
    ways.leaves(&packet, "copy_lost");
    // It is there again.
    assert_eq!(ring.take().unwrap().len(), asked);
    ways.set(&[rule(Match::default(), Action::Ask)]);
    ways.gives(&packet, "asked", SHOT);
}

#[test]
fn a_program_that_does_not_keep_up_is_passed_by() {
    let ways = Ways::new(&[rule(Match::default(), Action::Ask)]);
    let mut ring = ways.rules.packets().unwrap();
    let packet = frame("198.18.1.2:1", "198.18.2.2:2", SYN).bytes();
    let mut fit = 0;
    while ways.verdicts_of(&packet).0.contains_key("asked") {
        fit += 1;
        assert!(fit < 10_000, "the ring has an end");
    }
    ways.gives(&packet, "drop_ask", SHOT);
    ways.set(&[rule(Match::default(), Action::AskOrPass)]);
    ways.leaves(&packet, "ask_lost");
    ways.set(&[rule(Match::default(), Action::Copy)]);
    ways.leaves(&packet, "copy_lost");
    assert_eq!(ring.take().unwrap().len(), fit);
    ways.leaves(&packet, "copied");
    ways.set(&[rule(Match::default(), Action::AskOrPass)]);
    ways.gives(&packet, "asked", SHOT);
}

/// The program computes the checksum of what it sends on anew, and would hide the damage from the receiver.
#[test]
fn a_program_is_not_asked_about_what_was_corrupted() {
    let ways = Ways::new(&[rule(Match::default(), Action::Ask)]);
    let mut ring = ways.rules.packets().unwrap();
    for action in [Action::Ask, Action::AskOrPass] {
        ways.set(&[rule(Match::default(), action)]);
        for [from, to] in [
            ["198.18.1.2:1", "198.18.2.2:2"],
            ["[2001:db8:1::2]:1", "[2001:db8:2::2]:2"],
        ] {
            let good = frame(from, to, SYN).bytes();
            let is_protected = |at: &usize| from.contains('.') || *at >= ETH + 4 && *at != ETH + 7;
            for damaged in (ETH + 1..good.len()).filter(is_protected) {
                let mut bad = good.clone();
                bad[damaged] ^= 0x04;
                let (verdicts, _) = ways.verdicts_of(&bad);
                assert!(!verdicts.contains_key("asked"), "byte {damaged}: {verdicts:?}");
            }
            let mut bad = good.clone();
            *bad.last_mut().unwrap() ^= 1;
            ways.gives(&bad, "drop_checksum", SHOT);
            ways.gives(&good, "asked", SHOT);
        }
    }
    assert_eq!(ring.take().unwrap().len(), 4);
}
