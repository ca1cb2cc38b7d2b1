//! Segments behind the forwarded part, on their way to the local socket.

use longsplice_dataplane::{Context, Hook, Mode, Side};

use super::{SENT, awake, start};
use crate::support::{
    flow::{Flow, OK, Plan, SHOT},
    options::{usual, usual_with_sack},
    packet::*,
    woken::{Behind, Past, with_sack, without_sack},
};

/// Returns a woken flow; both ends have acknowledged all forwarded bytes.
fn settled() -> Flow {
    Flow::woken(Plan::default(), Past::all_acknowledged(SENT))
}

#[track_caller]
fn delivers(flow: &Flow, side: Side, packet: &Packet, seen: &Packet) {
    let expected = Behind::of(side, SENT).to_socket(seen);
    flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &expected.bytes()));
}

#[test]
fn it_is_delivered_in_the_numbers_of_the_socket() {
    for side in Side::BOTH {
        let (sent, far) = (SENT[side], SENT[side.other()]);
        let flow = settled();
        assert_eq!(
            flow.egress(side, &flow.local_later(side, 0, 300, 0).bytes())
                .verdict,
            OK
        );
        for (offset, len, flags) in [
            (0, 0, ACK),
            (0, 100, ACK | PSH),
            (100, 1, ACK),
            (5000, 1400, ACK | ECE),
            (101, 0, ACK | FIN),
            (0, 9, PSH | ACK),
        ] {
            for options in [
                vec![],
                usual(0x3000_0000, 0),
                usual_with_sack(
                    0x3000_0000,
                    9,
                    &[(flow.plan.local[side].wrapping_add(far + 10), 77)],
                ),
            ] {
                let packet = Packet {
                    flags,
                    options,
                    urgent: 3,
                    ..flow.later(side, sent + offset, len, far + 20)
                };
                delivers(&flow, side, &packet, &packet);
            }
        }
        assert_eq!(flow.slot().mode(), Mode::Undrain);
        assert_eq!(
            flow.raw_leg(side).cut,
            start(&flow, side) + sent + 6400,
            "the highest end"
        );
    }
}

#[test]
fn what_is_not_acknowledged_of_the_forwarded_part_is_none_of_its_business() {
    // All before the socket's own stream is shown as acknowledged; the window's edge stays at x's value.
    for side in Side::BOTH {
        let (sent, all) = (SENT[side], SENT[side.other()]);
        let scale = flow_scale(side);
        for (acked, window) in [(0, 500), (all - 1, 500), (all, 500), (0, 2), (0, 0), (10, 65_535)] {
            let flow = awake();
            let packet = Packet {
                window,
                ..flow.timed(side, 1, flow.later(side, sent, 40, acked))
            };
            let left = ((u32::from(window) << scale) + acked).saturating_sub(all) >> scale;
            let seen = Packet {
                ack: flow.plan.local[side] + all,
                window: left as u16,
                ..packet.clone()
            };
            delivers(&flow, side, &packet, &seen);
            assert_eq!(flow.raw_leg(side).loc_acked, seen.ack);
        }
    }
}

fn flow_scale(side: Side) -> u8 {
    Plan::default().scale_in[side]
}

#[test]
fn selective_acknowledgements_are_clipped_to_its_own_stream() {
    for side in Side::BOTH {
        let (sent, all) = (SENT[side], SENT[side.other()]);
        let local = Plan::default().local[side];
        for (from, to, seen) in [
            (10, 20, (all, all)),
            (10, all + 20, (all, all + 20)),
            (all + 5, all + 20, (all + 5, all + 20)),
            (all + 5, all + 900, (all + 5, all + 300)),
        ] {
            let flow = awake();
            assert_eq!(
                flow.egress(side, &flow.local_later(side, 0, 300, 0).bytes())
                    .verdict,
                OK
            );
            let block = (local + from, local + to);
            let packet = Packet {
                options: usual_with_sack(flow.plan.clock[side], 1, &[block]),
                ..flow.later(side, sent, 40, 0)
            };
            let scale = flow_scale(side);
            let lifted = Packet {
                ack: local + all,
                window: (((500 << scale) - all) >> scale) as u16,
                options: with_sack(&packet.options, |_, _| (local + seen.0, local + seen.1)),
                ..packet.clone()
            };
            delivers(&flow, side, &packet, &lifted);
        }
        // A socket that has sent nothing gets no selective acknowledgement.
        let flow = awake();
        let packet = Packet {
            options: usual_with_sack(flow.plan.clock[side], 1, &[(local + 10, local + 20)]),
            ..flow.later(side, sent, 40, 0)
        };
        let scale = flow_scale(side);
        let lifted = Packet {
            ack: local + all,
            window: (((500 << scale) - all) >> scale) as u16,
            options: without_sack(&packet.options),
            ..packet.clone()
        };
        delivers(&flow, side, &packet, &lifted);
    }
}

#[test]
fn without_acknowledgement_it_is_nobodys() {
    for side in Side::BOTH {
        let flow = awake();
        let before = format!("{:?}", flow.raw());
        let packet = Packet {
            flags: PSH,
            ack: 0x1234_5678,
            ..flow.later(side, SENT[side], 40, 0)
        };
        flow.ingress_gives(side, &packet.bytes(), (SHOT, "consumed", &packet.bytes()));
        assert_eq!(format!("{:?}", flow.raw()), before, "nothing was learnt");
    }
}

#[test]
fn what_is_out_of_the_window_or_acknowledges_the_unsent_is_the_sockets_to_refuse() {
    for side in Side::BOTH {
        let (sent, all) = (SENT[side], SENT[side.other()]);
        let flow = awake();
        let before = format!("{:?}", flow.raw());
        let edge = {
            let leg = flow.raw_leg(side);
            let edge = if (leg.loc_edge.wrapping_sub(leg.tx_edge) as i32) > 0 {
                leg.loc_edge
            } else {
                leg.tx_edge
            };
            edge.wrapping_sub(start(&flow, side))
        };
        let beyond = flow.later(side, edge + 2, 2, 0);
        // It may fit when the socket looks at it: cut off its payload.
        let bare = Packet {
            payload: vec![],
            flags: ACK,
            ..beyond.clone()
        };
        delivers(&flow, side, &beyond, &bare);
        let unsent = flow.later(side, sent, 10, all + 1);
        delivers(&flow, side, &unsent, &unsent);
        assert_eq!(format!("{:?}", flow.raw()), before, "nothing was learnt");
    }
}

#[test]
fn a_syn_is_the_sockets_to_challenge() {
    for side in Side::BOTH {
        let flow = awake();
        for flags in [SYN, SYN | ACK] {
            let packet = Packet {
                flags,
                ..flow.later(side, 5, 0, 0)
            };
            delivers(&flow, side, &packet, &packet);
        }
    }
}

#[test]
fn what_is_no_whole_segment_cannot_be_mapped() {
    for side in Side::BOTH {
        let flow = awake();
        let packet = flow.later(side, SENT[side], 40, 0);
        let fragment = packet.fragment_at(0, true).bytes();
        flow.ingress_gives(side, &fragment, (SHOT, "drop_fragment", &fragment));
        let malformed = packet.with_data_offset(1);
        flow.ingress_gives(side, &malformed, (SHOT, "drop_malformed", &malformed));
    }
}

#[test]
fn a_super_packet_is_delivered_whole_and_a_sum_is_kept() {
    let side = Side::Client;
    for (len, context) in [
        (
            2900,
            Context {
                gso_size: 500,
                gso_segs: 6,
                ..Context::default()
            },
        ),
        (
            777,
            Context {
                summed: true,
                ..Context::default()
            },
        ),
    ] {
        let flow = awake();
        let packet = flow.timed(side, 1, flow.later(side, SENT[0], len, SENT[1]));
        let context = Context {
            ifindex: flow.ifindex(side),
            ..context
        };
        let ran = flow
            .plane
            .run_in(Hook::Ingress, &packet.bytes(), context, 1)
            .expect("the sum is right");
        assert_eq!(ran.verdict, OK);
        assert_frame(
            &ran.packet,
            &Behind::of(side, SENT).to_socket(&packet).bytes(),
            "delivered",
        );
    }
}
