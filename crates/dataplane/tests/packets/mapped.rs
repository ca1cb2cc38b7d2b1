//! TRACK with sockets whose numbers have an offset: segments are rewritten in the numbers of their receiver, and noted in
//! those of the wire.

use longsplice_dataplane::{Context, Hook, Mapping, Offset, Side};

use crate::support::{
    flow::{Flow, OK, Plan, SHOT},
    options::{Opt, usual, usual_with_sack, write},
    packet::*,
    raw::types::ls_leg,
};

fn mappings() -> Vec<[Mapping; 2]> {
    let map = |seq, ack| Mapping {
        seq: Offset::new(seq),
        ack: Offset::new(ack),
    };
    vec![
        Plan::mapped().mapping,
        // The offset is in one stream only.
        [map(1, 0), map(0, 1)],
        [map(0, u32::MAX), map(u32::MAX, 0)],
        [map(1 << 31, 1 << 31), map((1 << 31) - 1, 77)],
    ]
}

fn with(mapping: [Mapping; 2]) -> Plan {
    Plan {
        mapping,
        ..Plan::default()
    }
}

/// Returns a leg without its mapping.
fn on_the_wire(leg: ls_leg) -> String {
    format!(
        "{:?}",
        ls_leg {
            adj_seq: 0,
            adj_ack: 0,
            ..leg
        }
    )
}

fn options(flow: &Flow, side: Side) -> Vec<Vec<u8>> {
    let clock = flow.plan.clock[side];
    let local = flow.plan.local[side];
    let block = (local.wrapping_add(5), local.wrapping_add(9));
    vec![
        vec![],
        usual(clock, 3),
        usual_with_sack(clock, 3, &[block, (7, u32::MAX)]),
        write(&[Opt::Sack(vec![block]), Opt::Timestamps(clock, 0)]),
        write(&[Opt::Other(30, vec![1, 2, 3]), Opt::Sack(vec![block; 3])]),
    ]
}

#[test]
fn a_peers_segment_is_delivered_in_the_sockets_numbers_and_noted_in_the_wires() {
    let mut flow = Flow::track(Plan::default());
    let mut plain = Flow::track(Plan::default());
    for mapping in mappings() {
        flow.again(with(mapping));
        plain.again(Plan::default());
        for side in Side::BOTH {
            for (at, flags) in [ACK, ACK | PSH, ACK | FIN, PSH, RST, RST | ACK, 0]
                .into_iter()
                .enumerate()
            {
                for options in options(&flow, side) {
                    let packet = Packet {
                        flags,
                        options,
                        urgent: 1,
                        ..flow.later(side, at as u32 * 100, 100, 0)
                    };
                    let expected = flow.behind(side).to_socket(&packet);
                    flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &expected.bytes()));
                    plain.ingress(side, &packet.bytes());
                }
            }
            let (mapped, direct) = (flow.raw_leg(side), plain.raw_leg(side));
            assert_eq!(
                Mapping {
                    seq: Offset::new(mapped.adj_seq),
                    ack: Offset::new(mapped.adj_ack)
                },
                mapping[side]
            );
            let same = |mut leg: ls_leg| {
                (leg.rec.serial, leg.rec.r#where, leg.rec.last_seen) = (0, 0, 0);
                on_the_wire(leg)
            };
            assert_eq!(same(mapped), same(direct), "as if it counted as the wire does");
        }
    }
}

#[test]
fn what_a_socket_sends_is_seen_in_the_numbers_of_the_wire() {
    let mut flow = Flow::track(Plan::default());
    for mapping in mappings() {
        flow.again(with(mapping));
        for side in Side::BOTH {
            let high = flow.reference(side.other()).ts_high;
            let peer = flow.plan.peer[side];
            for flags in [ACK, ACK | PSH, ACK | FIN, RST | ACK, RST] {
                for options in [
                    vec![],
                    usual(high, 9),
                    usual_with_sack(high, 9, &[(peer.wrapping_add(5), peer.wrapping_add(9))]),
                ] {
                    // A reset without acknowledgement has no number in its field, and keeps it.
                    let seen = Packet {
                        flags,
                        options,
                        ack: if flags & ACK == 0 { 0 } else { peer },
                        payload: pattern(40),
                        ..flow.local_segment(side)
                    };
                    let emitted = flow.behind(side).by_socket(&seen);
                    flow.egress_gives(side, &emitted.bytes(), (OK, "clamped", &seen.bytes()));
                }
            }
            let leg = flow.raw_leg(side);
            assert_eq!(
                (leg.loc_end, leg.loc_ack),
                (flow.plan.local[side] + 41, peer),
                "{mapping:?}"
            );
        }
    }
}

#[test]
fn a_coupled_window_is_that_of_the_wire() {
    let flow = Flow::track(Plan {
        granted: [10_000; 2],
        ..Plan::mapped()
    });
    flow.slot().set_coupling(true);
    for side in Side::BOTH {
        let seen = Packet {
            window: (10_000 >> flow.plan.scale_out[side.other()]) as u16,
            ..flow.local_segment(side)
        };
        let emitted = Packet {
            window: 65_535,
            ..flow.behind(side).by_socket(&seen)
        };
        flow.egress_gives(side, &emitted.bytes(), (OK, "clamped", &seen.bytes()));
    }
}

#[test]
fn what_cannot_be_mapped_is_dropped_by_name() {
    for side in Side::BOTH {
        let flow = Flow::track(Plan::mapped());
        let packet = flow.later(side, 0, 40, 0);
        let fragment = packet.fragment_at(0, true).bytes();
        flow.ingress_gives(side, &fragment, (SHOT, "drop_fragment", &fragment));
        let malformed = packet.with_data_offset(1);
        flow.ingress_gives(side, &malformed, (SHOT, "drop_malformed", &malformed));
    }
}

#[test]
fn super_packets_and_sums() {
    for (hook, len, context) in [
        (
            Hook::Ingress,
            2900,
            Context {
                gso_size: 500,
                gso_segs: 6,
                ..Context::default()
            },
        ),
        (
            Hook::Egress,
            2900,
            Context {
                gso_size: 500,
                gso_segs: 6,
                ..Context::default()
            },
        ),
        (
            Hook::Ingress,
            501,
            Context {
                summed: true,
                ..Context::default()
            },
        ),
        (
            Hook::Egress,
            501,
            Context {
                summed: true,
                ..Context::default()
            },
        ),
    ] {
        for side in Side::BOTH {
            let flow = Flow::track(Plan::mapped());
            let context = Context {
                ifindex: flow.ifindex(side),
                ..context
            };
            let (frame, expected) = if hook == Hook::Ingress {
                let packet = flow.timed(side, 1, flow.later(side, 0, len, 0));
                let expected = flow.behind(side).to_socket(&packet);
                (packet, expected)
            } else {
                let seen = flow.local_later(side, 0, len, 0);
                (flow.behind(side).by_socket(&seen), seen)
            };
            let ran = flow
                .plane
                .run_in(hook, &frame.bytes(), context, 1)
                .expect("the sum is right");
            assert_eq!(ran.verdict, OK);
            assert_frame(&ran.packet, &expected.bytes(), "mapped");
        }
    }
}
