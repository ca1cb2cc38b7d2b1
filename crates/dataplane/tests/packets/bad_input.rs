//! What is none of ours goes up the stack untouched; what contradicts itself on a spliced flow is dropped by name.

use longsplice_dataplane::Side;

use crate::support::{
    flow::{Flow, OK, Plan, SHOT},
    options::usual,
    packet::*,
};

/// Frames that no flow owns, though most look nearly like one of `flow`'s.
fn foreign(flow: &Flow, side: Side) -> Vec<(&'static str, Vec<u8>)> {
    let ours = Packet {
        payload: pattern(30),
        ..flow.peer_segment(side)
    };
    let frame = ours.bytes();
    let mut vlan = frame.clone();
    vlan.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
    let mut six = frame[..14].to_vec();
    six[12..14].copy_from_slice(&[0x86, 0xdd]);
    six.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
    six.extend([0; 52]);
    let other_port = Packet {
        src: std::net::SocketAddrV4::new(*ours.src.ip(), ours.src.port() + 1),
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
    let fragment = Packet {
        fragment: 0x00b9,
        ..ours.clone()
    };
    let middle_fragment = Packet {
        fragment: 0x20b9,
        ..ours.clone()
    };
    vec![
        ("UDP", ours.broken(23, &[17])),
        ("IPv6", six),
        ("VLAN", vlan),
        ("ARP", ours.broken(12, &[0x08, 0x06])),
        ("another port", other_port.bytes()),
        ("another address", other_address.bytes()),
        ("backwards", backwards.bytes()),
        ("last fragment", fragment.bytes()),
        ("middle fragment", middle_fragment.bytes()),
        ("version 5", ours.broken(14, &[0x55])),
        ("IP header of 16 bytes", ours.broken(14, &[0x44])),
        ("options beyond the frame", {
            let mut short = ours.broken(14, &[0x4f]);
            short.truncate(60);
            short
        }),
        ("no TCP header", frame[..34].to_vec()),
        ("half a TCP header", frame[..53].to_vec()),
    ]
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
                // What a peer would see as its own is the local socket's.
                if what != "backwards" {
                    flow.egress_gives(side, &frame, (OK, "", &frame));
                }
            }
        }
    }
}

/// Segments of a flow whose lengths contradict each other.
fn malformed(flow: &Flow, side: Side) -> Vec<(&'static str, Vec<u8>)> {
    let plain = Packet {
        payload: pattern(30),
        options: usual(20_000, 3),
        ..flow.peer_segment(side)
    };
    let bare = flow.peer_segment(side);
    let mut truncated = plain.bytes();
    truncated.truncate(60);
    vec![
        ("data offset 0", plain.broken(46, &[0x00])),
        ("data offset 4", plain.broken(46, &[0x40])),
        ("header longer than the frame", bare.broken(46, &[0xf0])),
        ("header longer than the datagram", plain.broken(16, &[0, 51])),
        ("datagram shorter than its IP header", plain.broken(16, &[0, 19])),
        ("datagram shorter than both headers", bare.broken(16, &[0, 39])),
        ("datagram longer than the frame", plain.broken(16, &[0, 83])),
        (
            "datagram much longer than the frame",
            plain.broken(16, &[0xff, 0xff]),
        ),
        ("no total length, and no super-packet", plain.broken(16, &[0, 0])),
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
fn a_first_fragment_is_dropped_by_name() {
    each(|flow, side| {
        let frame = Packet {
            fragment: 0x2000,
            payload: pattern(64),
            ..flow.peer_segment(side)
        }
        .bytes();
        flow.ingress_gives(side, &frame, (SHOT, "drop_fragment", &frame));
    });
}

/// A segment of the flow with four bytes of IP options.
fn with_ip_options(flow: &Flow, side: Side) -> Vec<u8> {
    let mut frame = flow.peer_segment(side).bytes();
    frame[14] = 0x46;
    frame.splice(34..34, [1, 1, 1, 0]);
    frame
}

#[test]
fn ip_options_are_dropped_by_name() {
    each(|flow, side| {
        let frame = with_ip_options(flow, side);
        flow.ingress_gives(side, &frame, (SHOT, "drop_ip_options", &frame));
    });
}

#[test]
fn in_control_mode_the_kernel_judges() {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let fragment = Packet {
            fragment: 0x2000,
            ..flow.peer_segment(side)
        }
        .bytes();
        let all = malformed(&flow, side).into_iter().map(|(_, frame)| frame);
        for frame in all.chain([fragment, with_ip_options(&flow, side)]) {
            flow.ingress_gives(side, &frame, (OK, "delivered", &frame));
        }
        let leg = flow.plane.leg(flow.slot(), side);
        assert_eq!(
            (leg.cut, leg.rx_end),
            (flow.plan.peer[side.index()], flow.plan.peer[side.index()])
        );
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
