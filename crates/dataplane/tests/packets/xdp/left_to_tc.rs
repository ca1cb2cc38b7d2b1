//! XDP leaves unusual packets to tc, unchanged.

use longsplice_dataplane::{Family, Hook, PerSide, Seq, Side};

use super::{
    super::identity::{same_ends, segment, splice},
    SERIAL, detached, records,
};
use crate::support::{
    FAMILY, choose,
    flow::{Flow, Plan, REDIRECT, SHOT, XDP_PASS, XDP_REDIRECT, leg},
    net::{HOST_BITS, NODAD},
    options::usual,
    packet::*,
};

use Side::{Client, Server};

/// Asserts that XDP leaves a frame unchanged, and counts only that; `counter` may be none, "".
#[track_caller]
fn passes(flow: &Flow, side: Side, frame: &[u8], counter: &str) {
    let before = records(flow);
    flow.xdp_gives(side, frame, (XDP_PASS, counter, frame));
    assert_eq!(records(flow), before);
}

/// Asserts that a segment is passed, and that tc forwards it as if XDP had not been there.
#[track_caller]
fn tc_forwards(flow: &Flow, side: Side, packet: &Packet) {
    passes(flow, side, &packet.bytes(), "passed_xdp");
    flow.forwards(side, packet, &mut flow.reference(side));
}

#[test]
fn what_is_none_of_a_detached_flow_is_not_even_counted() {
    let flow = detached(Plan::default());
    let packet = Packet {
        payload: pattern(100),
        ..flow.peer_segment(Client)
    };
    let stranger = Packet {
        src: leg(Server).peer,
        ..packet.clone()
    };
    let mut tagged = packet.bytes();
    tagged.splice(12..12, [0x81, 0x00, 0, 7]);
    let mut arp = packet.bytes();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let protocol = choose(23, 20);
    for frame in [
        stranger.bytes(),
        tagged,
        arp,
        packet.broken(protocol, &[17]),
        packet.broken(protocol, &[choose(1, 58)]),
        packet.broken(14, &[0x56]),
        packet.fragment_at(0, true).bytes(),
        packet.fragment_at(3, false).bytes(),
        packet.bytes()[..BODY - 1].to_vec(),
        packet.bytes()[..14].to_vec(),
    ] {
        passes(&flow, Client, &frame, "");
    }
    let between = Packet {
        ip_options: vec![1; 4],
        extensions: vec![(DESTINATIONS, vec![0, 1, 4, 0, 0, 0, 0])],
        ..packet.clone()
    };
    passes(&flow, Client, &between.bytes(), "");

    let dormant = Flow::dormant(Plan::default());
    dormant.set_exit(Server, true);
    passes(&dormant, Client, &dormant.peer_segment(Client).bytes(), "");
}

#[test]
fn what_is_unusual_of_a_flow_is_left_to_tc() {
    let flow = detached(Plan::default());
    let base = Packet {
        payload: pattern(100),
        ..flow.peer_segment(Client)
    };
    for flags in [SYN, SYN | ACK, RST, RST | ACK, FIN | ACK, PSH, 0, ACK | 0x20] {
        let packet = Packet {
            flags,
            ..base.clone()
        };
        passes(&flow, Client, &packet.bytes(), "passed_xdp");
    }
    for ttl in [0, 1, 32] {
        passes(
            &flow,
            Client,
            &Packet { ttl, ..base.clone() }.bytes(),
            "passed_xdp",
        );
    }
    for (seq, ack) in [
        (base.seq.wrapping_sub(1 << 20), base.ack),
        (base.seq.wrapping_add(1 << 20), base.ack),
        (base.seq, base.ack.wrapping_sub(1 << 24)),
    ] {
        let packet = Packet {
            seq,
            ack,
            ..base.clone()
        };
        passes(&flow, Client, &packet.bytes(), "passed_xdp");
    }
    // Seen because the interface is promiscuous.
    for dst_mac in [[2, 0, 0, 0, 9, 9], [0xff; 6]] {
        let packet = Packet {
            dst_mac,
            ..base.clone()
        };
        passes(&flow, Client, &packet.bytes(), "passed_xdp");
    }
    // Lengths that contradict each other.
    let bare = flow.peer_segment(Client);
    let too_long = base.broken(LENGTH.start, &2000u16.to_be_bytes());
    for frame in [too_long, base.with_data_offset(4), bare.with_data_offset(15)] {
        passes(&flow, Client, &frame, "passed_xdp");
    }
}

/// A segment that would move more of the state than the next bytes do must be verified.
#[test]
fn what_was_spoilt_is_left_to_tc() {
    let flow = detached(Plan::default());
    let base = flow.peer_segment(Client);
    let behind_a_gap = flow.timed(Client, 5, flow.later(Client, 500, 700, 0));
    let far = flow.later(Server, 0, 50, 0).bytes();
    assert_eq!(flow.run(Hook::Xdp, Server, &far).verdict, XDP_REDIRECT);
    let ack = flow.later(Client, 0, 0, 50);
    for (packet, at) in [
        (&behind_a_gap, BODY + 600),
        (&behind_a_gap, L4 + 6),
        (&ack, L4 + 11),
    ] {
        let mut frame = packet.bytes();
        frame[at] ^= 2;
        passes(&flow, Client, &frame, "passed_xdp");
        flow.ingress_gives(Client, &frame, (SHOT, "drop_checksum", &frame));
    }
    if FAMILY == Family::V4 {
        let mut frame = base.bytes();
        frame[18] ^= 1;
        passes(&flow, Client, &frame, "passed_xdp");
    }
    let reference = &mut flow.reference(Client);
    for packet in [&ack, &behind_a_gap] {
        let expected = reference.translate(packet).bytes();
        flow.xdp_gives(
            Client,
            &packet.bytes(),
            (XDP_REDIRECT, "forwarded_xdp", &expected),
        );
    }
}

#[test]
fn a_checksum_that_is_left_to_a_device_is_left_to_tc() {
    let flow = detached(Plan::default());
    for len in [0, 1, 100, 1400] {
        for options in [vec![], usual(flow.plan.clock[0], 4)] {
            for side in Side::BOTH {
                let packet = Packet {
                    payload: pattern(len),
                    options: options.clone(),
                    ..flow.peer_segment(side)
                };
                passes(&flow, side, &packet.bytes_for_offload(), "csum_partial_xdp");
            }
        }
    }
}

#[test]
fn a_trap_that_is_met_is_left_to_tc() {
    let flow = detached(Plan::default());
    let start = flow.plan.peer[0];
    let slot = flow.plane.take_slot().expect("a free slot");
    let legs = PerSide::from_fn(leg);
    flow.plane.promote(&slot, SERIAL, legs).expect("attached");
    slot.set_trap(Client, Some(Seq::new(start) + 101));
    flow.plane
        .demote(
            &slot,
            legs,
            PerSide::new(flow.ifindex(Server), flow.ifindex(Client)),
        )
        .expect("demoted");
    let packet = |len| Packet {
        payload: pattern(len),
        ..flow.peer_segment(Client)
    };
    passes(&flow, Client, &packet(101).bytes(), "passed_xdp");
    // A segment that ends before it is not, nor one of the other side.
    for (side, packet) in [(Client, packet(100)), (Server, flow.peer_segment(Server))] {
        let expected = flow.reference(side).translate(&packet).bytes();
        flow.xdp_gives(side, &packet.bytes(), (XDP_REDIRECT, "forwarded_xdp", &expected));
    }
}

#[test]
fn what_has_no_way_out_of_xdp_is_left_to_tc() {
    let packet = |flow: &Flow| Packet {
        payload: pattern(100),
        ..flow.peer_segment(Client)
    };
    let flow = detached(Plan::default());
    flow.set_exit(Server, false);
    tc_forwards(&flow, Client, &packet(&flow));
    assert_eq!(flow.plane.direction(leg(Client)).expect("it lives").bytes, 100);

    let flow = detached(Plan::default());
    flow.net.del_neighbour(Server);
    let frame = packet(&flow).bytes();
    passes(&flow, Client, &frame, "passed_xdp");

    let flow = detached(Plan::default());
    flow.net.ip("route flush table main");
    let frame = packet(&flow).bytes();
    passes(&flow, Client, &frame, "passed_xdp");

    let flow = detached(Plan::default());
    flow.net.ip("link set b0 mtu 1300");
    let long = Packet {
        payload: pattern(1400),
        ..flow.peer_segment(Client)
    };
    passes(&flow, Client, &long.bytes(), "passed_xdp");

    let flow = detached(Plan {
        on_this_host: [false, true],
        ..Plan::default()
    });
    let far = leg(Server).peer.ip();
    flow.net
        .ip(&format!("address add {far}/{HOST_BITS} dev lo {NODAD}"));
    passes(&flow, Client, &packet(&flow).bytes(), "passed_xdp");
}

/// XDP notes nothing of a segment that it leaves to tc, which counts those out of order of a released flow.
#[test]
fn what_is_left_to_tc_is_not_taken_for_a_repetition() {
    let flow = detached(Plan::default());
    flow.set_exit(Server, false);
    let (plan, legs) = (Plan::identity(), same_ends());
    splice(&flow, &plan, legs);
    let next = segment(&plan, legs, Client, usual(plan.clock[0], plan.clock[1]));
    let counted = || {
        let counts = flow.plane.disorders().expect("a map");
        counts.iter().map(|(_, _, count)| count).sum::<u32>()
    };
    // Flows of other tests were counted here.
    let before = counted();
    let seen = |packet: &Packet| {
        let frame = packet.bytes();
        flow.xdp_gives(Client, &frame, (XDP_PASS, "passed_xdp", &frame));
        assert_eq!(flow.ingress(Client, &frame).verdict, REDIRECT);
        counted() - before
    };
    assert_eq!(seen(&next), 0, "it is in order");
    assert_eq!(seen(&next), 1, "it is repeated");
    flow.plane.end(legs);
}
