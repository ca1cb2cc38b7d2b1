//! FINAL: the window of an end, and the window that it is promised.

use longsplice_dataplane::{Mode, Seq, Side};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, SHOT},
    options::usual,
    packet::*,
    woken::Past,
};

#[test]
fn payload_beyond_what_its_receiver_offers_is_dropped_by_name() {
    let (offered, granted) = (1 << 18, 1 << 17);
    for make in [Flow::dormant, Flow::detached] {
        let plan = Plan {
            offered: [offered; 2],
            granted: [granted; 2],
            ..Plan::default()
        };
        let flow = make(plan);
        // The parked socket may have offered more before.
        let edge = if flow.slot.is_some() { offered } else { granted };
        for side in Side::BOTH {
            let mut reference = flow.reference(side);
            for (offset, len, passes) in [
                (edge + 1, 1, false),
                (edge, 10, true),
                (edge - 8, 10, true),
                (1 << 30, 500, false),
                (edge + 2, 0, false),
                (edge + 1, 0, true),
                (edge - 10, 10, true),
                (edge - 9, 10, true),
            ] {
                let packet = flow.timed(side, 0, flow.later(side, offset, len, 0));
                if passes {
                    flow.forwards(side, &packet, &mut reference);
                } else {
                    let frame = packet.bytes();
                    flow.ingress_gives(side, &frame, (SHOT, "drop_window", &frame));
                }
            }
        }
    }
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_dropped() {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        for side in Side::BOTH {
            flow.forwards(side, &flow.later(side, 0, 50, 0), &mut flow.reference(side));
            // Not even with bytes that were forwarded before.
            for (offset, len) in [(60, 10), (49, 0), (10, 10), (50, 10), (50, 0)] {
                for acked in [51, 1000, (1 << 30) - 1] {
                    let frame = flow.later(side, offset, len, acked).bytes();
                    flow.ingress_gives(side, &frame, (SHOT, "drop_ack", &frame));
                }
            }
        }
    }
}

/// A sender that was told of a larger window before learns of this one only by the far end's answer.
#[test]
fn what_begins_in_the_window_passes_whole() {
    const GRANTED: u32 = 1000;
    for make in [Flow::dormant, Flow::detached] {
        for side in Side::BOTH {
            let flow = make(Plan {
                granted: [GRANTED; 2],
                offered: [GRANTED; 2],
                ..Plan::default()
            });
            let mut reference = flow.reference(side);
            flow.forwards(side, &flow.later(side, 0, GRANTED + 400, 0), &mut reference);
            flow.forwards(side, &flow.later(side, GRANTED, 300, 0), &mut reference);
            let frame = flow.later(side, GRANTED + 1, 300, 0).bytes();
            flow.ingress_gives(side, &frame, (SHOT, "drop_window", &frame));
        }
    }
}

/// Returns a dormant flow; the parked sockets promise no more than they can keep.
fn keeping(plan: Plan) -> Flow {
    let flow = Flow::track(plan);
    flow.slot().set_keeping(true);
    flow.transition(Mode::Track, Mode::Drain);
    flow.finish();
    flow
}

/// Asserts the window in a peer's segment: it ends where its leg's far socket could receive.
#[track_caller]
fn promises(flow: &Flow, side: Side, packet: &Packet, window: u32) {
    let expected = Packet {
        window: (window >> flow.plan.scale_out[side]).min(65_535) as u16,
        ..flow.reference(side).translate(packet)
    };
    flow.ingress_gives(side, &packet.bytes(), (7, "forwarded", &expected.bytes()));
}

#[test]
fn no_more_is_promised_than_the_parked_socket_could_keep() {
    for side in Side::BOTH {
        let far = side.other();
        // The far leg's socket has so much room; its peer was promised as much.
        for room in [0, 1000, 40_000] {
            let mut offered = [1 << 20; 2];
            offered[far] = room;
            let flow = keeping(Plan {
                offered,
                granted: [1 << 20; 2],
                ..Plan::default()
            });
            let scale = flow.plan.scale_in[side];
            for field in [0, 1, 3, 500, 65_535] {
                let packet = Packet {
                    window: field,
                    ..flow.later(side, 0, 1, 0)
                };
                promises(&flow, side, &packet, (u32::from(field) << scale).min(room));
            }
            // Data that the far end sends past the socket moves its edge: the room stays the same.
            let sent = room.min(700);
            if sent > 0 {
                let data = flow.later(far, 0, sent, 0);
                assert_eq!(flow.ingress(far, &data.bytes()).verdict, 7);
            }
            for (acked, field) in [(0, 65_535), (sent, 65_535), (sent, 1)] {
                let packet = Packet {
                    window: field,
                    ..flow.later(side, 1, 1, acked)
                };
                let offered = acked + (u32::from(field) << scale);
                promises(&flow, side, &packet, offered.min(sent + room) - acked);
            }
            let edge = flow.plane.leg(flow.slot(), far).tx_edge;
            assert_eq!(
                edge,
                Seq::new(flow.plan.peer[far]) + (sent + room),
                "the highest promise"
            );
        }
    }
}

/// Moves a flow on, as if so many bytes of each side had passed the parked sockets: they are as far behind.
fn run_on(flow: &Flow, bytes: u32, promised: bool) {
    flow.edit(|slot| {
        for leg in &mut slot.leg {
            leg.cut = leg.cut.wrapping_sub(bytes);
            leg.loc_edge = leg.loc_edge.wrapping_sub(bytes);
            if !promised {
                leg.tx_edge = leg.tx_edge.wrapping_sub(bytes);
            }
        }
    });
}

/// More than 2 GiB, after which the sockets' numbers seem to be ahead.
const MUCH: u32 = (1 << 31) + 1000;

/// A daemon that keeps sockets close to their streams may have been killed long ago.
#[test]
fn a_parked_socket_that_is_2_gib_behind_closes_no_window() {
    const ROOM: u32 = 40_000;
    for side in Side::BOTH {
        let flow = keeping(Plan {
            offered: [ROOM; 2],
            granted: [1 << 20; 2],
            ..Plan::default()
        });
        run_on(&flow, MUCH, true);
        let far = side.other();
        let data = flow.later(far, 0, 700, 0);
        assert_eq!(flow.ingress(far, &data.bytes()).verdict, 7);
        let packet = Packet {
            window: 65_535,
            ..flow.later(side, 0, 1, 700)
        };
        promises(&flow, side, &packet, ROOM);
    }
}

#[test]
fn a_parked_socket_that_is_2_gib_behind_offers_nothing_beyond_the_far_ends_window() {
    const GRANTED: u32 = 1 << 17;
    for side in Side::BOTH {
        let flow = Flow::dormant(Plan {
            offered: [GRANTED; 2],
            granted: [GRANTED; 2],
            ..Plan::default()
        });
        run_on(&flow, MUCH, false);
        let beyond = flow.timed(side, 0, flow.later(side, GRANTED + 2, 10, 0)).bytes();
        flow.ingress_gives(side, &beyond, (SHOT, "drop_window", &beyond));
    }
}

/// Returns such a flow whose ends pause so many bytes further on.
fn pausing(plan: Plan, ahead: [u32; 2]) -> Flow {
    let flow = keeping(plan);
    flow.slot().set_pausing(true);
    for side in Side::BOTH {
        let at = Seq::new(flow.plan.peer[side]) + ahead[side];
        flow.slot().set_trap(side, Some(at));
    }
    flow
}

#[test]
fn one_that_pauses_is_promised_all_up_to_its_trap_and_little_beyond() {
    for side in Side::BOTH {
        // A woken socket stands up to 65,536 bytes before the trap.
        for (room, beyond) in [(1000, -64_536), (65_536, 0), (70_000, 4464), (200_000, 32_768)] {
            for ahead in [100_000, 300_000] {
                let plan = Plan {
                    offered: [room; 2],
                    granted: [1 << 20; 2],
                    ..Plan::default()
                };
                let flow = pausing(plan, [ahead as u32; 2]);
                let scale = flow.plan.scale_in[side];
                // A larger promise from before stays.
                let most = ((ahead + beyond) as u32).max(room);
                for field in [0, 500, 65_535] {
                    let packet = Packet {
                        window: field,
                        ..flow.later(side, 0, 1, 0)
                    };
                    promises(&flow, side, &packet, (u32::from(field) << scale).min(most));
                }
            }
        }
    }
}

#[test]
fn a_packet_wakes_no_socket_that_cannot_take_what_its_peer_was_promised() {
    for side in Side::BOTH {
        let far = side.other();
        let plan = Plan {
            offered: [70_000; 2],
            granted: [1 << 20; 2],
            ..Plan::default()
        };
        // The far end may send 300,000 bytes past its socket, which has room for 70,000.
        let mut ahead = [1; 2];
        ahead[far] = 300_000;
        let flow = pausing(plan, ahead);
        flow.slot().set_wakeable(true);
        let wide = Packet {
            window: 65_535,
            ..flow.later(side, 0, 0, 0)
        };
        promises(&flow, side, &wide, 304_464);
        let early = flow.later(side, 0, 100, 0).bytes();
        flow.ingress_gives(side, &early, (SHOT, "queued", &early));
        assert_eq!(flow.slot().mode(), Mode::Final);
        // User space makes the room.
        let socket = Seq::new(flow.plan.peer[far]) + 304_464;
        flow.slot().set_edge(far, socket);
        assert_eq!(flow.ingress(side, &early).verdict, OK);
        assert_eq!(flow.slot().mode(), Mode::Undrain);
    }
}

#[test]
fn at_its_trap_a_socket_takes_what_its_peer_was_promised() {
    for side in Side::BOTH {
        let far = side.other();
        let plan = Plan {
            offered: [80_000; 2],
            granted: [1 << 20; 2],
            ..Plan::default()
        };
        let (trap, last) = (99_000, 1000);
        let mut ahead = [1; 2];
        ahead[far] = trap;
        let flow = pausing(plan, ahead);
        flow.slot().set_wakeable(true);
        let wide = Packet {
            window: 65_535,
            ..flow.later(side, 0, 0, 0)
        };
        let promised = trap - 65_536 + 80_000;
        promises(&flow, side, &wide, promised);
        for offset in (0..trap - last).step_by(last as usize) {
            let data = flow.later(far, offset, last, 0);
            assert_eq!(flow.ingress(far, &data.bytes()).verdict, 7);
        }
        let data = flow.later(far, trap - last, last, 0).bytes();
        let (ran, counted) = flow.counted(|| flow.ingress(far, &data));
        assert_eq!(ran.verdict, OK, "{counted:?}");
        assert_eq!(flow.slot().mode(), Mode::Undrain);
        let leg = flow.raw_leg(far);
        let at = |bytes| flow.plan.peer[far].wrapping_add(bytes);
        assert_eq!(leg.cut, at(trap), "it has the last segment");
        assert_eq!(
            leg.loc_edge,
            at(trap - last + 80_000),
            "it goes on where that begins"
        );
        assert_eq!(leg.tx_edge, leg.loc_edge.max(at(promised)));
    }
}

#[test]
fn what_was_promised_stays_promised() {
    // Before the splice the far end was offered more than its socket's own room.
    for side in Side::BOTH {
        let far = side.other();
        let flow = Flow::track(Plan {
            granted: [1 << 20; 2],
            ..Plan::default()
        });
        flow.edit(|slot| {
            let leg = &mut slot.leg[far];
            leg.tx_edge = leg.loc_edge.wrapping_add(5000);
        });
        flow.slot().set_keeping(true);
        flow.transition(Mode::Track, Mode::Drain);
        flow.finish();
        let promised = flow.plan.offered[far] + 5000;
        let packet = Packet {
            window: 65_535,
            ..flow.later(side, 0, 1, 0)
        };
        promises(&flow, side, &packet, promised);
        // The socket's room grows past that with the bytes that bypass it.
        for offset in (0..7000).step_by(1000) {
            assert_eq!(
                flow.ingress(far, &flow.later(far, offset, 1000, 0).bytes())
                    .verdict,
                7
            );
        }
        promises(&flow, side, &packet, flow.plan.offered[far] + 7000);
    }
}

#[test]
fn without_keeping_the_far_ends_window_is_passed_on() {
    let plan = Plan {
        offered: [1000; 2],
        granted: [1 << 20; 2],
        ..Plan::default()
    };
    let flow = Flow::dormant(plan);
    for side in Side::BOTH {
        let packet = Packet {
            window: 65_535,
            ..flow.later(side, 0, 1, 0)
        };
        flow.forwards(side, &packet, &mut flow.reference(side));
    }
}

#[test]
fn a_socket_wakes_to_what_was_promised() {
    for side in Side::BOTH {
        let far = side.other();
        let flow = keeping(Plan {
            offered: [10_000; 2],
            granted: [1 << 20; 2],
            ..Plan::default()
        });
        let sent = [900, 900];
        flow.pass(Past::all_acknowledged(sent));
        let wide = Packet {
            window: 65_535,
            ..flow.later(side, 900, 0, 900)
        };
        promises(&flow, side, &wide, 10_000);
        flow.wake();
        let leg = flow.raw_leg(far);
        let edge = flow.plan.peer[far].wrapping_add(900 + 10_000);
        assert_eq!((leg.loc_edge, leg.tx_edge), (edge, edge));
    }
}

/// Each end's number is below what the other one has: it was the edge of a window when that was taken back. Neither would
/// read what the other says.
#[test]
fn an_acknowledgement_below_a_window_that_was_taken_back_gets_a_number_that_is_read() {
    const SENT: u32 = 1_000;
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        let says = |side: Side, offset: u32, len, acked, window| Packet {
            window,
            ..flow.timed(side, 9, flow.later(side, offset, len, acked))
        };
        for side in Side::BOTH {
            flow.forwards(side, &says(side, 0, SENT, 0, 9_999), &mut flow.reference(side));
        }
        for side in Side::BOTH {
            let mut reference = flow.reference(side);
            let other = side.other();
            flow.forwards(
                other,
                &says(other, SENT, 0, SENT, 10_000),
                &mut flow.reference(other),
            );
            for _ in 0..2 {
                let came = says(side, 600, 0, SENT, 10_000).bytes();
                let read = reference.translate(&says(side, SENT, 0, SENT, 10_000)).bytes();
                flow.ingress_gives(side, &came, (REDIRECT, "forwarded", &read));
            }
            for (offset, len, acked, window) in [
                (600, 0, SENT - 1, 10_000),   // late: it says less than is known
                (SENT - 1, 0, SENT, 10_000),  // a keep-alive
                (600, 100, SENT, 10_000),     // a repetition
                (600, 0, SENT - 400, 10_000), // late
            ] {
                let old = says(side, offset, len, acked, window);
                flow.forwards_stray(side, &old, &mut reference);
            }
            // A smaller window than the known one is that of an earlier moment.
            let smaller = says(side, 600, 0, SENT, 9_900);
            flow.forwards_stray(side, &smaller, &mut reference);
            // A guess does not know what time its sender was told.
            let guess = Packet {
                options: usual(flow.plan.clock[side] + 9, flow.told(side).wrapping_add(1 << 30)),
                ..says(side, 600, 0, SENT, 10_000)
            };
            flow.forwards_stray(side, &guess, &mut reference);
        }
    }
}
