//! FINAL: payload that meets a trap brings control back, on the very segment; everything else passes.

use longsplice_dataplane::{Context, EventKind, Hook, Mode, Seq, Side};

use crate::support::{
    flow::{Flow, OK, Plan, SHOT},
    options::{usual, usual_with_sack},
    packet::*,
    woken::{Behind, Past},
};

/// Bytes that each peer sent past the sockets before.
const SENT: [u32; 2] = [700, 90];

/// Returns a dormant flow; all forwarded bytes are acknowledged. Payload of the side that reaches `trap` bytes beyond its
/// start is trapped.
fn armed(side: Side, trap: u32) -> Flow {
    let flow = Flow::dormant(Plan::default());
    flow.pass(Past::all_acknowledged(SENT));
    flow.slot()
        .set_trap(side, Some(Seq::new(flow.plan.peer[side]) + trap));
    flow
}

fn wakeable(side: Side, trap: u32) -> Flow {
    let flow = armed(side, trap);
    flow.slot().set_wakeable(true);
    flow
}

/// Returns the next payload of a side, with an acknowledgement of everything.
fn next(flow: &Flow, side: Side, len: u32) -> Packet {
    flow.timed(side, 5, flow.later(side, SENT[side], len, SENT[side.other()]))
}

#[test]
fn payload_past_a_trap_wakes_the_pair_and_is_delivered() {
    for side in Side::BOTH {
        for (flags, options) in [
            (ACK | PSH, vec![]),
            (ACK, usual(0x4000_0000, 1)),
            (ACK | FIN, usual_with_sack(0x4000_0000, 0, &[(5, 6), (7, 8)])),
            (ACK | PSH | ECE, usual_with_sack(1, 2, &[(5, u32::MAX)])),
        ] {
            let flow = wakeable(side, SENT[side] + 1);
            let packet = Packet {
                flags,
                options,
                urgent: 9,
                ..next(&flow, side, 100)
            };
            let expected = Behind::of(side, SENT).to_socket(&packet);
            assert_eq!(expected.seq, flow.plan.peer[side], "where the socket stopped");
            assert_eq!(expected.ack, flow.plan.local[side]);
            flow.ingress_gives(side, &packet.bytes(), (OK, "woken delivered", &expected.bytes()));
            assert_eq!(flow.slot().mode(), Mode::Undrain);
            // It does not wake the pair twice.
            flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &expected.bytes()));
        }
    }
}

#[test]
fn a_budget_ends_with_the_segment_that_reaches_it() {
    for side in Side::BOTH {
        let start = SENT[side];
        for (trap, len, trapped) in [
            (100, 99, false),
            (100, 100, true),
            (100, 101, true),
            (1, 1, true),
            (2, 1, false),
        ] {
            let flow = wakeable(side, start + trap);
            let packet = next(&flow, side, len);
            if !trapped {
                flow.forwards(side, &packet, &mut flow.reference(side));
                assert_eq!(flow.slot().mode(), Mode::Final);
                // The next byte reaches it.
                let last = flow.later(side, start + len, 1, SENT[side.other()]);
                let sent = {
                    let mut all = SENT;
                    all[side] += len;
                    all
                };
                // The far end has not acknowledged the forwarded ones, which is its own affair.
                let expected = Behind::of(side, sent).to_socket(&last);
                flow.ingress_gives(side, &last.bytes(), (OK, "woken delivered", &expected.bytes()));
                continue;
            }
            let expected = Behind::of(side, SENT).to_socket(&packet);
            flow.ingress_gives(side, &packet.bytes(), (OK, "woken delivered", &expected.bytes()));
        }
    }
}

#[test]
fn what_brings_no_new_payload_passes_a_trap() {
    for make in [armed, wakeable] {
        for side in Side::BOTH {
            let (sent, far) = (SENT[side], SENT[side.other()]);
            let flow = make(side, sent + 1);
            let mut reference = flow.reference(side);
            let rows = [
                // Retransmissions, whole and in part, up to the trap.
                flow.later(side, 0, sent, far),
                flow.later(side, sent - 1, 1, far),
                flow.later(side, 5, 20, 0),
                // Acknowledgements, probes of a window, keep-alives.
                flow.later(side, sent, 0, far),
                flow.later(side, sent - 1, 0, far),
                // An end: there is nothing to read in it.
                Packet {
                    flags: ACK | FIN,
                    ..flow.later(side, sent, 0, far)
                },
                Packet {
                    flags: RST | ACK,
                    ..flow.later(side, sent, 0, far)
                },
            ];
            for packet in rows {
                flow.forwards(side, &packet, &mut reference);
            }
            assert_eq!(flow.slot().mode(), Mode::Final);
        }
    }
}

#[test]
fn the_other_direction_passes_a_trap() {
    for side in Side::BOTH {
        let flow = wakeable(side, 0);
        let far = side.other();
        let packet = next(&flow, far, 100);
        flow.forwards(far, &packet, &mut flow.reference(far));
        assert_eq!(flow.slot().mode(), Mode::Final);
    }
}

#[test]
fn a_trap_that_was_disarmed_traps_nothing() {
    for side in Side::BOTH {
        let flow = wakeable(side, 0);
        flow.slot().set_trap(side, None);
        flow.forwards(side, &next(&flow, side, 100), &mut flow.reference(side));
    }
}

#[test]
fn a_trap_at_the_wrap_of_the_sequence_numbers() {
    let plan = Plan {
        peer: [u32::MAX - 9, 0x7fff_fff0],
        local: [u32::MAX - 4, 3],
        ..Plan::default()
    };
    for side in Side::BOTH {
        for (trap, len) in [(10, 9), (10, 10), (20, 20), (20, 19), (30, 50)] {
            let flow = Flow::dormant(plan.clone());
            flow.slot().set_trap(side, Some(Seq::new(plan.peer[side]) + trap));
            flow.slot().set_wakeable(true);
            let packet = flow.later(side, 0, len, 0);
            if len < trap {
                flow.forwards(side, &packet, &mut flow.reference(side));
            } else {
                // Nothing was forwarded: the sockets have the numbers of the wire.
                flow.ingress_gives(side, &packet.bytes(), (OK, "woken delivered", &packet.bytes()));
            }
        }
    }
}

#[test]
fn a_super_packet_past_a_trap_is_delivered_whole() {
    let side = Side::Client;
    let flow = wakeable(side, SENT[0] + 2500);
    let packet = next(&flow, side, 2900);
    let context = Context {
        ifindex: flow.ifindex(side),
        gso_size: 500,
        gso_segs: 6,
        ..Context::default()
    };
    let ran = flow
        .plane
        .run_in(Hook::Ingress, &packet.bytes(), context, 1)
        .expect("it runs");
    assert_eq!(ran.verdict, OK);
    assert_frame(
        &ran.packet,
        &Behind::of(side, SENT).to_socket(&packet).bytes(),
        "a super-packet",
    );
}

#[test]
fn a_segment_that_the_device_summed_up_is_delivered_with_its_sum() {
    for side in Side::BOTH {
        for len in [1, 2, 99, 1000] {
            let flow = wakeable(side, SENT[side] + 1);
            let packet = next(&flow, side, len);
            let context = Context {
                ifindex: flow.ifindex(side),
                summed: true,
                ..Context::default()
            };
            let ran = flow.plane.run_in(Hook::Ingress, &packet.bytes(), context, 1);
            let ran = ran.expect("the device's sum is still right");
            assert_eq!(ran.verdict, OK);
            assert_frame(
                &ran.packet,
                &Behind::of(side, SENT).to_socket(&packet).bytes(),
                "summed up",
            );
        }
    }
}

/// Such a socket takes what comes next for old. A daemon that was stopped leaves sockets so far behind.
#[test]
fn a_socket_that_either_stream_left_2_gib_behind_is_not_woken() {
    for (side, lost) in [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(a, b)| (Side::BOTH[a], Side::BOTH[b])) {
        for (bytes, woken) in [((1 << 31) - 5000, true), (1 << 31, false), (3 << 30, false)] {
            let flow = wakeable(side, SENT[side] + 1);
            flow.edit(|slot| {
                let leg = &mut slot.leg[lost as usize];
                for number in [&mut leg.cut, &mut leg.delivered, &mut leg.loc_edge] {
                    *number = number.wrapping_sub(bytes);
                }
            });
            let frame = next(&flow, side, 100).bytes();
            let ran = flow.ingress(side, &frame);
            let mode = if woken { Mode::Undrain } else { Mode::Final };
            assert_eq!(flow.slot().mode(), mode, "{side:?} {lost:?} {bytes}");
            if !woken {
                assert_eq!(ran.verdict, SHOT);
                assert_frame(&ran.packet, &frame, "held");
            }
        }
    }
}

#[test]
fn while_no_socket_can_go_on_it_is_held() {
    // Dormant, but not to be woken; and detached: there is no socket.
    for detached in [false, true] {
        for side in Side::BOTH {
            let mut flow = armed(side, SENT[side] + 1);
            let serial = flow.slot().serial();
            if detached {
                flow.detach();
            }
            let mut events = flow.plane.events().expect("the ring");
            for len in [1, 300, 1448, 2500] {
                let mut packet = next(&flow, side, len);
                // A short frame may be padded: that is no payload.
                packet.padding = vec![0xa5; 3];
                let frame = packet.bytes();
                flow.ingress_gives(side, &frame, (SHOT, "queued", &frame));
                let found = events.take().expect("the ring");
                assert_eq!(found.len(), 1);
                let event = &found[0];
                assert_eq!(
                    (event.kind, event.serial, event.side),
                    (EventKind::Held, serial, side)
                );
                assert_eq!((event.ifindex, event.seq.raw()), (flow.ifindex(side), packet.seq));
                assert_frame(&event.packet, &frame, "queued");
                assert_eq!(event.packet[event.payload.clone()], packet.payload);
            }
            // Nothing was learned from it: it will come again.
            let d = flow
                .plane
                .direction(crate::support::flow::leg(side))
                .expect("the flow");
            assert_eq!(d.slot.is_none(), detached);
            if detached {
                assert_eq!(d.end, packet_start(&flow, side));
            } else {
                assert_eq!(
                    flow.plane.leg(flow.slot(), side).rx_end,
                    packet_start(&flow, side)
                );
            }
            // Other segments pass.
            let old = flow.later(side, 0, SENT[side], SENT[side.other()]);
            flow.forwards(side, &old, &mut flow.reference(side));
        }
    }
}

fn packet_start(flow: &Flow, side: Side) -> Seq {
    Seq::new(flow.plan.peer[side]) + SENT[side]
}

#[test]
fn what_user_space_does_not_fetch_is_dropped_by_name() {
    let side = Side::Client;
    let flow = armed(side, 0);
    let frame = next(&flow, side, 2500).bytes();
    let context = Context {
        ifindex: flow.ifindex(side),
        ..Context::default()
    };
    let (_, counted) = flow.counted(|| flow.plane.run_in(Hook::Ingress, &frame, context, 200));
    // The ring is of 8 MB, and a long packet takes 64 kB of it.
    assert_eq!((counted["queued"], counted["drop_ring_full"]), (127, 73));
    flow.ingress_gives(side, &frame, (SHOT, "drop_ring_full", &frame));
    let mut events = flow.plane.events().expect("the ring");
    let found = events.take().expect("the ring");
    assert_eq!(found.len(), 127);
    assert!(found.iter().all(|e| e.packet == frame));
    flow.ingress_gives(side, &frame, (SHOT, "queued", &frame));
}

#[test]
fn what_a_stranger_sends_is_not_copied() {
    // A copy of it would come into a socket's send queue, and from there to the far end.
    for side in Side::BOTH {
        let flow = Flow::dormant(Plan::default());
        let mut reference = flow.reference(side);
        flow.forwards(side, &flow.later(side, 0, 300, 0), &mut reference);
        flow.slot().set_copying(true);
        let mut events = flow.plane.events().expect("the ring");
        // It has the number of the end's own segment, with an acknowledgement that no TCP takes.
        let forged = flow.later(side, 0, 300, 1 << 30).bytes();
        flow.ingress_gives(side, &forged, (SHOT, "drop_ack", &forged));
        assert!(events.take().expect("the ring").is_empty());
        flow.forwards(side, &flow.later(side, 0, 300, 0), &mut reference);
        assert_eq!(events.take().expect("the ring").len(), 1);
    }
}

#[test]
fn user_space_gets_copies_of_the_payload_that_passes() {
    for side in Side::BOTH {
        let flow = Flow::dormant(Plan::default());
        flow.slot().set_copying(true);
        let mut events = flow.plane.events().expect("the ring");
        let mut reference = flow.reference(side);
        for len in [10, 0, 1400] {
            let packet = flow.timed(side, len, flow.later(side, 0, len, 0));
            flow.forwards(side, &packet, &mut reference);
            let found = events.take().expect("the ring");
            let expected: Vec<_> = [packet.bytes()].into_iter().filter(|_| len > 0).collect();
            assert_eq!(
                found.iter().map(|e| e.packet.clone()).collect::<Vec<_>>(),
                expected
            );
            for event in found {
                assert_eq!(
                    (event.kind, event.side, event.seq.raw()),
                    (EventKind::Copy, side, packet.seq)
                );
                assert_eq!(event.packet[event.payload.clone()], packet.payload);
            }
        }
        flow.slot().set_copying(false);
        flow.forwards(side, &flow.later(side, 0, 10, 0), &mut reference);
        assert!(events.take().expect("the ring").is_empty());
    }
}
