//! The identity case (papers' section III-F): a flow whose translation changes nothing but the time to live. Its segments meet
//! it again and again.

use longsplice_dataplane::{Context, Family, Leg, PerSide};

use crate::{
    address, measure, splice,
    support::{
        flow::Plan,
        net::{OUR_MAC, PEER_MAC},
        options::{usual, usual_with_sack},
        packet::Packet,
        plane::Plane,
    },
};

/// A column for a family: without options, with timestamps, and with SACK, too.
pub(crate) fn column(plane: &Plane, context: Context, family: Family) -> [String; 3] {
    let [client, server] = match family {
        Family::V4 => ["198.18.1.3:40000", "198.18.2.2:8080"],
        Family::V6 => ["[2001:db8:1::3]:40000", "[2001:db8:2::2]:8080"],
    }
    .map(address);
    let legs = PerSide::new((client, server), (server, client)).map(|(peer, local)| Leg { peer, local });
    let plan = Plan::identity();
    let slot = splice(plane, &plan, legs.client, legs.server, false);
    let bare = Packet {
        dst_mac: OUR_MAC[0],
        src_mac: PEER_MAC[0],
        ttl: 255,
        src: client,
        dst: server,
        seq: plan.peer[0],
        ack: plan.local[0],
        window: 500,
        ..Packet::blank()
    };
    let timed = Packet {
        options: usual(plan.clock[0], plan.clock[1]),
        ..bare.clone()
    };
    let sack = usual_with_sack(plan.clock[0], plan.clock[1], &[(bare.ack, bare.ack + 9)]);
    let with_sack = Packet {
        options: sack,
        ..bare.clone()
    };
    let cells = [bare, timed, with_sack].map(|packet| measure(plane, &packet.bytes(), context, "forwarded"));
    plane.end(legs);
    drop(slot);
    cells
}
