//! With COUPLE, a socket offers no window that the far end does not have.

use longsplice_dataplane::{Seq, Side};

use super::{clamped, delivered, emitted, state};
use crate::support::{
    flow::{Flow, Plan},
    packet::*,
};

#[test]
fn a_coupled_window_ends_where_the_far_ends_does() {
    for (granted, fields) in [
        // Window that the far end grants; windows of the socket and the clamped fields.
        (1 << 15, [1 << 15, 65_535, 1 << 15]),
        (1000, [1000, 65_535, 63_999]),
        (63, [63, 64, 65_535]),
        (0, [0, 1, 65_535]),
        (1 << 21, [1 << 21, 60_000, 65_535]),
    ] {
        let plan = Plan {
            granted: [granted; 2],
            ..Plan::default()
        };
        let flow = Flow::track(plan);
        for side in Side::BOTH {
            let scale = flow.plan.scale_out[side.other()];
            for window in fields.map(|w: u32| w.min(65_535) as u16) {
                let packet = Packet {
                    window,
                    payload: pattern(3),
                    ..flow.local_segment(side)
                };
                flow.slot().set_coupling(false);
                emitted(&flow, side, &packet);
                flow.slot().set_coupling(true);
                if u32::from(window) << scale <= granted {
                    emitted(&flow, side, &packet);
                    continue;
                }
                let expected = Packet {
                    window: (granted >> scale) as u16,
                    ..packet.clone()
                };
                assert!(u32::from(expected.window) << scale <= granted);
                clamped(&flow, side, &packet, &expected);
                assert_eq!(
                    state(&flow, side).tx_edge,
                    Seq::new(packet.ack) + (u32::from(expected.window) << scale)
                );
            }
        }
    }
}

#[test]
fn a_coupled_window_counts_from_the_acknowledgement() {
    let plan = Plan {
        granted: [1 << 15; 2],
        ..Plan::default()
    };
    let flow = Flow::track(plan);
    flow.slot().set_coupling(true);
    for side in Side::BOTH {
        let scale = flow.plan.scale_out[side.other()];
        for (acked, left) in [(0, 1 << 15), (1 << 14, 1 << 14), (1 << 15, 0), (40_000, 0)] {
            let mut packet = flow.local_segment(side);
            packet.ack = packet.ack.wrapping_add(acked);
            packet.window = 65_535;
            let expected = Packet {
                window: (left >> scale) as u16,
                ..packet.clone()
            };
            clamped(&flow, side, &packet, &expected);
        }
    }
}

#[test]
fn a_coupled_window_grows_with_the_far_ends() {
    let plan = Plan {
        granted: [1 << 15; 2],
        ..Plan::default()
    };
    let mut flow = Flow::track(plan.clone());
    for side in Side::BOTH {
        flow.again(plan.clone());
        flow.slot().set_coupling(true);
        let far = side.other();
        let scale = flow.plan.scale_out[far];
        let packet = Packet {
            window: 65_535,
            ..flow.local_segment(side)
        };
        let at = |field: u16| Packet {
            window: field,
            ..packet.clone()
        };
        clamped(&flow, side, &packet, &at(((1u32 << 15) >> scale) as u16));
        // The far end opens its window.
        let mut update = flow.peer_segment(far);
        update.window = 300;
        delivered(&flow, far, &update);
        let edge = 300u32 << flow.plan.scale_in[far];
        clamped(&flow, side, &packet, &at((edge >> scale) as u16));
        // It acknowledges data of the local socket, and the edge moves on.
        let sent = Packet {
            payload: pattern(1000),
            window: 0,
            ..flow.local_segment(far)
        };
        emitted(&flow, far, &sent);
        update.ack = update.ack.wrapping_add(1000);
        delivered(&flow, far, &update);
        clamped(&flow, side, &packet, &at(((edge + 1000) >> scale) as u16));
    }
}

#[test]
fn a_coupled_window_leaves_only_so_much_room() {
    let flow = Flow::track(Plan::default());
    flow.slot().set_coupling(true);
    for side in Side::BOTH {
        let scale = flow.plan.scale_out[side.other()];
        let packet = Packet {
            window: 65_535,
            ..flow.local_segment(side)
        };
        for room in [1, 10_000, 1 << 17, 1 << 18, 1 << 19] {
            flow.slot().set_max_inflight(side, room);
            let expected = Packet {
                window: (room.min(1 << 18) >> scale) as u16,
                ..packet.clone()
            };
            clamped(&flow, side, &packet, &expected);
        }
        flow.slot().set_max_inflight(side, 0);
    }
}
