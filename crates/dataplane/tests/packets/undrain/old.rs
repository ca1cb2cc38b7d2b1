//! Retransmissions of forwarded bytes.

use longsplice_dataplane::{EventKind, Side};

use super::{SENT, across, awake, start};
use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, SHOT},
    options::{usual, usual_with_sack},
    packet::*,
    woken::{Past, with_sack, without_sack},
};

/// Returns the right edge of the window that the far end was offered when the pair woke, counted from the start of its
/// stream.
fn promised(flow: &Flow, far: Side) -> u32 {
    flow.raw_leg(far).tx_edge.wrapping_sub(start(flow, far))
}

#[test]
fn it_goes_to_the_far_end_with_its_acknowledgement() {
    for side in Side::BOTH {
        let sent = SENT[side];
        let far = side.other();
        for (offset, len) in [(0, 1), (0, sent), (sent - 1, 1), (17, 100)] {
            let flow = awake();
            let room = promised(&flow, far);
            for acked in [0, 10, SENT[far] - 1, SENT[far]] {
                let packet = flow.timed(side, acked, flow.later(side, offset, len, acked));
                let expected = across(&flow, side, &packet, start(&flow, far) + acked, room - acked);
                flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
            }
        }
    }
}

#[test]
fn a_fin_that_was_forwarded_belongs_to_the_socket() {
    // The FIN was forwarded behind the payload; the sockets go on before it. So it is held, and user space splits it.
    for side in Side::BOTH {
        let mut fin = [false; 2];
        fin[side] = true;
        let flow = Flow::woken(
            Plan::default(),
            Past {
                sent: SENT,
                fin,
                ..Past::default()
            },
        );
        let packet = Packet {
            flags: ACK | FIN,
            ..flow.later(side, 0, SENT[side], 0)
        };
        flow.ingress_gives(side, &packet.bytes(), (SHOT, "queued", &packet.bytes()));
    }
}

#[test]
fn its_acknowledgement_never_goes_back() {
    for side in Side::BOTH {
        let far = side.other();
        let flow = awake();
        let room = promised(&flow, far);
        let high = 200;
        let first = flow.later(side, 0, 50, high);
        let expected = across(&flow, side, &first, start(&flow, far) + high, room - high);
        flow.ingress_gives(side, &first.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
        let older = flow.later(side, 0, 50, 10);
        let expected = across(&flow, side, &older, start(&flow, far) + high, room - high);
        flow.ingress_gives(side, &older.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
    }
}

/// Acknowledges so many bytes of the far leg's peer, behind the forwarded ones, by its local socket.
fn the_socket_acknowledges(flow: &Flow, far: Side, more: u32, field: u16) -> u32 {
    // It lacks the last forwarded byte: otherwise its socket would answer an old segment.
    let data = flow.later(far, SENT[far], more, SENT[far.other()] - 1);
    assert_eq!(flow.ingress(far, &data.bytes()).verdict, OK);
    let ack = Packet {
        window: field,
        ..flow.local_later(far, 0, 0, more)
    };
    assert_eq!(flow.egress(far, &ack.bytes()).verdict, OK);
    u32::from(field) << flow.plan.scale_out[far.other()]
}

#[test]
fn what_the_far_end_sent_since_is_acknowledged_by_its_socket_alone() {
    for side in Side::BOTH {
        let far = side.other();
        let all = SENT[far];
        let flow = awake();
        // x acknowledges more than was forwarded to it: the socket's own stream. The far end is told of the first part
        // only.
        assert_eq!(
            flow.egress(side, &flow.local_later(side, 0, 300, 0).bytes())
                .verdict,
            OK
        );
        let room = promised(&flow, far);
        let packet = flow.later(side, 0, 50, all + 100);
        let expected = across(&flow, side, &packet, start(&flow, far) + all, room - all);
        flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
        // The far end's socket then acknowledges 40 bytes more, and offers a window from there.
        let offered = the_socket_acknowledges(&flow, far, 40, 500);
        let again = flow.later(side, 0, 50, all + 101);
        let room = promised(&flow, far).max(all + 40 + offered);
        let expected = across(&flow, side, &again, start(&flow, far) + all + 40, room - all - 40);
        flow.ingress_gives(side, &again.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
        // It makes no difference that x acknowledges less.
        let older = flow.later(side, 0, 50, all - 1);
        let expected = across(&flow, side, &older, start(&flow, far) + all + 40, room - all - 40);
        flow.ingress_gives(side, &older.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
    }
}

#[test]
fn where_nothing_of_the_far_end_went_past_its_socket_speaks_for_itself() {
    for side in Side::BOTH {
        let far = side.other();
        let mut sent = [0; 2];
        sent[side] = SENT[side];
        let flow = Flow::woken(Plan::default(), Past::unacknowledged(sent));
        // x acknowledges the socket's own stream toward it; that does not concern the far end.
        assert_eq!(
            flow.egress(side, &flow.local_later(side, 0, 300, 0).bytes())
                .verdict,
            OK
        );
        let packet = flow.later(side, 0, 50, 100);
        let room = flow.plan.offered[far];
        let expected = across(&flow, side, &packet, start(&flow, far), room);
        flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
    }
}

#[test]
fn an_acknowledgement_that_no_tcp_would_take_is_not_made_acceptable() {
    for side in Side::BOTH {
        let flow = awake();
        let rec = flow.raw_leg(side).rec;
        let window = rec.rx_edge.wrapping_sub(rec.rx_ack);
        assert!(window > 65_535, "as far behind as it offers");
        let packet = flow.later(side, 0, 50, 0u32.wrapping_sub(window));
        assert_eq!(flow.ingress(side, &packet.bytes()).verdict, REDIRECT);
        let too_old = flow.later(side, 0, 50, 0u32.wrapping_sub(window + 1));
        flow.ingress_gives(side, &too_old.bytes(), (SHOT, "consumed", &too_old.bytes()));
    }
}

#[test]
fn selective_acknowledgements_end_where_the_forwarded_part_does() {
    for side in Side::BOTH {
        let far = side.other();
        let (all, local) = (SENT[far], Plan::default().local[side]);
        // Blocks, the acknowledgement, and the blocks that the far end sees.
        for (from, to, acked, seen) in [
            (100, 200, 10, (100, 200)),
            (100, all + 50, 10, (100, all)),
            (all + 10, all + 50, 10, (all, all)),
            (5, 20, 10, (10, 20)),
        ] {
            let flow = awake();
            assert_eq!(
                flow.egress(side, &flow.local_later(side, 0, 300, 0).bytes())
                    .verdict,
                OK
            );
            let clock = flow.plan.clock[side];
            let block = (local.wrapping_add(from), local.wrapping_add(to));
            let packet = Packet {
                options: usual_with_sack(clock, 1, &[block]),
                ..flow.later(side, 0, 50, acked)
            };
            let room = promised(&flow, far);
            let mut expected = across(&flow, side, &packet, start(&flow, far) + acked, room - acked);
            expected.options = with_sack(&expected.options, |_, _| {
                (start(&flow, far) + seen.0, start(&flow, far) + seen.1)
            });
            flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
            // Once the forwarded part is complete, they are about the socket's own stream: nothing for the far end.
            let packet = Packet {
                ack: packet.ack.wrapping_add(all - acked),
                ..packet
            };
            let mut expected = across(&flow, side, &packet, start(&flow, far) + all, room - all);
            expected.options = without_sack(&expected.options);
            flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
        }
    }
}

#[test]
fn selective_acknowledgements_are_blanked_for_an_end_that_did_not_permit_them() {
    let plan = Plan {
        blank_sack: [true; 2],
        ..Plan::default()
    };
    for side in Side::BOTH {
        let far = side.other();
        let flow = Flow::woken(plan.clone(), Past::unacknowledged(SENT));
        let local = flow.plan.local[side];
        let packet = Packet {
            options: usual_with_sack(flow.plan.clock[side], 1, &[(local + 100, local + 200)]),
            ..flow.later(side, 0, 50, 10)
        };
        let expected = across(
            &flow,
            side,
            &packet,
            start(&flow, far) + 10,
            promised(&flow, far) - 10,
        );
        assert_eq!(without_sack(&expected.options), expected.options);
        flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
    }
}

#[test]
fn a_segment_of_which_only_a_part_was_forwarded_is_held() {
    for side in Side::BOTH {
        let sent = SENT[side];
        let flow = awake();
        let mut events = flow.plane.events().expect("the ring");
        for (offset, len, flags) in [
            (0, sent + 1, ACK),
            (sent - 1, 2, ACK | PSH),
            (sent - 1, 1, ACK | FIN),
            (0, sent + 1400, ACK),
        ] {
            let packet = Packet {
                flags,
                options: usual(flow.plan.clock[side] + 1, 3),
                ..flow.later(side, offset, len, 5)
            };
            flow.ingress_gives(side, &packet.bytes(), (SHOT, "queued", &packet.bytes()));
            let found = events.take().expect("the ring");
            assert_eq!(
                (found.len(), found[0].kind, found[0].seq.raw()),
                (1, EventKind::Held, packet.seq)
            );
            assert_frame(&found[0].packet, &packet.bytes(), "queued");
            assert_eq!(found[0].packet[found[0].payload.clone()], packet.payload);
        }
    }
}

#[test]
fn few_hops_are_renewed() {
    for side in Side::BOTH {
        let (flow, far) = (awake(), side.other());
        let packet = Packet {
            ttl: 1,
            ..flow.timed(side, 0, flow.later(side, 0, 50, 0))
        };
        let expected = across(&flow, side, &packet, start(&flow, far), promised(&flow, far));
        flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
    }
}

#[test]
fn without_acknowledgement_no_tcp_takes_it() {
    for side in Side::BOTH {
        let flow = awake();
        let before = format!("{:?}", flow.raw());
        let packet = Packet {
            flags: PSH,
            ack: 0x1234_5678,
            ..flow.later(side, 0, 50, 0)
        };
        flow.ingress_gives(side, &packet.bytes(), (SHOT, "consumed", &packet.bytes()));
        assert_eq!(format!("{:?}", flow.raw()), before, "nothing was learnt");
    }
}

#[test]
fn the_timestamp_never_goes_back() {
    for side in Side::BOTH {
        let far = side.other();
        let flow = awake();
        let mut reference = flow.reference(side);
        let room = promised(&flow, far);
        // The far leg's socket has a clock of its own, which is ahead.
        let ahead = reference.ts_high.wrapping_add(5000);
        let emitted = Packet {
            options: usual(ahead, 3),
            ..flow.local_later(far, 0, 10, 0)
        };
        assert_eq!(flow.egress(far, &emitted.bytes()).verdict, OK);
        reference.ts_high = ahead;
        for later in [10, 4999, 5000, 5001, 3] {
            let packet = flow.timed(side, later, flow.later(side, 0, 50, 0));
            let expected = Packet {
                options: reference.translate(&packet).options,
                ..across(&flow, side, &packet, start(&flow, far), room)
            };
            flow.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected.bytes()));
        }
    }
}
