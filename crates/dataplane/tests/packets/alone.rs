//! Legs that belong to no flow any more, but whose sockets' numbers have an offset from those on the wire.

use longsplice_dataplane::{Alone, Leg, LegStart, Mapping, Mode, PerSide, Side};

use crate::support::{
    flow::{Flow, OK, Plan, SHOT, leg, legs},
    options::{Opt, usual, usual_with_sack, write},
    packet::*,
    woken::Past,
};

/// Returns a parted flow: both legs are alone.
fn parted(plan: Plan) -> Flow {
    let mut flow = Flow::track(plan);
    flow.plane.part(flow.slot(), legs());
    flow.slot = None;
    flow
}

#[test]
fn a_peers_segment_is_delivered_in_the_sockets_numbers() {
    let flow = parted(Plan::mapped());
    for side in Side::BOTH {
        let block = (flow.plan.local[side].wrapping_add(5), 9);
        for flags in [
            0,
            ACK,
            ACK | PSH,
            FIN | ACK,
            RST,
            RST | ACK,
            SYN,
            SYN | ACK,
            ACK | ECE | CWR,
        ] {
            for options in [
                vec![],
                usual(1, 2),
                usual_with_sack(1, 0, &[block, block]),
                write(&[Opt::Sack(vec![block; 4])]),
                write(&[
                    Opt::Timestamps(1, 2),
                    Opt::Other(9, vec![5, 10]),
                    Opt::Sack(vec![block]),
                ]),
            ] {
                // Delivered at any sequence number: no program checks it here.
                for offset in [0, 1 << 30, 1 << 31] {
                    let packet = Packet {
                        flags,
                        options: options.clone(),
                        urgent: 7,
                        ..flow.later(side, offset, 33, offset)
                    };
                    let expected = flow.behind(side).to_socket(&packet);
                    flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &expected.bytes()));
                }
            }
        }
    }
}

#[test]
fn what_the_socket_sends_is_seen_in_the_numbers_of_the_wire() {
    let flow = parted(Plan::mapped());
    for side in Side::BOTH {
        let peer = flow.plan.peer[side];
        let high = flow.reference(side.other()).ts_high;
        for flags in [ACK, ACK | PSH, ACK | FIN, RST | ACK, RST, SYN] {
            for options in [
                vec![],
                usual(high, 2),
                usual_with_sack(high, 0, &[(peer.wrapping_add(3), 9)]),
            ] {
                let seen = Packet {
                    flags,
                    options,
                    ack: if flags & ACK == 0 { 0 } else { peer },
                    payload: pattern(21),
                    ..flow.local_segment(side)
                };
                let emitted = flow.behind(side).by_socket(&seen);
                flow.egress_gives(side, &emitted.bytes(), (OK, "emitted", &seen.bytes()));
            }
        }
    }
}

#[test]
fn a_timestamp_never_goes_back() {
    for plan in [Plan::mapped(), Plan::default()] {
        let flow = parted(plan);
        for side in Side::BOTH {
            let high = flow.reference(side.other()).ts_high;
            let rows = [
                (high - 1, high),
                (high, high),
                (high + 7, high + 7),
                (high + 6, high + 7),
            ];
            for (value, shown) in rows {
                let seen = Packet {
                    options: usual(shown, 2),
                    ..flow.local_segment(side)
                };
                let emitted = Packet {
                    options: usual(value, 2),
                    ..flow.behind(side).by_socket(&seen)
                };
                flow.egress_gives(side, &emitted.bytes(), (OK, "emitted", &seen.bytes()));
            }
            let Alone {
                mapping,
                sent: ts_high,
                ..
            } = flow.plane.alone(leg(side)).expect("it is alone");
            assert_eq!((mapping, ts_high), (flow.plan.mapping[side], high + 7));
        }
    }
}

#[test]
fn what_cannot_be_mapped_is_dropped_by_name() {
    let flow = parted(Plan::mapped());
    for side in Side::BOTH {
        let packet = flow.later(side, 0, 40, 0);
        let fragment = packet.fragment_at(0, true).bytes();
        flow.ingress_gives(side, &fragment, (SHOT, "drop_fragment", &fragment));
        let malformed = packet.with_data_offset(1);
        flow.ingress_gives(side, &malformed, (SHOT, "drop_malformed", &malformed));
    }
}

#[test]
fn they_are_no_flows() {
    let flow = parted(Plan::mapped());
    let mut alone = flow.plane.legs_alone().expect("a scan");
    alone.sort_by_key(|l: &Leg| l.peer);
    assert_eq!(alone, <[Leg; 2]>::from(legs()));
    assert_eq!(flow.plane.flow_count(), 0);
    flow.plane.scan(|d| panic!("{d:?}")).expect("a scan");
    for side in Side::BOTH {
        assert!(flow.plane.in_use(leg(side)), "the port is taken");
        assert!(flow.plane.direction(leg(side)).is_none());
        // The record goes when the connection is over.
        flow.plane.remove_alone(leg(side));
        flow.ignores(side, &flow.peer_segment(side).bytes());
        assert!(flow.plane.alone(leg(side)).is_none());
    }
}

#[test]
fn a_leg_that_counts_as_the_wire_does_and_has_no_timestamps_leaves_nothing() {
    let mut flow = Flow::track(Plan::default());
    flow.plane.end(legs());
    let slot = flow.plane.take_slot().expect("a free slot");
    let plan = Plan {
        mapping: [Mapping::default(), Plan::mapped().mapping[1]],
        ..Plan::default()
    };
    flow.plane
        .register(&slot, flow.plane.next_serial(), false, &plan.starts())
        .expect("the flow is new");
    flow.plane.part(&slot, legs());
    flow.slot = None;
    assert!(!flow.plane.in_use(leg(Side::Client)));
    let Alone { mapping, .. } = flow.plane.alone(leg(Side::Server)).expect("it is alone");
    assert_eq!(mapping, plan.mapping[1]);
}

/// Returns the legs of a plan, which stand alone in the table.
fn alone(plan: &Plan) -> PerSide<LegStart> {
    plan.starts().map(|start| LegStart { alone: true, ..start })
}

#[test]
fn they_become_a_flow_again_and_part_again() {
    let mut flow = Flow::woken(Plan::default(), Past::all_acknowledged([1000, 70]));
    assert!(flow.slot().resolve());
    // Part them, and join them in another slot, any number of times.
    let mut plan = Plan {
        peer: [flow.plan.peer[0] + 1000, flow.plan.peer[1] + 70],
        local: [flow.plan.local[0] + 70, flow.plan.local[1] + 1000],
        ..flow.plan.clone()
    };
    for _ in 0..3 {
        plan.mapping = Side::BOTH.map(|side| flow.slot().mapping(side));
        flow.plane.part(flow.slot(), legs());
        flow.slot = None;
        flow.plan = plan.clone();
        for side in Side::BOTH {
            let packet = flow.later(side, 0, 10, 0);
            let expected = flow.behind(side).to_socket(&packet);
            flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &expected.bytes()));
        }
        let slot = flow.plane.take_slot().expect("a free slot");
        flow.plane
            .register(&slot, flow.plane.next_serial(), true, &alone(&plan))
            .expect("they may");
        assert_eq!(flow.plane.flow_count(), 1);
        assert!(flow.plane.legs_alone().expect("a scan").is_empty());
        flow.slot = Some(slot);
        for side in Side::BOTH {
            assert_eq!(flow.slot().mapping(side), plan.mapping[side]);
            let packet = flow.later(side, 0, 10, 0);
            let expected = flow.behind(side).to_socket(&packet);
            flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &expected.bytes()));
        }
        // Spliced and awake once more: the mapping grows.
        flow.transition(Mode::Track, Mode::Drain);
        flow.finish();
        flow.pass(Past::all_acknowledged([10, 3]));
        for side in Side::BOTH {
            // Ten bytes were delivered to the sockets above; the rest bypassed them.
            assert_eq!(flow.raw_leg(side).cut, plan.peer[side] + 10);
        }
        flow.pass(Past {
            sent: [30, 10],
            acked: [10, 30],
            ..Past::default()
        });
        flow.wake();
        assert!(flow.slot().resolve());
        let grown = |i: usize, by: [u32; 2]| Mapping {
            seq: plan.mapping[i].seq.removed(by[0]),
            ack: plan.mapping[i].ack.removed(by[1]),
        };
        assert_eq!(flow.slot().mapping(Side::Client), grown(0, [20, 0]));
        assert_eq!(flow.slot().mapping(Side::Server), grown(1, [0, 20]));
        plan.peer[0] += 30;
        plan.local[1] += 30;
        plan.peer[1] += 10;
        plan.local[0] += 10;
    }
}

#[test]
fn a_registration_that_fails_leaves_a_leg_alone() {
    let flow = parted(Plan::mapped());
    // The server's tuple belongs to another leg that is not alone.
    let slot = flow.plane.take_slot().expect("a free slot");
    let mut starts = alone(&flow.plan);
    starts.server.alone = false;
    let error = flow
        .plane
        .register(&slot, 77, true, &starts)
        .expect_err("it is taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    let Alone {
        mapping,
        sent: ts_high,
        ..
    } = flow.plane.alone(leg(Side::Client)).expect("it is alone still");
    assert_eq!(mapping, flow.plan.mapping[0]);
    assert_eq!(ts_high, flow.reference(Side::Server).ts_high);
}
