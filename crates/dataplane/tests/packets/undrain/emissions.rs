//! Emissions of the local sockets of a woken pair.

use longsplice_dataplane::{Context, Hook, Side};

use super::{SENT, awake, start};
use crate::support::{
    flow::{Flow, OK, Plan, SHOT, register},
    options::{usual, usual_with_sack},
    packet::*,
    woken::{Behind, Past, without_sack},
};

/// Returns x's view of its socket's segment: the wire's numbers, this acknowledgement and this room.
fn seen(flow: &Flow, side: Side, packet: &Packet, ack: u32, room: u32) -> Packet {
    let scale = flow.plan.scale_out[side.other()];
    Packet {
        ack,
        window: (room >> scale).min(65_535) as u16,
        ..Behind::of(side, SENT).to_wire(packet)
    }
}

/// Returns the window that x was promised when the pair woke, counted from the start of its stream.
fn promised(flow: &Flow, side: Side) -> u32 {
    flow.raw_leg(side).tx_edge.wrapping_sub(start(flow, side))
}

#[test]
fn they_say_it_in_the_numbers_of_the_wire() {
    for side in Side::BOTH {
        let flow = Flow::woken(Plan::default(), Past::all_acknowledged(SENT));
        let sent = SENT[side];
        let high = flow.reference(side.other()).ts_high;
        let scale = flow.plan.scale_out[side.other()];
        for (offset, len, flags) in [
            (0, 0, ACK),
            (0, 100, ACK | PSH),
            (100, 1400, ACK),
            (1500, 0, ACK | FIN),
        ] {
            for options in [
                vec![],
                usual(high.wrapping_add(5), 9),
                usual_with_sack(high.wrapping_add(5), 9, &[(flow.plan.peer[side] + 50, 60)]),
            ] {
                let packet = Packet {
                    flags,
                    options,
                    window: 500,
                    ..flow.local_later(side, offset, len, 0)
                };
                let edge = 500u32 << scale;
                let room = (promised(&flow, side) - sent).max(edge);
                let expected = seen(&flow, side, &packet, start(&flow, side) + sent, room);
                flow.egress_gives(side, &packet.bytes(), (OK, "clamped", &expected.bytes()));
            }
        }
        let end = flow.plan.local[side] + SENT[side.other()] + 1501;
        assert_eq!(flow.raw_leg(side).loc_end, end, "of the wire");
    }
}

#[test]
fn a_window_is_no_larger_than_the_far_ends() {
    for side in Side::BOTH {
        let flow = Flow::woken(Plan::default(), Past::all_acknowledged(SENT));
        let sent = SENT[side];
        let far = flow.raw_leg(side.other()).rec;
        let packet = Packet {
            window: 65_535,
            ..flow.local_later(side, 0, 0, 0)
        };
        let room = far
            .rx_edge
            .wrapping_sub(far.rx_ack)
            .max(promised(&flow, side) - sent);
        let expected = seen(&flow, side, &packet, start(&flow, side) + sent, room);
        flow.egress_gives(side, &packet.bytes(), (OK, "clamped", &expected.bytes()));
    }
}

#[test]
fn a_window_never_shrinks() {
    for side in Side::BOTH {
        let flow = Flow::woken(Plan::default(), Past::all_acknowledged(SENT));
        let sent = SENT[side];
        let scale = flow.plan.scale_out[side.other()];
        let mut edge = promised(&flow, side);
        for (field, more) in [(1, 0), (0, 0), (500, 0), (3, 0), (3, 20), (0, 40)] {
            if more > 0 {
                let data = flow.later(side, sent, more, SENT[side.other()]);
                assert_eq!(flow.ingress(side, &data.bytes()).verdict, OK);
            }
            let packet = Packet {
                window: field,
                ..flow.local_later(side, 0, 0, more)
            };
            edge = edge.max(sent + more + (u32::from(field) << scale));
            let expected = seen(
                &flow,
                side,
                &packet,
                start(&flow, side) + sent + more,
                edge - sent - more,
            );
            flow.egress_gives(side, &packet.bytes(), (OK, "clamped", &expected.bytes()));
            // A window that a scaled field cannot express is not promised.
        }
    }
}

#[test]
fn what_the_far_end_does_not_have_is_not_acknowledged() {
    for side in Side::BOTH {
        let far = side.other();
        let sent = SENT[side];
        let flow = awake();
        let high = flow.reference(far).ts_high;
        let data = flow.later(side, sent, 30, 0);
        assert_eq!(flow.ingress(side, &data.bytes()).verdict, OK);
        for acked in [0, 100, sent - 1, sent] {
            if acked > 0 {
                // An acknowledgement of the far end for forwarded bytes; it carries old payload of its own.
                let ack = flow.later(far, 0, 10, acked);
                assert_eq!(flow.ingress(far, &ack.bytes()).verdict, 7);
            }
            let packet = Packet {
                options: usual_with_sack(high.wrapping_add(1), 9, &[(flow.plan.peer[side] + 50, 60)]),
                ..flow.local_later(side, 0, 25, 30)
            };
            // From the far end's acknowledgement on; without SACK, which would be about bytes beyond it.
            let lowered = acked < sent;
            let ack = if lowered { acked } else { sent + 30 };
            let scale = flow.plan.scale_out[far];
            let edge = promised(&flow, side).max(sent + 30 + (500 << scale));
            let mut expected = seen(&flow, side, &packet, start(&flow, side) + ack, edge - ack);
            if lowered {
                expected.options = without_sack(&expected.options);
            }
            flow.egress_gives(side, &packet.bytes(), (OK, "clamped", &expected.bytes()));
        }
    }
}

#[test]
fn a_lowered_repetition_is_for_a_peer_with_sack_only() {
    for (sack, side) in [
        (true, Side::Client),
        (false, Side::Client),
        (true, Side::Server),
        (false, Side::Server),
    ] {
        let flow = Flow::track(Plan::default());
        flow.plane.end(crate::support::flow::legs());
        let flow = {
            let mut flow = flow;
            flow.slot = Some(register_with(&flow, sack));
            flow
        };
        flow.transition(
            longsplice_dataplane::Mode::Track,
            longsplice_dataplane::Mode::Drain,
        );
        flow.transition(
            longsplice_dataplane::Mode::Drain,
            longsplice_dataplane::Mode::Final,
        );
        flow.pass(Past::unacknowledged(SENT));
        flow.wake();
        let repeat = flow.local_later(side, 0, 0, 0);
        let (ran, counted) = flow.counted(|| flow.egress(side, &repeat.bytes()));
        if sack {
            assert_eq!((ran.verdict, counted["clamped"]), (OK, 1));
        } else {
            assert_eq!((ran.verdict, counted["consumed"]), (SHOT, 1));
            assert_frame(&ran.packet, &repeat.bytes(), "consumed");
        }
        // A segment with news passes either way: payload, a wider window, a further acknowledgement.
        let wider = Packet {
            window: 65_535,
            ..repeat.clone()
        };
        let data = flow.local_later(side, 0, 5, 0);
        for packet in [&wider, &data] {
            let (ran, counted) = flow.counted(|| flow.egress(side, &packet.bytes()));
            assert_eq!((ran.verdict, counted["clamped"]), (OK, 1), "{sack}");
        }
        let far = side.other();
        assert_eq!(
            flow.ingress(far, &flow.later(far, SENT[far], 0, 1).bytes())
                .verdict,
            OK
        );
        let (ran, counted) = flow.counted(|| flow.egress(side, &repeat.bytes()));
        assert_eq!((ran.verdict, counted["clamped"]), (OK, 1), "{sack}");
    }
}

fn register_with(flow: &Flow, sack: bool) -> longsplice_dataplane::Slot {
    if sack {
        return register(&flow.plane, &flow.plan);
    }
    let slot = flow.plane.take_slot().expect("a free slot");
    let mut starts = flow.plan.starts();
    for start in &mut starts {
        start.sack = false;
    }
    flow.plane
        .register(&slot, flow.plane.next_serial(), true, &starts)
        .expect("the flow is new");
    slot
}

#[test]
fn a_timestamp_never_goes_back() {
    for side in Side::BOTH {
        let flow = Flow::woken(Plan::default(), Past::all_acknowledged(SENT));
        let far = side.other();
        let high = flow.reference(far).ts_high;
        let with = |value: u32| Packet {
            options: usual(value, 9),
            window: 500,
            ..flow.local_later(side, 0, 10, 0)
        };
        let sent = SENT[side];
        let edge = promised(&flow, side).max(sent + (500 << flow.plan.scale_out[far]));
        for (value, shown) in [
            (high - 1, high),
            (high - 100_000, high),
            (high + 9, high + 9),
            (high + 3, high + 9),
        ] {
            let expected = Packet {
                options: usual(shown, 9),
                ..seen(&flow, side, &with(value), start(&flow, side) + sent, edge - sent)
            };
            flow.egress_gives(side, &with(value).bytes(), (OK, "clamped", &expected.bytes()));
        }
    }
}

#[test]
fn what_was_acknowledged_to_a_socket_is_not_sent_again_in_others_numbers() {
    // The socket had sent forty bytes before the splice, and has not received their acknowledgement yet.
    for side in Side::BOTH {
        let flow = awake();
        let old = flow.local_later(side, 0u32.wrapping_sub(40), 40, 0);
        flow.egress_gives(side, &old.bytes(), (SHOT, "drop_parked", &old.bytes()));
        let across = flow.local_later(side, 0u32.wrapping_sub(1), 40, 0);
        flow.egress_gives(side, &across.bytes(), (SHOT, "drop_parked", &across.bytes()));
        // A keep-alive, or a probe: it brings nothing, and is answered because it is old.
        let flow = Flow::woken(Plan::default(), Past::all_acknowledged(SENT));
        let probe = flow.local_later(side, 0u32.wrapping_sub(1), 0, 0);
        let sent = SENT[side];
        let room = promised(&flow, side).max(sent + (500 << flow.plan.scale_out[side.other()])) - sent;
        let expected = seen(&flow, side, &probe, start(&flow, side) + sent, room);
        assert_eq!(expected.seq, flow.plan.local[side] + SENT[side.other()] - 1);
        flow.egress_gives(side, &probe.bytes(), (OK, "clamped", &expected.bytes()));
    }
}

#[test]
fn a_socket_through_which_nothing_went_past_says_it_as_it_is() {
    for side in Side::BOTH {
        let flow = Flow::woken(Plan::default(), Past::default());
        let scale = flow.plan.scale_out[side.other()];
        let packet = Packet {
            window: (flow.plan.offered[side] >> scale) as u16,
            ..flow.local_later(side, 0, 10, 0)
        };
        flow.egress_gives(side, &packet.bytes(), (OK, "emitted", &packet.bytes()));
    }
}

#[test]
fn a_sum_of_the_device_is_kept() {
    for side in Side::BOTH {
        let flow = awake();
        let packet = Packet {
            options: usual_with_sack(1, 9, &[(flow.plan.peer[side] + 50, 60)]),
            ..flow.local_later(side, 0, 25, 0)
        };
        let context = Context {
            ifindex: flow.ifindex(side),
            summed: true,
            ..Context::default()
        };
        let ran = flow.plane.run_in(Hook::Egress, &packet.bytes(), context, 1);
        assert_eq!(ran.expect("the sum is still right").verdict, OK);
    }
}
