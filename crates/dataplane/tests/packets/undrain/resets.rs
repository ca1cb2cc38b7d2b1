//! Resets of a peer, and of a woken socket.

use longsplice_dataplane::{Framing, Mode, Ran, Side};

use super::{SENT, across, awake, start};
use crate::support::{
    flow::{Flow, OK, Plan, SHOT, legs},
    packet::*,
    tap::{Offload, Tap},
    woken::{Behind, Past},
};

#[test]
fn a_peers_reset_goes_to_both_while_the_far_end_waits() {
    for side in Side::BOTH {
        for flags in [RST, RST | ACK] {
            let far = side.other();
            let flow = awake();
            flow.net.deaf();
            for s in Side::BOTH {
                flow.plane
                    .attach(flow.ifindex(s), Framing::Ethernet)
                    .expect("attached");
            }
            let taps = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
            let sent = SENT[side];
            let room = flow.raw_leg(far).tx_edge.wrapping_sub(start(&flow, far));
            let packet = Packet {
                flags,
                ..flow.later(side, sent, 0, 0)
            };
            let expected = if flags & ACK == 0 {
                flow.reference(side).translate(&packet)
            } else {
                across(&flow, side, &packet, start(&flow, far), room)
            };
            taps[side].send(&packet.bytes(), Offload::default());
            assert_frame(&taps[far].only(), &expected.bytes(), "the far end's");
            assert!(flow.plane.directions(flow.slot(), legs())[side].reset);
        }
    }
}

#[test]
fn a_peers_reset_goes_to_the_far_end_that_has_heard_everything_but_not_its_last_payload() {
    for side in Side::BOTH {
        let far = side.other();
        // x has acknowledged all of the far end's bytes; the far end has not acknowledged x's.
        let mut acked = [0; 2];
        acked[side] = SENT[far];
        let past = Past {
            sent: SENT,
            acked,
            ..Past::default()
        };
        let flow = Flow::woken(Plan::default(), past);
        flow.net.deaf();
        for s in Side::BOTH {
            flow.plane
                .attach(flow.ifindex(s), Framing::Ethernet)
                .expect("attached");
        }
        let taps = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
        let all = SENT[far];
        let room = flow.raw_leg(far).tx_edge.wrapping_sub(start(&flow, far)) - all;
        let packet = Packet {
            flags: RST | ACK,
            ..flow.later(side, SENT[side], 0, all)
        };
        let expected = across(&flow, side, &packet, start(&flow, far) + all, room);
        taps[side].send(&packet.bytes(), Offload::default());
        assert_frame(&taps[far].only(), &expected.bytes(), "the far end's");
        // Any other segment of x is its socket's alone.
        let packet = flow.later(side, SENT[side], 10, all);
        taps[side].send(&packet.bytes(), Offload::default());
        taps[far].nothing();
    }
}

#[test]
fn a_peers_reset_is_delivered_in_the_sockets_numbers() {
    for side in Side::BOTH {
        // The far end has acknowledged all of it: it knows everything, and has a socket to tell it the rest.
        let flow = Flow::woken(Plan::default(), Past::all_acknowledged(SENT));
        let packet = Packet {
            flags: RST,
            ack: 0,
            ..flow.later(side, SENT[side], 0, 0)
        };
        let expected = Behind::of(side, SENT).to_socket(&packet);
        flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &expected.bytes()));
        assert!(flow.plane.directions(flow.slot(), legs())[side].reset);
    }
}

#[test]
fn a_forged_reset_stays_where_it_is() {
    for side in Side::BOTH {
        let far = side.other();
        for offset in [SENT[side] + 50, SENT[side] + 1, SENT[side] - 1] {
            let flow = awake();
            flow.net.deaf();
            for s in Side::BOTH {
                flow.plane
                    .attach(flow.ifindex(s), Framing::Ethernet)
                    .expect("attached");
            }
            let taps = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
            let packet = Packet {
                flags: RST,
                ..flow.later(side, offset, 0, 0)
            };
            let expected = flow.reference(side).translate(&packet);
            taps[side].send(&packet.bytes(), Offload::default());
            assert_frame(&taps[far].only(), &expected.bytes(), "the far end's");
            assert!(!flow.plane.directions(flow.slot(), legs())[side].reset);
        }
    }
}

#[test]
fn the_reset_of_a_socket_ends_the_flow_while_something_is_under_way() {
    for side in Side::BOTH {
        let far = side.other();
        let flow = awake();
        // It goes to the end of all that x was sent.
        let reset = Packet {
            flags: RST | ACK,
            ..flow.local_later(side, 0, 0, 0)
        };
        let expected = Packet {
            seq: flow.plan.local[side] + SENT[far],
            ack: flow.plan.peer[side] + SENT[side],
            ..reset.clone()
        };
        flow.egress_gives(side, &reset.bytes(), (OK, "aborted", &expected.bytes()));
        assert_eq!(flow.slot().mode(), Mode::Aborted);
        // From now on the kernel answers for itself. Its answer to an untranslated segment is valid; any other segment
        // would be in numbers that the peer does not know.
        flow.ignores(side, &flow.later(side, 0, 10, 0).bytes());
        let answer = Packet {
            seq: 99,
            flags: RST,
            ..flow.local_later(side, 0, 0, 0)
        };
        flow.egress_gives(side, &answer.bytes(), (OK, "aborted", &answer.bytes()));
        let other = flow.local_later(side, 0, 10, 0).bytes();
        flow.egress_gives(side, &other, (2, "drop_parked", &other));
    }
}

#[test]
fn the_reset_of_a_socket_is_its_own_once_everything_is_settled() {
    for side in Side::BOTH {
        let flow = Flow::woken(Plan::default(), Past::all_acknowledged(SENT));
        let reset = Packet {
            flags: RST | ACK,
            ..flow.local_later(side, 3, 0, 0)
        };
        let expected = Packet {
            seq: flow.plan.local[side] + SENT[side.other()] + 3,
            ack: flow.plan.peer[side] + SENT[side],
            ..reset.clone()
        };
        flow.egress_gives(side, &reset.bytes(), (OK, "emitted", &expected.bytes()));
        assert_eq!(flow.slot().mode(), Mode::Undrain);
    }
}

#[test]
fn the_answer_for_a_socket_that_has_closed_resets_no_end_that_still_waits() {
    for side in Side::BOTH {
        let far = side.other();
        let flow = awake();
        let is_ok = |ran: Ran| assert_eq!(ran.verdict, OK);
        let fin = |packet: Packet| Packet {
            flags: FIN | ACK,
            ..packet
        };
        // Both streams end, and x acknowledges all of the far end's. The far end lacks x's bytes still.
        is_ok(flow.ingress(far, &fin(flow.later(far, SENT[far], 0, 0)).bytes()));
        is_ok(flow.egress(side, &fin(flow.local_later(side, 0, 0, 0)).bytes()));
        let all = SENT[far] + 1;
        is_ok(flow.ingress(side, &fin(flow.later(side, SENT[side], 0, all)).bytes()));
        let reset = Packet {
            flags: RST,
            ..flow.local_later(side, 1, 0, 0)
        };
        let ends = |flow: &Flow| flow.slot().mode() == Mode::Aborted;
        assert!(!ends(&flow));
        // The socket has acknowledged x's end, and is gone. x was told less, and repeats its end.
        is_ok(flow.egress(side, &flow.local_later(side, 1, 0, 1).bytes()));
        flow.egress_gives(side, &reset.bytes(), (SHOT, "drop_parked", &reset.bytes()));
        assert!(!ends(&flow), "the far end waits for what x repeats");
    }
}

/// A peer drops a reset beyond its window without a challenge (RFC 5961 section 3.2).
#[test]
fn the_reset_of_a_socket_stands_in_a_window_that_was_taken_back() {
    for side in Side::BOTH {
        let flow = awake();
        let shrunk = Packet {
            window: 1,
            ..flow.later(side, SENT[side], 0, 0)
        };
        assert_eq!(flow.ingress(side, &shrunk.bytes()).verdict, OK);
        let reset = Packet {
            flags: RST | ACK,
            ..flow.local_later(side, 0, 0, 0)
        };
        let edge = flow.plan.local[side] + (1 << flow.plane.leg(flow.slot(), side).scale_in);
        let expected = Packet {
            seq: edge,
            ack: flow.plan.peer[side] + SENT[side],
            ..reset.clone()
        };
        assert!(edge < flow.plan.local[side] + SENT[side.other()]);
        flow.egress_gives(side, &reset.bytes(), (OK, "aborted", &expected.bytes()));
    }
}
