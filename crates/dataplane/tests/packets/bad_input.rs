//! Foreign packets go up the stack untouched; inconsistent ones of a spliced flow are dropped by name.

use std::net::{Ipv4Addr, SocketAddr};

use longsplice_dataplane::{Family, Leg, PerSide, Seq, Side};

use crate::support::{
    FAMILY, choose,
    flow::{Flow, OK, Plan, SHOT},
    options::usual,
    packet::*,
};

/// Offset of the IP header's field for the next protocol.
const PROTOCOL: usize = choose(23, 20);

/// Returns frames that no flow owns, though most look nearly like one of `flow`'s.
fn foreign(flow: &Flow, side: Side) -> Vec<(&'static str, Vec<u8>)> {
    let ours = Packet {
        payload: pattern(30),
        ..flow.peer_segment(side)
    };
    let frame = ours.bytes();
    let mut vlan = frame.clone();
    vlan.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
    let other_port = Packet {
        src: SocketAddr::new(ours.src.ip(), ours.src.port() + 1),
        ..ours.clone()
    };
    let other_address = Packet {
        dst: flow.peer_segment(side.other()).dst,
        ..ours.clone()
    };
    let backwards = Packet {
        src: ours.dst,
        dst: ours.src,
        ..ours.clone()
    };
    let mut all = vec![
        ("UDP", ours.broken(PROTOCOL, &[17])),
        (
            "the other version of IP",
            ours.broken(12, choose(&[0x86, 0xdd], &[0x08, 0x00])),
        ),
        ("VLAN", vlan),
        ("ARP", ours.broken(12, &[0x08, 0x06])),
        ("another port", other_port.bytes()),
        ("another address", other_address.bytes()),
        ("backwards", backwards.bytes()),
        ("last fragment", ours.fragment_at(0xb9, false).bytes()),
        ("middle fragment", ours.fragment_at(0xb9, true).bytes()),
        ("version 5", ours.broken(14, &[0x55])),
        ("no TCP header", frame[..L4].to_vec()),
        ("half a TCP header", frame[..BODY - 1].to_vec()),
    ];
    all.extend(match FAMILY {
        Family::V4 => foreign_v4(&ours),
        Family::V6 => foreign_v6(&ours),
    });
    all
}

fn foreign_v4(ours: &Packet) -> Vec<(&'static str, Vec<u8>)> {
    let mut short = ours.broken(14, &[0x4f]);
    short.truncate(60);
    vec![
        ("IP header of 16 bytes", ours.broken(14, &[0x44])),
        ("options beyond the frame", short),
    ]
}

fn foreign_v6(ours: &Packet) -> Vec<(&'static str, Vec<u8>)> {
    let with = |extensions: Vec<(u8, Vec<u8>)>| Packet {
        extensions,
        ..ours.clone()
    };
    let padding = vec![0, 1, 4, 0, 0, 0, 0];
    let to_another = vec![0, 2, 1, 0, 0, 0, 0];
    let mut beyond = padding.clone();
    beyond[0] = 31;
    vec![
        (
            "to be routed by another",
            with(vec![(ROUTING, to_another)]).bytes(),
        ),
        ("authenticated", with(vec![(51, padding.clone())]).bytes()),
        (
            "extensions beyond the frame",
            with(vec![(HOP_BY_HOP, beyond)]).bytes(),
        ),
    ]
}

#[test]
fn an_address_of_ipv4_is_not_one_of_ipv6() {
    if FAMILY == Family::V4 {
        return;
    }
    // Tuple of a flow over IPv4, in a packet of IPv6 that no host may send.
    let plan = Plan::default();
    let v4 = |text: &str| -> SocketAddr { text.parse().expect("an address") };
    let legs = [
        ("198.18.1.2:40000", "198.18.1.1:80"),
        ("198.18.2.2:8080", "198.18.2.1:50000"),
    ]
    .map(|(peer, local)| Leg::new(v4(peer), v4(local)));
    let legs = PerSide::from(legs);
    let flow = Flow::track(plan.clone());
    let slot = flow.plane.take_slot().expect("a slot");
    let mut starts = plan.starts();
    (starts.client.leg, starts.server.leg) = (legs.client, legs.server);
    flow.plane
        .register(&slot, flow.plane.next_serial(), true, &starts)
        .expect("the flow is new");
    let mapped = |a: SocketAddr| {
        SocketAddr::new(
            a.ip()
                .to_string()
                .parse::<Ipv4Addr>()
                .expect("v4")
                .to_ipv6_mapped()
                .into(),
            a.port(),
        )
    };
    let packet = Packet {
        src: mapped(legs.client.peer),
        dst: mapped(legs.client.local),
        ..flow.peer_segment(Side::Client)
    };
    flow.ignores(Side::Client, &packet.bytes());
    flow.plane.end(legs);
}

fn each(test: impl Fn(&Flow, Side)) {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        for side in Side::BOTH {
            test(&flow, side);
        }
    }
}

#[test]
fn what_is_not_ours_is_not_touched() {
    for make in [Flow::track, Flow::drain, Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        for side in Side::BOTH {
            for (what, frame) in foreign(&flow, side) {
                println!("{what}");
                flow.ignores(side, &frame);
                // A frame of the peer's own tuple is the local socket's.
                if what != "backwards" {
                    flow.egress_gives(side, &frame, (OK, "", &frame));
                }
            }
        }
    }
}

/// Returns the packet with another length in its IP header: so many bytes behind the header.
fn with_length(packet: &Packet, len: u16) -> Vec<u8> {
    packet.broken(LENGTH.start, &(len + choose(20, 0)).to_be_bytes())
}

/// Returns segments of a flow whose lengths contradict each other.
fn malformed(flow: &Flow, side: Side) -> Vec<(&'static str, Vec<u8>)> {
    let plain = Packet {
        payload: pattern(30),
        options: usual(20_000, 3),
        ..flow.peer_segment(side)
    };
    let bare = flow.peer_segment(side);
    let mut truncated = plain.bytes();
    truncated.truncate(BODY + 6);
    vec![
        ("data offset 0", plain.with_data_offset(0)),
        ("data offset 4", plain.with_data_offset(4)),
        ("header longer than the frame", bare.with_data_offset(15)),
        ("header longer than the datagram", with_length(&plain, 31)),
        ("datagram of one byte", with_length(&bare, 1)),
        ("datagram shorter than both headers", with_length(&bare, 19)),
        ("datagram longer than the frame", with_length(&plain, 63)),
        (
            "datagram much longer than the frame",
            plain.broken(LENGTH.start, &[0xff, 0xff]),
        ),
        ("no length, and no super-packet", plain.bytes_without_length()),
        ("truncated in the options", truncated),
    ]
}

#[test]
fn contradicting_lengths_are_dropped_by_name() {
    each(|flow, side| {
        for (what, frame) in malformed(flow, side) {
            println!("{what}");
            flow.ingress_gives(side, &frame, (SHOT, "drop_malformed", &frame));
        }
    });
}

#[test]
fn in_control_mode_the_kernel_judges() {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let first = flow.peer_segment(side).fragment_at(0, true).bytes();
        let all = malformed(&flow, side).into_iter().map(|(_, frame)| frame);
        for frame in all.chain([first]) {
            flow.ingress_gives(side, &frame, (OK, "delivered", &frame));
        }
        let leg = flow.plane.leg(flow.slot(), side);
        assert_eq!([leg.cut, leg.rx_end], [Seq::new(flow.plan.peer[side]); 2]);
    }
}

#[test]
fn a_frame_for_another_station_is_not_ours() {
    each(|flow, side| {
        let frame = Packet {
            dst_mac: [2, 0, 0, 0, 9, 9],
            payload: pattern(10),
            ..flow.peer_segment(side)
        }
        .bytes();
        flow.ignores(side, &frame);
    });
}
