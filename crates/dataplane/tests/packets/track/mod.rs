//! TRACK: segments pass unchanged, and their numbers are noted.

mod coupled;
mod shrunk;

use longsplice_dataplane::{Inspection, LegState, Mode, Seq, Side};

use crate::support::{
    flow::{Flow, OK, Plan},
    options::{Opt, usual, write},
    packet::*,
};

fn state(flow: &Flow, side: Side) -> LegState {
    flow.plane.leg(flow.slot(), side)
}

/// Asserts that a peer's segment is delivered unchanged.
#[track_caller]
fn delivered(flow: &Flow, side: Side, packet: &Packet) {
    flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &packet.bytes()));
}

/// Asserts that a local segment passes unchanged.
#[track_caller]
fn emitted(flow: &Flow, side: Side, packet: &Packet) {
    flow.egress_gives(side, &packet.bytes(), (OK, "emitted", &packet.bytes()));
}

/// Asserts that a local segment leaves as another one.
#[track_caller]
fn clamped(flow: &Flow, side: Side, packet: &Packet, expected: &Packet) {
    assert_ne!(packet, expected);
    flow.egress_gives(side, &packet.bytes(), (OK, "clamped", &expected.bytes()));
}

/// The kernel half learns of an acknowledgement that came between the assessment of a socket and the registration: its peer
/// may send no other.
#[test]
fn what_the_sockets_have_heard_meanwhile_is_noted() {
    for (mode, is_noted) in [(Mode::Track, true), (Mode::Drain, true), (Mode::Final, false)] {
        for side in Side::BOTH {
            let flow = match mode {
                Mode::Final => Flow::dormant(Plan::default()),
                _ => Flow::track(Plan::default()),
            };
            if mode == Mode::Drain {
                flow.transition(Mode::Track, Mode::Drain);
            }
            let before = state(&flow, side);
            let [taken, window] = [1_000, 700_000];
            let map = before.mapping;
            let now = Inspection::at_rest(
                before.end() + map.seq,
                before.loc_end + map.ack + taken,
                [0, window],
            );
            flow.slot().note_socket(side, &now, false);
            let after = state(&flow, side);
            let expected = match is_noted {
                true => (before.loc_end + taken, before.loc_end + taken + window),
                // The socket may have been woken, and its numbers moved.
                false => (before.rx_ack, before.rx_edge),
            };
            assert_eq!((after.rx_ack, after.rx_edge), expected, "{mode:?} {side:?}");
            flow.slot().note_offered(side, before.tx_edge + 1_000);
            assert_eq!(state(&flow, side).tx_edge, before.tx_edge + 1_000);
            flow.slot().note_offered(side, before.tx_edge + 10);
            assert_eq!(state(&flow, side).tx_edge, before.tx_edge + 1_000);
        }
    }
}

/// The segment came before the flow was registered, and reaches the socket afterwards: no drain may end without it.
#[test]
fn what_a_socket_acknowledges_is_its_own_whoever_saw_it_come() {
    for mode in [Mode::Track, Mode::Drain] {
        for side in Side::BOTH {
            let flow = Flow::track(Plan::default());
            if mode == Mode::Drain {
                flow.transition(Mode::Track, Mode::Drain);
            }
            let packet = flow.local_segment(side);
            let packet = Packet {
                ack: packet.ack.wrapping_add(1024),
                ..packet
            };
            assert_eq!(flow.egress(side, &packet.bytes()).verdict, OK);
            assert_eq!(state(&flow, side).cut.raw(), packet.ack, "{mode:?} {side:?}");
        }
    }
}

#[test]
fn what_a_peer_says_is_noted() {
    for plan in [
        Plan::default(),
        Plan {
            peer: [u32::MAX - 10, 0x7fff_fff0],
            local: [u32::MAX - 3, 0x7fff_ffff],
            clock: [u32::MAX, 0x7fff_ffff],
            ..Plan::default()
        },
    ] {
        let flow = Flow::track(plan);
        for side in Side::BOTH {
            let (peer, local, clock) = (flow.plan.peer[side], flow.plan.local[side], flow.plan.clock[side]);
            // The local socket has sent twenty bytes, so that they can be acknowledged.
            let sent = Packet {
                payload: pattern(20),
                ..flow.local_segment(side)
            };
            emitted(&flow, side, &sent);
            assert_eq!(state(&flow, side).loc_end.raw(), local.wrapping_add(20));

            let heard = state(&flow, side).ts_sent;
            assert_eq!(state(&flow, side).peer_echo, heard);
            let packet = Packet {
                payload: pattern(100),
                ack: local.wrapping_add(15),
                window: 40_000,
                options: usual(clock.wrapping_add(3), heard.wrapping_add(2)),
                ..flow.peer_segment(side)
            };
            delivered(&flow, side, &packet);
            let noted = state(&flow, side);
            let edge = local
                .wrapping_add(15)
                .wrapping_add(40_000 << flow.plan.scale_in[side]);
            let values = |s: &LegState| {
                let numbers = [s.cut, s.rx_end, s.rx_ack, s.rx_edge];
                (numbers.map(Seq::raw), [s.peer_ts, s.peer_echo])
            };
            let end = peer.wrapping_add(100);
            let (newest, echo) = (clock.wrapping_add(3), heard.wrapping_add(2));
            let expected = ([end, end, local.wrapping_add(15), edge], [newest, echo]);
            assert_eq!(values(&noted), expected);

            // Nothing goes back.
            let old = Packet {
                ack: local,
                window: 3,
                options: write(&[Opt::Timestamps(clock, heard)]),
                payload: pattern(10),
                ..packet.clone()
            };
            delivered(&flow, side, &old);
            let shrunk = Packet {
                seq: end,
                ack: local.wrapping_add(16),
                window: 1,
                payload: vec![],
                ..packet.clone()
            };
            delivered(&flow, side, &shrunk);
            let expected = ([end, end, local.wrapping_add(16), edge], [newest, echo]);
            assert_eq!(values(&state(&flow, side)), expected);
            // A FIN is one more, and so is one beyond a hole.
            let fin = Packet {
                seq: end.wrapping_add(50),
                flags: FIN | ACK,
                ..shrunk
            };
            delivered(&flow, side, &fin);
            assert_eq!(state(&flow, side).cut.raw(), end.wrapping_add(51));
        }
    }
}

#[test]
fn an_acknowledgement_shows_the_socket_its_number() {
    // The segment before it was lost. From now on the socket ignores the window of segments with a lower number, so the
    // copies of a drain must not have one.
    for side in Side::BOTH {
        let flow = Flow::track(Plan::default());
        let next = flow.peer_segment(side);
        let at = |offset: u32, flags: u8| Packet {
            seq: next.seq.wrapping_add(offset),
            flags,
            ..next.clone()
        };
        delivered(&flow, side, &at(500, ACK));
        let noted = state(&flow, side);
        assert_eq!((noted.cut.raw(), noted.rx_end.raw()), (next.seq + 500, next.seq));
        // Not a reset, nor a segment that its peer cannot have sent.
        delivered(&flow, side, &at(900, RST | ACK));
        let unsent = Packet {
            ack: next.ack + 1,
            ..at(900, ACK)
        };
        delivered(&flow, side, &unsent);
        assert_eq!(state(&flow, side).cut.raw(), next.seq + 500);
        flow.transition(Mode::Track, Mode::Drain);
        flow.forwards(side, &at(900, ACK), &mut flow.reference(side));
        assert_eq!(state(&flow, side).cut.raw(), next.seq + 500);
    }
}

/// The socket processes what such a segment acknowledges and offers, so it is noted; its payload is not.
#[test]
fn what_begins_in_the_window_and_ends_beyond_is_noted_as_an_acknowledgement() {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let before = state(&flow, side);
        let next = flow.peer_segment(side);
        let seq = next.seq.wrapping_add(flow.plan.offered[side] - 3);
        let packet = Packet {
            seq,
            payload: pattern(5),
            flags: ACK | FIN | PSH,
            window: u16::MAX,
            options: usual(flow.plan.clock[side] + 1, flow.plan.clock[side.other()]),
            ..next
        };
        let bare = Packet {
            payload: vec![],
            flags: ACK,
            ..packet.clone()
        };
        flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &bare.bytes()));
        let after = state(&flow, side);
        assert!(after.rx_edge.after(before.rx_edge));
        assert_eq!((after.cut.raw(), after.rx_end), (seq, before.rx_end));
        assert!(!after.fin);
    }
}

#[test]
fn what_a_socket_could_not_take_is_delivered_without_payload_and_not_noted() {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let before = state(&flow, side);
        let next = flow.peer_segment(side);
        let window = flow.plan.offered[side];
        for offset in [window + 2, 1 << 30, (1 << 31) - 100] {
            let packet = Packet {
                seq: next.seq.wrapping_add(offset),
                payload: pattern(5),
                options: usual(90_000, 1),
                ..next.clone()
            };
            // It may fit when the socket looks at it, and then no record would show that: cut off its payload.
            let bare = Packet {
                payload: vec![],
                flags: ACK,
                ..packet.clone()
            };
            for flags in [ACK, ACK | PSH, ACK | FIN | PSH] {
                let packet = Packet {
                    flags,
                    ..packet.clone()
                };
                flow.ingress_gives(side, &packet.bytes(), (OK, "delivered", &bare.bytes()));
            }
        }
        assert_eq!(format!("{:?}", state(&flow, side)), format!("{before:?}"));
        // Up to the edge, with a FIN behind it, it fits.
        let packet = Packet {
            seq: next.seq.wrapping_add(window - 5),
            payload: pattern(5),
            flags: ACK | FIN,
            ..next.clone()
        };
        delivered(&flow, side, &packet);
        assert_eq!(state(&flow, side).cut.raw(), packet.end());
    }
}

#[test]
fn a_forged_segment_tells_nothing() {
    // An acknowledgement of unsent bytes would end a drain too early; a false TSval would give the flow an offset that
    // stalls it for good.
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let before = state(&flow, side);
        let next = flow.peer_segment(side);
        for (seq, ack, clock) in [
            (0u32, 1u32, 0u32),
            (0, 1 << 30, 1 << 30),
            (0u32.wrapping_sub(1 << 30), 0, 1 << 30),
            (0u32.wrapping_sub(1), 0, 1 << 30),
            (0u32.wrapping_sub(1 << 30), 1 << 20, 1 << 30),
        ] {
            let packet = Packet {
                seq: next.seq.wrapping_add(seq),
                ack: next.ack.wrapping_add(ack),
                options: usual(
                    flow.plan.clock[side].wrapping_add(clock),
                    before.ts_sent.wrapping_add(1),
                ),
                window: 60_000,
                ..next.clone()
            };
            delivered(&flow, side, &packet);
            assert_eq!(
                format!("{:?}", state(&flow, side)),
                format!("{before:?}"),
                "{seq} {ack} {clock}"
            );
        }
    }
}

#[test]
fn an_emission_passes_as_it_is_and_is_noted() {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let packet = Packet {
            payload: pattern(77),
            flags: ACK | PSH,
            ack: flow.plan.peer[side],
            window: 9,
            options: usual(0x9fff_ffff, 3),
            ..flow.local_segment(side)
        };
        let packet = Packet {
            options: usual(flow.reference(side.other()).ts_high, 3),
            ..packet
        };
        emitted(&flow, side, &packet);
        let noted = state(&flow, side);
        assert_eq!(noted.loc_end.raw(), flow.plan.local[side] + 77);
        let scale = flow.plan.scale_out[side.other()];
        assert_eq!(noted.tx_edge.raw(), flow.plan.peer[side] + (9 << scale));
        // Frames that never reach the wire whole, or are no segment at all, pass.
        let odd = packet.with_data_offset(1);
        flow.egress_gives(side, &odd, (OK, "emitted", &odd));
    }
}

#[test]
fn a_timestamp_of_a_socket_never_goes_back() {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        // The far end's translated TSval was the highest toward this peer.
        let high = flow.reference(side.other()).ts_high;
        let with = |value: u32, packet: &Packet| Packet {
            options: write(&[Opt::Timestamps(value, 5), Opt::Nop, Opt::Nop]),
            ..packet.clone()
        };
        let base = Packet {
            payload: pattern(9),
            ..flow.local_segment(side)
        };
        clamped(&flow, side, &with(high - 1, &base), &with(high, &base));
        clamped(
            &flow,
            side,
            &with(high.wrapping_sub(1_000_000), &base),
            &with(high, &base),
        );
        emitted(&flow, side, &with(high, &base));
        emitted(&flow, side, &with(high + 5, &base));
        clamped(&flow, side, &with(high + 4, &base), &with(high + 5, &base));
    }
}
