//! FINAL: guesses of a sender that does not see the flow. Each guess has a named fate, and none changes the state: not
//! the sequence numbers, not the clock, and not the time after which a dead flow is reaped.

use longsplice_dataplane::Side;

use crate::support::{
    flow::{Flow, Plan, REDIRECT, SHOT, leg},
    options::usual,
    packet::*,
    raw::Maps,
};

/// A moment long ago, in ticks.
const LONG_AGO: u32 = 3;

/// Returns all state of the flow, which was last seen long ago, except the number of bytes that passed.
fn notes(flow: &Flow) -> String {
    let of = |mut rec: crate::support::raw::types::ls_record| {
        (rec.bytes_low, rec.bytes_high) = (0, 0);
        format!("{rec:?}")
    };
    match flow.slot {
        Some(_) => Side::BOTH.map(|side| of(flow.raw_leg(side).rec)).concat(),
        None => Side::BOTH
            .map(|side| of(flow.raw_record(side).expect("it is there")))
            .concat(),
    }
}

fn see_long_ago(flow: &Flow) {
    if flow.slot.is_some() {
        return flow.edit(|slot| slot.leg.iter_mut().for_each(|leg| leg.rec.last_seen = LONG_AGO));
    }
    let maps = Maps::open(&flow.plane.instance);
    for side in Side::BOTH {
        let mut record = flow.raw_record(side).expect("it is there");
        record.last_seen = LONG_AGO;
        maps.set_record(leg(side), Some(&record));
    }
}

/// Greatest age of a late segment's echo.
const LATE_SPAN: u32 = 1 << 20;

/// Returns a dormant flow whose legs have agreed on no timestamps.
fn without_timestamps() -> Flow {
    const TIMESTAMPS: u8 = 1 << 1;
    let flow = Flow::dormant(Plan::default());
    flow.edit(|slot| slot.leg.iter_mut().for_each(|leg| leg.rec.traits &= !TIMESTAMPS));
    flow
}

/// Runs a test on fresh flows, dormant and detached, from either side.
fn each(test: impl Fn(&Flow, Side)) {
    for make in [Flow::dormant, Flow::detached] {
        let mut flow = make(Plan::default());
        for side in Side::BOTH {
            flow.again(Plan::default());
            see_long_ago(&flow);
            test(&flow, side);
        }
    }
}

#[track_caller]
fn is_dropped(flow: &Flow, side: Side, packet: &Packet, verdict: &str) {
    let (before, frame) = (notes(flow), packet.bytes());
    flow.ingress_gives(side, &frame, (SHOT, verdict, &frame));
    assert_eq!(notes(flow), before, "{verdict}");
}

/// Asserts that a segment passes and changes no state: it may be an honest one that only the far end can check.
#[track_caller]
fn passes_unnoted(flow: &Flow, side: Side, packet: &Packet) {
    let before = notes(flow);
    flow.forwards_stray(side, packet, &mut flow.reference(side));
    assert_eq!(notes(flow), before);
}

/// Asserts that a segment is noted: it is the sender's own.
#[track_caller]
fn is_noted(flow: &Flow, side: Side, packet: &Packet) {
    flow.forwards(side, packet, &mut flow.reference(side));
    let rec = match flow.slot {
        Some(_) => flow.raw_leg(side).rec,
        None => flow.raw_record(side).expect("it is there"),
    };
    assert_ne!(rec.last_seen, LONG_AGO);
}

/// Returns the largest window that the end of a side can offer, by its scale.
fn most(flow: &Flow, side: Side) -> u32 {
    65_535 << flow.plan.scale_in[side]
}

#[test]
fn old_bytes_pass_as_far_back_as_a_window_reaches() {
    // A repetition whose acknowledgement was lost, a keep-alive, a probe of a closed window: the far end answers each.
    each(|flow, side| {
        let most = most(flow, side.other());
        let back = |by: u32, len| flow.later(side, by.wrapping_neg(), len, 0);
        for packet in [back(1, 0), back(2, 1), back(1000, 900), back(most + 1, 0)] {
            passes_unnoted(flow, side, &packet);
        }
        for packet in [back(most + 2, 0), back(most + 500, 498), back(1 << 31, 0)] {
            is_dropped(flow, side, &packet, "drop_window");
        }
        is_noted(flow, side, &back(1, 1));
    });
}

#[test]
fn what_lies_beyond_the_window_is_dropped() {
    each(|flow, side| {
        let edge = flow.plan.granted[side];
        for (offset, len, flags) in [
            (edge + 2, 0, ACK),
            (edge + 1, 1, ACK | PSH),
            (edge + 1, 0, ACK | FIN),
            (edge + 1, 10, ACK | URG),
            (1 << 31, 0, ACK),
            (1 << 30, 100, RST),
            (1 << 30, 0, RST | ACK),
        ] {
            let packet = Packet {
                flags,
                ..flow.timed(side, 9, flow.later(side, offset, len, 0))
            };
            is_dropped(flow, side, &packet, "drop_window");
        }
    });
}

#[test]
fn what_acknowledges_nothing_is_dropped() {
    each(|flow, side| {
        for flags in [0, PSH, FIN, URG, PSH | FIN] {
            for len in [0, 10] {
                let packet = Packet {
                    flags,
                    ..flow.timed(side, 9, flow.later(side, 0, len, 0))
                };
                is_dropped(flow, side, &packet, "drop_ack");
            }
        }
    });
}

#[test]
fn what_acknowledges_the_unsent_or_the_long_known_is_dropped() {
    each(|flow, side| {
        let o = side.other();
        let told = flow.told(side);
        let (fresh, stale) = (told, told.wrapping_sub(LATE_SPAN + 1));
        let window = flow.plan.granted[o].max(65_535);
        let largest = 65_535_u32 << flow.plan.scale_in[side];
        for flags in [ACK, ACK | PSH, ACK | FIN, ACK | URG] {
            for (acked, len, echo) in [
                (1_u32, 0, fresh),
                (1, 10, fresh),
                (1 << 30, 10, fresh),
                ((window + 1).wrapping_neg(), 0, stale),
                ((window + 1).wrapping_neg(), 10, stale),
                ((window + 1).wrapping_neg(), 10, told.wrapping_add(1)),
                ((largest + 1).wrapping_neg(), 0, fresh),
                ((largest + 1).wrapping_neg(), 10, fresh),
                (1 << 31, 0, fresh),
            ] {
                for offset in [0, 50, u32::MAX] {
                    // A guess of the next byte passes: the far end checks its acknowledgement.
                    if offset == 0 && acked <= 1 << 30 {
                        continue;
                    }
                    let packet = Packet {
                        flags,
                        options: usual(flow.plan.clock[side], echo),
                        ..flow.later(side, offset, len, acked)
                    };
                    is_dropped(flow, side, &packet, "drop_ack");
                }
            }
        }
        is_noted(flow, side, &flow.later(side, 0, 0, window.wrapping_neg()));
    });
}

#[test]
fn what_is_long_known_may_come_late_with_a_fresh_echo() {
    each(|flow, side| {
        let o = side.other();
        let told = flow.told(side);
        let window = flow.plan.granted[o].max(65_535);
        let largest = 65_535_u32 << flow.plan.scale_in[side];
        assert!(largest > window, "it could have offered more");
        for acked in [window + 1, largest] {
            for echo in [told, told.wrapping_sub(LATE_SPAN)] {
                // Behind a gap, and next in order.
                for (offset, len) in [(50, 10), (50, 0), (0, 0)] {
                    see_long_ago(flow);
                    let packet = Packet {
                        options: usual(flow.plan.clock[side], echo),
                        ..flow.later(side, offset, len, acked.wrapping_neg())
                    };
                    is_noted(flow, side, &packet);
                }
            }
        }
    });
}

#[test]
fn without_timestamps_nothing_comes_late() {
    for side in Side::BOTH {
        let flow = without_timestamps();
        let window = flow.plan.granted[side.other()].max(65_535);
        let late = flow.later(side, 0, 10, (window + 1).wrapping_neg());
        is_dropped(&flow, side, &flow.timed(side, 0, late), "drop_ack");
    }
}

#[test]
fn payload_behind_a_gap_must_echo_a_time_that_its_sender_was_told() {
    const SPAN: u32 = 1 << 24;
    each(|flow, side| {
        let told = flow.told(side);
        let now = flow.plan.clock[side];
        let with = |offset, len, flags, options| Packet {
            flags,
            options,
            ..flow.later(side, offset, len, 0)
        };
        for options in [
            vec![],
            usual(now, told.wrapping_add(1)),
            usual(now, told.wrapping_sub(SPAN + 1)),
            usual(now, told.wrapping_add(1 << 31)),
        ] {
            for (offset, len, flags) in [(1, 10, ACK), (1000, 1, ACK | PSH), (7, 0, ACK | FIN)] {
                let packet = with(offset, len, flags, options.clone());
                is_dropped(flow, side, &packet, "drop_tsecr");
            }
            // An honest sender loses nothing for good: the segment passes next in order, or without payload.
            is_noted(flow, side, &with(0, 0, ACK, vec![]));
            see_long_ago(flow);
            passes_unnoted(flow, side, &with(u32::MAX, 0, ACK, options.clone()));
            passes_unnoted(flow, side, &with(5, 0, ACK, options));
        }
        is_noted(
            flow,
            side,
            &with(100, 10, ACK, usual(now, told.wrapping_sub(SPAN))),
        );
        is_noted(flow, side, &with(200, 10, ACK, usual(now, told)));
        // A repetition that brings new data along, too.
        is_noted(flow, side, &with(0, 300, ACK, vec![]));
    });
}

#[test]
fn what_a_socket_sent_unseen_may_be_echoed() {
    for side in Side::BOTH {
        let flow = Flow::dormant(Plan::default());
        let unseen = flow.told(side).wrapping_add(1);
        let packet = Packet {
            options: usual(flow.plan.clock[side], unseen),
            ..flow.later(side, 50, 10, 0)
        };
        is_dropped(&flow, side, &packet, "drop_tsecr");
        let slot = flow.slot.as_ref().expect("a dormant flow has one");
        slot.note_sent(side, unseen.wrapping_sub(7));
        is_dropped(&flow, side, &packet, "drop_tsecr");
        slot.note_sent(side, unseen);
        is_noted(&flow, side, &packet);
    }
}

#[test]
fn without_timestamps_the_window_has_to_do() {
    for side in Side::BOTH {
        let flow = without_timestamps();
        is_noted(&flow, side, &flow.later(side, 1000, 10, 0));
    }
}

#[test]
fn one_syn_in_a_tick_is_asked_at_the_far_end() {
    each(|flow, side| {
        // The next tick may begin in between: of three, one at least is too many.
        let mut passed = 0;
        for (n, flags) in [(1, SYN), (1 << 31, SYN | ACK), (77, SYN | FIN)] {
            let packet = Packet {
                flags,
                ..flow.later(side, n, 0, 0)
            };
            let before = notes(flow);
            let (ran, counted) = flow.counted(|| flow.ingress(side, &packet.bytes()));
            assert_eq!(notes(flow), before);
            let counted: Vec<&str> = counted.keys().map(String::as_str).collect();
            match ran.verdict {
                REDIRECT => assert_eq!(counted, ["forwarded"]),
                SHOT => assert_eq!(counted, ["drop_syn"]),
                other => panic!("{other}"),
            }
            passed += u32::from(ran.verdict == REDIRECT);
        }
        assert!((1..=2).contains(&passed), "{passed}");
    });
}

#[test]
fn a_guess_meets_no_trap() {
    // The trap is at the very next byte of either side.
    for make in [Flow::dormant, Flow::detached] {
        for side in Side::BOTH {
            let flow = make(Plan::default());
            let maps = Maps::open(&flow.plane.instance);
            for s in Side::BOTH {
                const ARMED: u8 = 0x80;
                let trap = flow.plan.peer[s].wrapping_add(1);
                if flow.slot.is_some() {
                    flow.edit(|slot| {
                        let rec = &mut slot.leg[s].rec;
                        (rec.trap, rec.placement) = (trap, rec.placement | ARMED);
                    });
                } else {
                    let mut rec = flow.raw_record(s).expect("it is there");
                    (rec.trap, rec.placement) = (trap, rec.placement | ARMED);
                    maps.set_record(leg(s), Some(&rec));
                }
            }
            let edge = flow.plan.granted[side];
            for (packet, verdict) in [
                (flow.later(side, 5, 10, 1), "drop_ack"),
                (flow.later(side, 5, 10, 1 << 31), "drop_ack"),
                (flow.later(side, edge + 1, 10, 0), "drop_window"),
                (flow.later(side, 5, 10, 0), "drop_tsecr"),
            ] {
                is_dropped(&flow, side, &packet, verdict);
            }
            let mut events = flow.plane.events().expect("the ring");
            assert!(events.take().expect("the ring").is_empty());
        }
    }
}
