//! Routes of translated segments, and reasons for drops.

use longsplice_dataplane::Side;

use crate::support::{
    choose,
    flow::{Flow, Plan, REDIRECT, SHOT, leg},
    net::{HOST_BITS, NODAD, OUR_MAC, PEER_MAC},
    packet::*,
    reference::Reference,
};

use Side::Client;

fn each(test: impl Fn(&Flow)) {
    for make in [Flow::dormant, Flow::detached] {
        test(&make(Plan::default()));
    }
}

/// Returns the frame that the neighbor look-up will complete: translated, with the MAC addresses it came with.
fn without_macs(flow: &Flow, packet: &Packet) -> Vec<u8> {
    Packet {
        dst_mac: packet.dst_mac,
        src_mac: packet.src_mac,
        ..flow.reference(Client).translate(packet)
    }
    .bytes()
}

#[test]
fn an_unknown_neighbour_is_found_by_the_kernel() {
    each(|flow| {
        flow.net.del_neighbour(Side::Server);
        let packet = flow.peer_segment(Client);
        let expected = without_macs(flow, &packet);
        flow.ingress_gives(Client, &packet.bytes(), (REDIRECT, "forwarded", &expected));
    });
}

#[test]
fn a_far_end_on_this_host_is_reached() {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan {
            on_this_host: [false, true],
            ..Plan::default()
        });
        let far = leg(Side::Server).peer.ip();
        flow.net
            .ip(&format!("address add {far}/{HOST_BITS} dev lo {NODAD}"));
        let packet = flow.peer_segment(Client);
        let expected = without_macs(&flow, &packet);
        flow.ingress_gives(Client, &packet.bytes(), (REDIRECT, "forwarded", &expected));
    }
}

#[test]
fn without_any_route_it_is_dropped_by_name() {
    each(|flow| {
        flow.net.ip("route flush table main");
        let frame = flow.peer_segment(Client).bytes();
        flow.ingress_gives(Client, &frame, (SHOT, "drop_no_route", &frame));
    });
}

#[test]
fn a_route_that_forbids_it_is_obeyed() {
    for kind in ["unreachable", "blackhole", "prohibit"] {
        each(|flow| {
            let far = leg(Side::Server).peer.ip();
            flow.net.ip(&format!("route add {kind} {far}/{HOST_BITS}"));
            let frame = flow.peer_segment(Client).bytes();
            flow.ingress_gives(Client, &frame, (SHOT, "drop_no_route", &frame));
        });
    }
}

#[test]
fn without_forwarding_on_the_loopback_only_a_hint_helps() {
    let forbid = |flow: &Flow| {
        flow.net
            .sysctl(choose("ipv4/conf/lo/forwarding", "ipv6/conf/lo/forwarding"), "0")
    };
    let dormant = Flow::dormant(Plan::default());
    forbid(&dormant);
    let frame = dormant.peer_segment(Client).bytes();
    dormant.ingress_gives(Client, &frame, (SHOT, "drop_no_route", &frame));
    dormant.plane.keep_lo_forwarding().expect("set again");
    dormant.forwards(
        Client,
        &dormant.peer_segment(Client),
        &mut dormant.reference(Client),
    );
    drop(dormant);

    let detached = Flow::detached(Plan::default());
    forbid(&detached);
    let packet = detached.peer_segment(Client);
    let expected = without_macs(&detached, &packet);
    detached.ingress_gives(Client, &packet.bytes(), (REDIRECT, "forwarded", &expected));
}

#[test]
fn a_change_of_the_neighbour_is_followed() {
    each(|flow| {
        let packet = flow.peer_segment(Client);
        flow.forwards(Client, &packet, &mut flow.reference(Client));
        let dev = "b0";
        let far = leg(Side::Server).peer.ip();
        flow.net.ip(&format!(
            "neighbour replace {far} lladdr 02:00:00:00:09:09 dev {dev}"
        ));
        let moved = Reference {
            dst_mac: [2, 0, 0, 0, 9, 9],
            ..flow.reference(Client)
        };
        flow.forwards(Client, &packet, &mut moved.clone());
        flow.net.del_neighbour(Side::Server);
        let expected = without_macs(flow, &packet);
        flow.ingress_gives(Client, &packet.bytes(), (REDIRECT, "forwarded", &expected));
    });
}

#[test]
fn a_change_of_the_route_is_followed() {
    each(|flow| {
        let packet = flow.peer_segment(Client);
        flow.forwards(Client, &packet, &mut flow.reference(Client));
        // The route goes by a gateway on the other link.
        let (far, gateway) = (leg(Side::Server).peer.ip(), leg(Client).peer.ip());
        flow.net.ip(&format!("route add {far}/{HOST_BITS} via {gateway}"));
        let mut turned = Reference {
            src_mac: OUR_MAC[0],
            dst_mac: PEER_MAC[0],
            ..flow.reference(Client)
        };
        flow.forwards(Client, &packet, &mut turned);
        flow.net.ip(&format!("route replace blackhole {far}/{HOST_BITS}"));
        let frame = packet.bytes();
        flow.ingress_gives(Client, &frame, (SHOT, "drop_no_route", &frame));
    });
}

#[test]
fn what_a_rule_looks_at_is_not_mixed_up_within_a_tick() {
    each(|flow| {
        // One service class has a route of its own.
        let gateway = leg(Client).peer.ip();
        flow.net.ip(&format!(
            "rule add tos 0x10 lookup 7
             route add default via {gateway} table 7"
        ));
        let plain = flow.peer_segment(Client);
        let urgent = Packet {
            tos: 0x10,
            ..plain.clone()
        };
        for _ in 0..10 {
            flow.forwards(Client, &plain, &mut flow.reference(Client));
            let mut turned = Reference {
                src_mac: OUR_MAC[0],
                dst_mac: PEER_MAC[0],
                ..flow.reference(Client)
            };
            flow.forwards(Client, &urgent, &mut turned);
        }
    });
}
