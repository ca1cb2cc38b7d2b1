//! Sockets that are built for a flow: FREEZE holds new data until they are there, and they take over the forwarded bytes
//! or leave them to the ends.

use longsplice_dataplane::{EventKind, Mapping, Mode, Offset, PerSide, Seq, Side, Sockets};

use crate::support::{
    flow::{Flow, OK, Plan, SHOT, legs},
    packet::*,
    woken::{Behind, Past},
};

/// Bytes that each peer sent past the sockets.
const SENT: [u32; 2] = [700, 90];

fn frozen(past: Past) -> Flow {
    let flow = Flow::dormant(Plan::default());
    flow.pass(past);
    assert_eq!(flow.plane.freeze(flow.slot()).expect("it runs"), Mode::Freeze);
    flow
}

#[test]
fn what_is_new_is_held_and_the_rest_passes() {
    for side in Side::BOTH {
        let (sent, far) = (SENT[side], SENT[side.other()]);
        let flow = frozen(Past::unacknowledged(SENT));
        let mut events = flow.plane.events().expect("the ring");
        for (offset, len, flags) in [
            (sent, 1, ACK),
            (sent - 1, 2, ACK | PSH),
            (sent, 0, ACK | FIN),
            (sent + 50, 9, ACK),
        ] {
            let packet = Packet {
                flags,
                ..flow.timed(side, 1, flow.later(side, offset, len, 0))
            };
            let frame = packet.bytes();
            flow.ingress_gives(side, &frame, (SHOT, "queued", &frame));
            let found = events.take().expect("the ring");
            assert_eq!((found.len(), found[0].kind), (1, EventKind::Held));
            assert_frame(&found[0].packet, &frame, "queued");
        }
        let mut reference = flow.reference(side);
        for packet in [
            flow.later(side, 0, sent, far),
            flow.later(side, sent - 1, 1, 0),
            flow.later(side, sent, 0, far),
        ] {
            flow.forwards(side, &packet, &mut reference);
        }
        // The sockets send nothing yet.
        let frame = flow.local_segment(side).bytes();
        flow.egress_gives(side, &frame, (SHOT, "drop_parked", &frame));
    }
}

#[test]
fn what_a_stranger_sends_is_not_held() {
    for side in Side::BOTH {
        let (sent, far) = (SENT[side], SENT[side.other()]);
        let flow = frozen(Past::unacknowledged(SENT));
        let edge = flow.plan.offered[side].max(flow.plan.granted[side]);
        let reset = Packet {
            flags: ACK | RST,
            ..flow.later(side, edge + 1, 10, 0)
        };
        for (packet, verdict) in [
            (flow.later(side, edge + 1, 10, 0), "drop_window"),
            (flow.later(side, 1 << 30, 10, 0), "drop_window"),
            // It would be moved into the window, where it is not new.
            (reset, "drop_window"),
            (flow.later(side, sent + 5, 10, far + 1), "drop_ack"),
            (flow.later(side, sent + 5, 10, 0), "drop_tsecr"),
        ] {
            let frame = packet.bytes();
            flow.ingress_gives(side, &frame, (SHOT, verdict, &frame));
        }
        let mut events = flow.plane.events().expect("the ring");
        assert!(events.take().expect("the ring").is_empty());
    }
}

#[test]
fn only_a_flow_in_final_freezes_and_only_a_frozen_one_is_taken_over() {
    for mode in [Mode::Track, Mode::Drain, Mode::Undrain, Mode::Moved] {
        let flow = Flow::track(Plan::default());
        flow.transition(Mode::Track, mode);
        let before = format!("{:?}", flow.raw());
        assert_eq!(flow.plane.freeze(flow.slot()).expect("it runs"), mode);
        assert_eq!(
            flow.plane
                .take_over(flow.slot(), PerSide::default())
                .expect("it runs"),
            mode
        );
        assert_eq!(format!("{:?}", flow.raw()), before);
    }
}

#[test]
fn a_frozen_pair_goes_on_behind_what_was_forwarded() {
    for side in Side::BOTH {
        let flow = frozen(Past::all_acknowledged(SENT));
        assert_eq!(flow.plane.wake(flow.slot()).expect("it runs"), Mode::Undrain);
        for s in Side::BOTH {
            let expected = Mapping {
                seq: -Offset::new(SENT[s]),
                ack: -Offset::new(SENT[s.other()]),
            };
            assert_eq!(flow.slot().mapping(s), expected);
        }
        let packet = flow.later(side, SENT[side], 10, SENT[side.other()]);
        let expected = Behind::of(side, SENT).to_socket(&packet);
        flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &expected.bytes()));
    }
}

/// Gives the sockets the unacknowledged bytes. Returns the first sequence number that each has.
fn take_over(flow: &Flow, acked: [u32; 2]) -> PerSide<Seq> {
    let at = PerSide::from_fn(|side| Seq::new(flow.plan.local[side]) + acked[side]);
    assert_eq!(
        flow.plane.take_over(flow.slot(), at).expect("it runs"),
        Mode::Track
    );
    at
}

#[test]
fn sockets_that_were_given_what_is_not_acknowledged_take_over() {
    // Each far end has acknowledged so much; the other forwarded bytes are written to its socket.
    let acked = [30, 200];
    let flow = frozen(Past {
        sent: SENT,
        acked,
        ..Past::default()
    });
    let at = take_over(&flow, acked);
    for side in Side::BOTH {
        let o = side.other();
        let leg = flow.plane.leg(flow.slot(), side);
        // Its own next byte toward x is the first that x lacks.
        let expected = Mapping {
            seq: -Offset::new(SENT[side]),
            ack: -Offset::new(acked[side]),
        };
        assert_eq!(leg.mapping, expected, "{side:?}");
        assert_eq!(
            (leg.acked, leg.loc_end),
            (at[side], Seq::new(flow.plan.local[side]) + SENT[o]),
            "{side:?}"
        );
        assert_eq!((leg.cut, leg.loc_ack, leg.tx_ack), {
            let end = Seq::new(flow.plan.peer[side]) + SENT[side];
            (end, end, end)
        });
        // The socket retransmits the rest, and the wire sees the numbers of before.
        let rest = flow.local_later(side, 0, SENT[o] - acked[side], 0);
        let seen = Behind {
            seq: SENT[side],
            ack: acked[side],
        }
        .to_wire(&rest);
        assert_eq!(
            (seen.seq, seen.ack),
            (at[side].raw(), flow.plan.peer[side] + SENT[side])
        );
        flow.egress_gives(side, &rest.bytes(), (OK, "clamped", &seen.bytes()));
    }
}

#[test]
fn sockets_that_were_built_take_over_what_was_forwarded_before() {
    // Nothing has passed since they were built: the bytes that they get are unacknowledged all the same.
    let acked = [30, 200];
    let mut flow = Flow::detached(Plan::default());
    let slot = flow.plane.take_slot().expect("a free slot");
    flow.pass(Past {
        sent: SENT,
        acked,
        ..Past::default()
    });
    let serial = flow.raw_record(Side::Client).expect("a record").serial;
    flow.plane.promote(&slot, serial, legs()).expect("attached");
    flow.slot = Some(slot);
    flow.slot().set_sockets(PerSide::from_fn(|side| {
        let o = side.other();
        let receive_next = Seq::new(flow.plan.peer[side]) + SENT[side];
        Sockets {
            receive_next,
            send_next: Seq::new(flow.plan.local[side]) + SENT[o],
            edge: receive_next + (1 << 18),
        }
    }));
    assert_eq!(flow.plane.freeze(flow.slot()).expect("it runs"), Mode::Freeze);
    let at = take_over(&flow, acked);
    for side in Side::BOTH {
        let o = side.other();
        let leg = flow.plane.leg(flow.slot(), side);
        // The first byte that x lacks is the first that was written to its socket.
        let expected = Mapping {
            seq: Offset::default(),
            ack: Offset::new(SENT[o] - acked[side]),
        };
        assert_eq!(leg.mapping, expected, "{side:?}");
        assert_eq!(
            (leg.acked, leg.loc_end),
            (at[side], Seq::new(flow.plan.local[side]) + SENT[o]),
            "{side:?}"
        );
    }
}

#[test]
fn a_pair_is_parked_only_at_the_cuts_that_were_found() {
    for wakeable in [false, true] {
        for late in Side::BOTH {
            let flow = Flow::drain(Plan::default());
            let cuts = PerSide::from(flow.plan.peer).map(Seq::new);
            let mut other = cuts;
            other[late] = other[late] + 1;
            assert_eq!(
                flow.plane.finish(flow.slot(), other, wakeable).expect("it runs"),
                Mode::Drain
            );
            assert_eq!(
                flow.plane.finish(flow.slot(), cuts, wakeable).expect("it runs"),
                Mode::Final
            );
            let woken = flow.plane.wake(flow.slot()).expect("it runs");
            assert_eq!(woken, if wakeable { Mode::Undrain } else { Mode::Final });
        }
    }
}

#[test]
fn a_cut_that_is_raised_too_late_is_not_where_the_sockets_stand() {
    // A packet on another CPU saw DRAIN, raised the cut, and looks again: its bytes were not given to the socket.
    for side in Side::BOTH {
        let flow = Flow::dormant(Plan::default());
        flow.edit(|slot| slot.leg[side].cut += 500);
        let packet = flow.later(side, 0, 700, 0);
        flow.forwards(side, &packet, &mut flow.reference(side));
        flow.wake();
        assert_eq!(flow.slot().mapping(side).seq, -Offset::new(700));
    }
}
