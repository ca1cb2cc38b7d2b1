//! An end whose connection is over while the other one still lacks something: it may be gone and answer by a reset, or
//! begin a new connection from the same port.

use longsplice_dataplane::{Mode, Seq, Side};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, SHOT, legs},
    packet::*,
};

fn fin(packet: Packet) -> Packet {
    Packet {
        flags: ACK | FIN,
        ..packet
    }
}

/// Sends a FIN of both ends, which both sockets pass on; the ends in `through` have acknowledged it.
fn finish(flow: &Flow, through: &[Side]) {
    for side in Side::BOTH {
        let packet = fin(flow.later(side, 0, 0, 0));
        assert_eq!(flow.ingress(side, &packet.bytes()).verdict, OK);
    }
    for side in Side::BOTH {
        let packet = fin(flow.local_later(side, 0, 0, 1));
        assert_eq!(flow.egress(side, &packet.bytes()).verdict, OK);
    }
    through.iter().for_each(|&side| acknowledge(flow, side));
}

fn acknowledge(flow: &Flow, side: Side) {
    let packet = flow.later(side, 1, 0, 1);
    flow.ingress(side, &packet.bytes());
    assert_eq!(
        flow.plane.leg(flow.slot(), side).rx_ack,
        Seq::new(flow.plan.local[side]) + 1
    );
}

/// Returns a flow in this mode whose client or server is through.
fn flow_in(mode: Mode, through: &[Side]) -> Flow {
    let flow = Flow::track(Plan::default());
    finish(&flow, through);
    if mode != Mode::Track {
        flow.transition(Mode::Track, mode);
    }
    flow
}

fn syn(flow: &Flow, side: Side, ahead: u32) -> Vec<u8> {
    let packet = Packet {
        ack: 0,
        flags: SYN,
        window: 64_240,
        ..flow.later(side, ahead, 0, 0)
    };
    packet.bytes()
}

#[track_caller]
fn replaces(flow: &Flow, side: Side) {
    let frame = syn(flow, side, 64_000);
    flow.ingress_gives(side, &frame, (OK, "syn_replaced", &frame));
    assert_eq!(flow.slot().mode(), Mode::Replaced);
    assert!(legs().iter().all(|&leg| !flow.plane.in_use(leg)));
    // The answer is the listener's own: its window is none of the old connection's.
    let answer = Packet {
        flags: SYN | ACK,
        ..flow.local_later(side, 90_000, 0, 64_001)
    };
    flow.egress_gives(side, &answer.bytes(), (OK, "", &answer.bytes()));
}

#[track_caller]
fn waits(flow: &Flow, side: Side, ahead: u32) {
    let frame = syn(flow, side, ahead);
    flow.ingress_gives(side, &frame, (SHOT, "drop_syn", &frame));
    assert!(legs().iter().all(|&leg| flow.plane.in_use(leg)));
}

#[test]
fn a_new_connection_waits_until_nothing_of_the_old_one_is_left_to_be_done() {
    for side in Side::BOTH {
        let flow = flow_in(Mode::Drain, &[side]);
        waits(&flow, side, 64_000);
        acknowledge(&flow, side.other());
        // An old duplicate begins nothing.
        waits(&flow, side, u32::MAX - 5000);
        replaces(&flow, side);
    }
}

#[test]
fn a_relay_that_was_never_spliced_gives_way_at_once() {
    for side in Side::BOTH {
        replaces(&flow_in(Mode::Track, &[side]), side);
        // A socket with an offset needs its mapping.
        for leg in [0, 1] {
            let flow = flow_in(Mode::Track, &[side]);
            flow.edit(|slot| slot.leg[leg].adj_seq = 1);
            waits(&flow, side, 64_000);
        }
        waits(&flow_in(Mode::Undrain, &Side::BOTH), side, 64_000);
    }
}

#[test]
fn the_socket_answers_the_syn_of_one_that_may_still_be_there() {
    for side in Side::BOTH {
        for mode in [Mode::Track, Mode::Drain, Mode::Undrain] {
            let flow = flow_in(mode, &[side.other()]);
            let frame = syn(&flow, side, 64_000);
            flow.ingress_gives(side, &frame, (OK, "delivered", &frame));
        }
    }
}

#[test]
fn the_reset_of_one_that_is_gone_ends_nothing() {
    for side in Side::BOTH {
        for mode in [Mode::Drain, Mode::Undrain] {
            let flow = flow_in(mode, &[side]);
            for (offset, flags) in [(1, RST), (1, RST | ACK), (0, RST)] {
                let reset = Packet {
                    flags,
                    ..flow.later(side, offset, 0, 1)
                };
                let frame = reset.bytes();
                flow.ingress_gives(side, &frame, (SHOT, "consumed", &frame));
            }
            assert!(!flow.plane.leg(flow.slot(), side).reset);
        }
        // An end that has not received the other's FIN yet means its reset.
        let flow = flow_in(Mode::Drain, &[]);
        let reset = Packet {
            flags: RST | ACK,
            ..flow.later(side, 1, 0, 0)
        };
        flow.ingress(side, &reset.bytes());
        assert!(flow.plane.leg(flow.slot(), side).reset);
    }
}

#[test]
fn who_is_gone_hears_no_more_acknowledgements() {
    for side in Side::BOTH {
        let far = side.other();
        for (through, verdict) in [(&[side][..], None), (&[], Some(REDIRECT))] {
            let flow = flow_in(Mode::Drain, through);
            // It has grown its window, and still lacks data that was sent to it.
            let late = Packet {
                window: 60_000,
                ..flow.later(far, 1, 0, 0)
            };
            let (ran, counted) = flow.counted(|| flow.ingress(far, &late.bytes()));
            match verdict {
                None => assert_eq!((ran.verdict, counted["local_only"]), (OK, 1)),
                Some(_) => assert_eq!((ran.verdict, counted["duplicated"]), (OK, 1)),
            }
        }
    }
}

#[test]
fn a_socket_of_one_that_is_through_resets_nobody() {
    for side in Side::BOTH {
        let reset = |flow: &Flow, side| {
            let packet = Packet {
                flags: RST,
                ..flow.local_later(side, 1, 0, 0)
            };
            packet.bytes()
        };
        let flow = flow_in(Mode::Drain, &[side]);
        let frame = reset(&flow, side);
        flow.egress_gives(side, &frame, (SHOT, "drop_parked", &frame));
        assert_eq!(flow.slot().mode(), Mode::Drain);
        // The other end still waits for its socket's data.
        let frame = reset(&flow, side.other());
        assert_eq!(flow.egress(side.other(), &frame).verdict, OK);
        assert_eq!(flow.slot().mode(), Mode::Aborted);
    }
}
