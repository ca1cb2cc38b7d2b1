//! A receiver takes a window back, as Linux does when it lacks memory for it. The other side may have sent beyond it, and
//! its acknowledgements at that number are ignored: they are moved to the number that the receiver accepts.

use longsplice_dataplane::Side;

use super::{clamped, delivered, emitted};
use crate::support::{
    flow::{Flow, OK, Plan},
    packet::*,
};

const SENT: u32 = 2000;

#[test]
fn a_socket_acknowledges_where_its_peer_listens_now() {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let sent = Packet {
            payload: pattern(SENT as usize / 2),
            ..flow.local_segment(side)
        };
        let rest = Packet {
            seq: sent.seq.wrapping_add(SENT / 2),
            ..sent.clone()
        };
        emitted(&flow, side, &sent);
        emitted(&flow, side, &rest);
        let bare = Packet {
            seq: sent.seq.wrapping_add(SENT),
            payload: vec![],
            ..sent
        };
        emitted(&flow, side, &bare);
        let peer = flow.peer_segment(side);
        for field in [1u16, 0, 3] {
            let shrunk = Packet {
                window: field,
                ..peer.clone()
            };
            delivered(&flow, side, &shrunk);
            let edge = u32::from(field) << flow.plan.scale_in[side];
            let expected = Packet {
                seq: shrunk.ack.wrapping_add(edge),
                ..bare.clone()
            };
            clamped(&flow, side, &bare, &expected);
            // Payload is not changed.
            emitted(&flow, side, &rest);
        }
        delivered(&flow, side, &peer);
        emitted(&flow, side, &bare);
    }
}

#[test]
fn a_peer_acknowledges_where_the_socket_listens_now() {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let scale = flow.plan.scale_out[side.other()];
        let ours = |window: u16| Packet {
            window,
            ..flow.local_segment(side)
        };
        emitted(&flow, side, &ours(3000));
        let peer = flow.peer_segment(side);
        let bare = Packet {
            seq: peer.seq.wrapping_add(2000 << scale),
            ..peer.clone()
        };
        delivered(&flow, side, &bare);
        for field in [1, 0, 5] {
            emitted(&flow, side, &ours(field));
            let expected = Packet {
                seq: peer.seq.wrapping_add(u32::from(field) << scale),
                ..bare.clone()
            };
            flow.ingress_gives(side, &bare.bytes(), (OK, "delivered", &expected.bytes()));
        }
        emitted(&flow, side, &ours(3000));
        delivered(&flow, side, &bare);
    }
}
