//! IP options and extension headers of a flow's segments: they hide nothing, and are kept.

use longsplice_dataplane::{Context, Family, Framing, Hook, Seq, Side};

use crate::support::{
    FAMILY,
    flow::{Flow, OK, Plan, REDIRECT, SHOT},
    options::{usual, usual_with_sack},
    packet::*,
    tap::{Offload, Tap},
};

use Side::Client;

/// Returns the packet with each option or extension header.
fn with_extras(packet: &Packet) -> Vec<Packet> {
    let v4 = |ip_options: &[u8]| Packet {
        ip_options: ip_options.to_vec(),
        ..packet.clone()
    };
    let v6 = |extensions: &[&(u8, Vec<u8>)]| Packet {
        extensions: extensions.iter().map(|&e| e.clone()).collect(),
        ..packet.clone()
    };
    let record_route = [&[7, 39, 4][..], &[0; 37]].concat();
    let padding = (HOP_BY_HOP, vec![0, 1, 4, 0, 0, 0, 0]);
    let many = (DESTINATIONS, padding.1.clone());
    let longer = (DESTINATIONS, [&[2, 1, 20][..], &[0; 20]].concat());
    let arrived = (ROUTING, [&[2, 4, 0, 0, 0, 0, 0][..], &[7; 16]].concat());
    let atomic = packet.fragment_at(0, false).extensions.remove(0);
    match FAMILY {
        Family::V4 => vec![v4(&[1, 1, 1, 0]), v4(&[148, 4, 0, 0]), v4(&record_route)],
        Family::V6 => vec![
            v6(&[&padding]),
            v6(&[&longer]),
            v6(&[&arrived]),
            v6(&[&atomic]),
            v6(&[&padding, &longer, &arrived, &atomic]),
            v6(&[&longer; 8]),
            v6(&[&many; 100]),
        ],
    }
}

fn segments(flow: &Flow, side: Side) -> Vec<Packet> {
    [
        (vec![], 0),
        (usual(90_000, 4), 77),
        (usual_with_sack(90_000, 4, &[(5, 6), (7, 8)]), 500),
    ]
    .into_iter()
    .flat_map(|(options, len)| {
        with_extras(&Packet {
            payload: pattern(len),
            options,
            urgent: 3,
            tos: 0xb9,
            ..flow.peer_segment(side)
        })
    })
    .collect()
}

#[test]
fn a_segment_with_them_is_translated() {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        for side in Side::BOTH {
            let mut reference = flow.reference(side);
            for packet in segments(&flow, side) {
                flow.forwards(side, &packet, &mut reference);
            }
        }
    }
}

#[test]
fn a_sum_of_the_device_is_kept() {
    let flow = Flow::detached(Plan::default());
    let context = Context {
        ifindex: flow.ifindex(Client),
        summed: true,
        ..Context::default()
    };
    let mut reference = flow.reference(Client);
    for packet in segments(&flow, Client) {
        let ran = flow.plane.run_in(Hook::Ingress, &packet.bytes(), context, 1);
        let ran = ran.expect("the device's sum is still right");
        assert_eq!(ran.verdict, REDIRECT);
        assert_frame(&ran.packet, &reference.translate(&packet).bytes(), "summed up");
    }
}

#[test]
fn a_checksum_is_left_to_the_device() {
    let flow = Flow::detached(Plan::default());
    flow.plane
        .attach(flow.ifindex(Client), Framing::Ethernet)
        .expect("attached");
    let taps = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
    let mut reference = flow.reference(Client);
    for packet in segments(&flow, Client) {
        let offload = Offload {
            needs_checksum: true,
            ..Offload::default()
        };
        taps[0].send(&packet.bytes_for_offload(), offload);
        let expected = reference.translate(&packet).bytes_for_offload();
        let got = taps[1].only_with_offload();
        assert!(got.0.needs_checksum);
        assert_frame(&got.1, &expected, "across");
    }
}

#[test]
fn in_the_drain_the_local_copy_is_trimmed_behind_them() {
    let plain = Flow::track(Plan::default()).peer_segment(Client);
    for n in 0..with_extras(&plain).len() {
        let flow = Flow::track(Plan::default());
        flow.drain_behind(Side::Server, 50);
        let packet = with_extras(&Packet {
            payload: pattern(300),
            options: usual(flow.plan.clock[0] + 1, 2),
            ..flow.peer_segment(Client)
        })
        .swap_remove(n);
        let local = Packet {
            payload: vec![],
            ..packet.clone()
        };
        flow.ingress_gives(Client, &packet.bytes(), (OK, "duplicated", &local.bytes()));
    }
}

#[test]
fn what_is_held_says_where_tcp_begins() {
    let flow = Flow::detached(Plan::default());
    let slot = flow.plane.take_slot().expect("a slot");
    let serial = flow.raw_record(Client).expect("a record").serial;
    flow.plane
        .promote(&slot, serial, crate::support::flow::legs())
        .expect("attached");
    slot.set_trap(Client, Some(Seq::new(flow.plan.peer[0]) + 1));
    let mut events = flow.plane.events().expect("the ring");
    for packet in segments(&flow, Client)
        .into_iter()
        .filter(|p| !p.payload.is_empty())
    {
        let frame = packet.bytes();
        flow.ingress_gives(Client, &frame, (SHOT, "queued", &frame));
        let held = events.take().expect("the ring").pop().expect("it is held");
        assert_eq!((held.tcp, held.packet), (packet.l4(), frame.clone()));
        assert_eq!(frame[held.payload], packet.payload);
    }
}

#[test]
fn a_route_that_a_packet_brings_along_is_refused() {
    if FAMILY == Family::V6 {
        return; // bad_input tests it: a packet that is to be routed by another host is not ours
    }
    for kind in [131, 137] {
        for options in [
            vec![kind, 7, 8, 198, 18, 9, 9, 0],
            vec![1, 148, 4, 0, 0, kind, 7, 4, 198, 18, 9, 9],
        ] {
            for make in [Flow::dormant, Flow::detached] {
                let flow = make(Plan::default());
                let frame = Packet {
                    ip_options: options.clone(),
                    ..flow.peer_segment(Client)
                }
                .bytes();
                flow.ingress_gives(Client, &frame, (SHOT, "drop_ip_options", &frame));
            }
            let flow = Flow::track(Plan::default());
            let frame = Packet {
                ip_options: options.clone(),
                ..flow.peer_segment(Client)
            }
            .bytes();
            flow.ingress_gives(Client, &frame, (OK, "delivered", &frame));
        }
    }
}

/// Returns a super-packet of over 64 kB in the kernel's form.
fn jumbo(packet: &Packet) -> Packet {
    Packet {
        extensions: vec![(HOP_BY_HOP, vec![0, 0xc2, 4, 0, 1, 0x11, 0x70])],
        ..packet.clone()
    }
}

#[test]
fn a_super_packet_of_over_64_kb_is_translated_and_trimmed() {
    if FAMILY == Family::V4 {
        return; // super_packets tests it: it has no length at all
    }
    let flow = Flow::track(Plan::default());
    let context = Context {
        ifindex: flow.ifindex(Client),
        gso_size: 500,
        gso_segs: 6,
        ..Context::default()
    };
    let big = jumbo(&Packet {
        payload: pattern(2900),
        ..flow.peer_segment(Client)
    });
    flow.drain_behind(Side::Server, 50);
    let frame = big.bytes_without_length();
    let ran = flow
        .plane
        .run_in(Hook::Ingress, &frame, context, 1)
        .expect("it runs");
    let local = Packet {
        payload: vec![],
        extensions: vec![(HOP_BY_HOP, vec![0, 1, 4, 0, 0, 0, 0])],
        ..big.clone()
    };
    assert_eq!(ran.verdict, OK);
    assert_frame(&ran.packet, &local.bytes(), "the local copy has a length");
    flow.finish();
    let ran = flow
        .plane
        .run_in(Hook::Ingress, &frame, context, 1)
        .expect("it runs");
    let expected = flow.reference(Client).translate(&big).bytes_without_length();
    assert_eq!(ran.verdict, REDIRECT);
    assert_frame(&ran.packet, &expected, "the far end's has none");
}
