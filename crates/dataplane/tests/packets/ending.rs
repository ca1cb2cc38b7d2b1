//! The end of life: the segments that close a spliced flow, and the SYNs that replace it.

use longsplice_dataplane::{Direction, Mode, Side};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, SHOT, legs},
    options::usual,
    packet::*,
};

fn direction(flow: &Flow, side: Side) -> Direction {
    if let Some(slot) = &flow.slot {
        return flow.plane.directions(slot, legs())[side];
    }
    let mut found = None;
    flow.plane
        .scan(|d| {
            if d.side == side {
                found = Some(d);
            }
        })
        .expect("a scan");
    found.expect("the record is there")
}

/// Runs a test on fresh flows: dormant and detached, from either side, with each of these values.
fn each_of<T>(values: &[T], test: impl Fn(&mut Flow, Side, &T)) {
    for make in [Flow::dormant, Flow::detached] {
        let mut flow = make(Plan::default());
        for side in Side::BOTH {
            for value in values {
                flow.again(Plan::default());
                test(&mut flow, side, value);
            }
        }
    }
}

fn each(test: impl Fn(&mut Flow, Side)) {
    each_of(&[()], |flow, side, ()| test(flow, side));
}

/// Returns a segment with these flags, at `offset` from the peer's next sequence number.
fn segment(flow: &Flow, side: Side, flags: u8, offset: u32, len: usize) -> Packet {
    let packet = Packet {
        flags,
        payload: pattern(len),
        ..flow.later(side, offset, 0, 0)
    };
    flow.timed(side, 0, packet)
}

/// Asserts that the segment is forwarded.
#[track_caller]
fn pass(flow: &Flow, side: Side, flags: u8, offset: u32, len: usize) {
    let packet = segment(flow, side, flags, offset, len);
    flow.forwards(side, &packet, &mut flow.reference(side));
}

/// Asserts that it is dropped, as it lies beyond the window that the far end offers, or did lately.
#[track_caller]
fn beyond(flow: &Flow, side: Side, flags: u8, offset: u32, len: usize) {
    let frame = segment(flow, side, flags, offset, len).bytes();
    flow.ingress_gives(side, &frame, (SHOT, "drop_window", &frame));
}

#[test]
fn a_fin_counts_where_it_can_be_in_place() {
    let window = Plan::default().granted[1];
    let rows = [
        (0, 0, true),
        (0, 100, true),
        (500, 0, true), // something before it was lost
        (window, 0, true),
        (window + 1, 0, false),
        (window - 9, 11, true), // it begins in the window
        (window + 1, 11, false),
        (1 << 30, 0, false),
        (u32::MAX - 1, 0, false), // before what is acknowledged
        (1 << 31, 0, false),
    ];
    each_of(&rows, |flow, side, &(offset, len, counts)| {
        // A repetition by an end that has not received the acknowledgement passes and is not counted.
        if counts || offset == u32::MAX - 1 {
            pass(flow, side, ACK | FIN, offset, len);
        } else {
            beyond(flow, side, ACK | FIN, offset, len);
        }
        let d = direction(flow, side);
        assert_eq!((d.fin, d.reset), (counts, false), "{offset} {len}");
        assert!(!direction(flow, side.other()).fin);
    });
}

#[test]
fn a_reset_counts_only_at_the_next_byte() {
    let window = Plan::default().granted[1];
    let rows = [
        (0, true, true),
        (1, false, true),
        (u32::MAX, false, true), // one below: the far end may take it, behind its peer's FIN
        (1000, false, true),     // challenged by the far end
        (window, false, true),
        (1 << 30, false, false),
        (u32::MAX - 1, false, false),
        (1 << 31, false, false),
    ];
    each_of(&rows, |flow, side, &(offset, counts, passes)| {
        if passes {
            pass(flow, side, RST, offset, 0);
        } else {
            beyond(flow, side, RST, offset, 0);
        }
        let d = direction(flow, side);
        assert_eq!((d.fin, d.reset), (false, counts), "{offset}");
    });
}

/// A Mac whose program was interrupted resets with the number of its FIN, and Linux accepts that once it has acknowledged the FIN.
#[test]
fn a_reset_at_an_acknowledged_fin_counts() {
    each(|flow, side| {
        pass(flow, side, ACK, 0, 300);
        pass(flow, side, ACK | FIN, 300, 0);
        let acknowledge = |bytes| {
            let ack = flow.later(side.other(), 0, 0, bytes);
            flow.forwards(side.other(), &ack, &mut flow.reference(side.other()));
        };
        acknowledge(200);
        pass(flow, side, RST, 300, 0);
        assert!(!direction(flow, side).reset, "its receiver challenges it");
        acknowledge(301);
        pass(flow, side, RST, 300, 0);
        assert!(direction(flow, side).reset);
    });
}

/// No end reads payload behind a FIN (RFC 9293 section 3.10.7.4).
#[test]
fn payload_behind_a_fin_is_dropped_and_the_flow_is_closed_without_it() {
    each(|flow, side| {
        pass(flow, side, ACK | FIN, 0, 0);
        for (offset, len) in [(0, 2), (1, 2), (100, 10)] {
            beyond(flow, side, ACK, offset, len);
        }
        pass(flow, side.other(), ACK | FIN, 0, 0);
        for s in Side::BOTH {
            acknowledge(flow, s);
        }
        let next = flow.plan.peer[side] + 64_000;
        replaces(flow, side, &syn(flow, side, next, vec![]));
    });
}

#[test]
fn a_fin_within_the_payload_does_not_count() {
    each(|flow, side| {
        pass(flow, side, ACK, 0, 300);
        pass(flow, side, ACK | FIN, 100, 0);
        assert!(!direction(flow, side).fin);
        pass(flow, side, ACK | FIN, 100, 200);
        assert!(direction(flow, side).fin);
    });
}

/// A sender that was offered more before is ahead of the window, and the far end would wait for it when it is gone.
#[test]
fn a_reset_beyond_the_window_is_moved_into_it_and_challenged_there() {
    let window = Plan::default().granted[1];
    each_of(&[window + 1, window + 2, 2 * window], |flow, side, &offset| {
        let packet = segment(flow, side, RST, offset, 0);
        let moved = segment(flow, side, RST, window - 1, 0);
        let expected = flow.reference(side).translate(&moved).bytes();
        flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected));
        assert!(!direction(flow, side).reset, "{offset}");
        // Many of them cannot keep the far end busy: one passes in a tick.
        let again = segment(flow, side, RST, offset, 0).bytes();
        assert!((0..256).any(|_| flow.ingress(side, &again).verdict == SHOT));
    });
    // The number next to what was forwarded would count.
    each(|flow, side| {
        pass(flow, side, ACK, window - 101, 100);
        let moved = segment(flow, side, RST, window - 2, 0);
        let expected = flow.reference(side).translate(&moved).bytes();
        let frame = segment(flow, side, RST, window + 9, 0).bytes();
        flow.ingress_gives(side, &frame, (REDIRECT, "forwarded", &expected));
        assert!(!direction(flow, side).reset);
    });
}

/// Linux numbers a reset by the edge of its window where that was taken back below what it had sent. The far end has more.
#[test]
fn a_reset_below_a_window_that_was_taken_back_is_moved_into_it_and_challenged_there() {
    const SENT: u32 = 1_000;
    each(|flow, side| {
        let edge = Plan::default().granted[1];
        pass(flow, side, ACK, 0, SENT as usize);
        let acks = Packet {
            window: 0,
            ..flow.timed(side.other(), 0, flow.later(side.other(), 0, 0, SENT))
        };
        flow.forwards(side.other(), &acks, &mut flow.reference(side.other()));
        // A gone socket's reset has no acknowledgement: it answers an old segment, and is answered by the next one.
        beyond(flow, side, RST, SENT - 400, 0);
        let reset = |offset: u32| Packet {
            window: 10_000,
            ..segment(flow, side, RST | ACK, offset, 0)
        };
        let (packet, moved) = (reset(SENT - 400), reset(edge - 1));
        let expected = flow.reference(side).translate(&moved).bytes();
        flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected));
        assert!(!direction(flow, side).reset);
        // Many of them cannot keep the far end busy: one passes in a tick.
        assert!((0..256).any(|_| flow.ingress(side, &packet.bytes()).verdict == SHOT));
    });
}

#[test]
fn a_reset_after_data_counts_before_and_after_them() {
    each_of(
        &[(0, true), (300, true), (150, false)],
        |flow, side, &(offset, counts)| {
            pass(flow, side, ACK, 0, 300); // not acknowledged by the far end
            pass(flow, side, RST | ACK, offset, 0);
            assert_eq!(direction(flow, side).reset, counts, "{offset}");
        },
    );
}

#[test]
fn a_forged_segment_does_not_prepare_the_way_for_a_forged_reset() {
    each(|flow, side| {
        beyond(flow, side, ACK, 1 << 30, 10);
        beyond(flow, side, RST, (1 << 30) + 10, 0);
        assert!(!direction(flow, side).reset);
        // Neither does it prepare one for the other end, by an acknowledgement of unsent bytes.
        let next = flow.peer_segment(side);
        let forged = Packet {
            seq: next.seq.wrapping_add(1 << 30),
            ack: next.ack.wrapping_add(1 << 30),
            ..next
        };
        let frame = forged.bytes();
        flow.ingress_gives(side, &frame, (SHOT, "drop_ack", &frame));
        beyond(flow, side.other(), RST, 1 << 30, 0);
        assert!(!direction(flow, side.other()).reset);
        // The real ends still close it.
        for s in Side::BOTH {
            pass(flow, s, ACK | FIN, 0, 0);
            assert!(direction(flow, s).fin);
        }
    });
}

#[test]
fn a_forged_segment_does_not_move_the_clock() {
    each(|flow, side| {
        let next = flow.peer_segment(side);
        let now = flow.plan.clock[side];
        // Repeat old bytes, or reset out of place: the segment is forwarded, and the far end discards it.
        let forge = |ahead: u32, flags| Packet {
            seq: next
                .seq
                .wrapping_add(if flags & RST != 0 { 999 } else { u32::MAX - 999 }),
            flags,
            options: usual(now.wrapping_add(ahead), 1),
            ..next.clone()
        };
        let mut reference = flow.reference(side);
        for (later, ahead) in (1..).zip([1000, 1 << 30, i32::MAX as u32, (1 << 31) + 1000]) {
            for flags in [ACK, RST, RST | ACK] {
                flow.forwards_stray(side, &forge(ahead, flags), &mut reference);
            }
            let honest = Packet {
                options: usual(now + later, 1),
                ..next.clone()
            };
            flow.forwards(side, &honest, &mut reference);
        }
    });
}

fn syn(flow: &Flow, side: Side, seq: u32, options: Vec<u8>) -> Packet {
    Packet {
        seq,
        ack: 0,
        flags: SYN,
        window: 64_240,
        options,
        ..flow.peer_segment(side)
    }
}

/// Sends a FIN of both ends.
fn finish(flow: &Flow) {
    for side in Side::BOTH {
        pass(flow, side, ACK | FIN, 0, 0);
    }
}

/// Acknowledges the other end's FIN, from this side.
#[track_caller]
fn acknowledge(flow: &Flow, side: Side) {
    let next = flow.peer_segment(side);
    let ack = Packet {
        seq: next.seq.wrapping_add(1),
        ack: next.ack.wrapping_add(1),
        ..next
    };
    flow.forwards(side, &ack, &mut flow.reference(side));
}

fn close(flow: &Flow) {
    finish(flow);
    for side in Side::BOTH {
        acknowledge(flow, side);
    }
}

#[track_caller]
fn replaces(flow: &Flow, side: Side, syn: &Packet) {
    let frame = syn.bytes();
    flow.ingress_gives(side, &frame, (OK, "syn_replaced", &frame));
    assert!(legs().iter().all(|&leg| !flow.plane.in_use(leg)));
    if let Some(slot) = &flow.slot {
        assert_eq!(slot.mode(), Mode::Replaced);
    }
    // The rest of the new connection's handshake goes up, too, and the old sockets' segments are no longer held back.
    flow.ignores(side, &flow.peer_segment(side).bytes());
    let local = flow.local_segment(side).bytes();
    flow.egress_gives(side, &local, (OK, "", &local));
}

/// Asserts that the SYN is passed to the far end as a question, or is one too many.
#[track_caller]
fn does_not_replace(flow: &Flow, side: Side, syn: &Packet) {
    let (ran, counted) = flow.counted(|| flow.ingress(side, &syn.bytes()));
    if ran.verdict == REDIRECT {
        let expected = flow.reference(side).translate_stray(syn).bytes();
        assert_frame(&ran.packet, &expected, "the question");
        assert_eq!(counted["forwarded"], 1);
    } else {
        assert_eq!((ran.verdict, counted["drop_syn"]), (SHOT, 1));
    }
    assert!(legs().iter().all(|&leg| flow.plane.in_use(leg)));
}

#[test]
fn a_syn_replaces_a_flow_that_both_ends_have_closed() {
    each(|flow, side| {
        close(flow);
        let next = flow.plan.peer[side] + 64_000;
        replaces(flow, side, &syn(flow, side, next, vec![]));
    });
}

#[test]
fn a_syn_replaces_a_flow_that_was_reset() {
    each(|flow, side| {
        pass(flow, side.other(), RST, 0, 0);
        let next = flow.plan.peer[side] + 64_000;
        replaces(flow, side, &syn(flow, side, next, vec![]));
    });
}

#[test]
fn a_syn_with_a_later_timestamp_replaces_whatever_its_sequence_number() {
    each(|flow, side| {
        close(flow);
        let (before, now) = (flow.plan.peer[side] - 64_000, flow.plan.clock[side]);
        does_not_replace(flow, side, &syn(flow, side, before, usual(now, 0)));
        replaces(flow, side, &syn(flow, side, before, usual(now + 1, 0)));
    });
}

#[test]
fn a_syn_on_a_live_flow_is_asked_at_the_far_end() {
    each(|flow, side| {
        let next = flow.plan.peer[side].wrapping_add(64_000);
        does_not_replace(flow, side, &syn(flow, side, next, vec![]));
    });
}

#[test]
fn a_flow_does_not_use_up_the_questions_of_others() {
    let mut flow = Flow::detached(Plan::default());
    let asks = |flow: &Flow| {
        let next = flow.plan.peer[0].wrapping_add(64_000);
        let frame = syn(flow, Side::Client, next, vec![]).bytes();
        flow.ingress(Side::Client, &frame).verdict == REDIRECT
    };
    let mut serial = flow.plane.next_serial();
    for _ in 0..300 {
        serial += 1;
        flow.again_as(Plan::default(), serial);
        assert!(asks(&flow), "the first one of flow {serial}");
    }
    assert!((0..256).any(|_| !asks(&flow)), "one passes in a tick");
}

#[test]
fn a_syn_on_a_half_closed_flow_is_asked_at_the_far_end() {
    each(|flow, side| {
        pass(flow, side, ACK | FIN, 0, 0);
        let next = flow.plan.peer[side].wrapping_add(64_000);
        does_not_replace(flow, side, &syn(flow, side, next, vec![]));
    });
}

#[test]
fn a_syn_is_asked_at_the_far_end_while_a_fin_is_not_acknowledged() {
    each_of(
        &[None, Some(Side::Client), Some(Side::Server)],
        |flow, side, acknowledged| {
            finish(flow);
            if let Some(s) = *acknowledged {
                acknowledge(flow, s);
            }
            let next = flow.plan.peer[side].wrapping_add(64_000);
            does_not_replace(flow, side, &syn(flow, side, next, vec![]));
            // A retransmission replaces it: the last acknowledgement has come meanwhile.
            for s in Side::BOTH {
                acknowledge(flow, s);
            }
            replaces(flow, side, &syn(flow, side, next, vec![]));
        },
    );
}

#[test]
fn an_old_duplicate_of_a_syn_replaces_nothing() {
    each(|flow, side| {
        close(flow);
        let old = flow.plan.peer[side].wrapping_sub(5000);
        does_not_replace(flow, side, &syn(flow, side, old, vec![]));
        let old = syn(flow, side, old, usual(flow.plan.clock[side] - 9, 0));
        does_not_replace(flow, side, &old);
    });
}

#[test]
fn a_syn_with_an_acknowledgement_replaces_nothing() {
    each(|flow, side| {
        close(flow);
        let next = flow.plan.peer[side].wrapping_add(64_000);
        let packet = Packet {
            flags: SYN | ACK,
            ..syn(flow, side, next, vec![])
        };
        does_not_replace(flow, side, &packet);
    });
}
