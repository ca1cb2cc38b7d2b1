//! FINAL, egress: all segments of a parked or closed socket are dropped, and a program that would connect is refused at
//! once.

use longsplice_dataplane::{Framing, Side};

use crate::support::{
    choose,
    flow::{Flow, Plan, REDIRECT, SHOT, leg},
    options::{Opt, usual, write},
    packet::*,
};

fn each(test: impl Fn(&Flow, Side)) {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        for side in Side::BOTH {
            test(&flow, side);
        }
    }
}

#[test]
fn what_a_parked_socket_emits_is_dropped() {
    each(|flow, side| {
        for flags in [ACK, ACK | FIN, RST, RST | ACK, ACK | PSH, SYN | ACK, 0] {
            for len in [0, 10] {
                let frame = Packet {
                    flags,
                    payload: pattern(len),
                    options: usual(1, 2),
                    ..flow.local_segment(side)
                }
                .bytes();
                flow.egress_gives(side, &frame, (SHOT, "drop_parked", &frame));
            }
        }
        for frame in [
            Packet {
                fragment: 0x2000,
                ..flow.local_segment(side)
            }
            .bytes(),
            flow.local_segment(side).with_data_offset(1),
        ] {
            flow.egress_gives(side, &frame, (SHOT, "drop_parked", &frame));
        }
    });
}

#[test]
fn a_local_syn_is_answered_with_a_reset() {
    each(|flow, side| {
        for (len, flags, acked) in [
            (0, SYN, 1),
            (0, SYN | ECE | CWR, 1),
            (8, SYN, 9),
            (0, SYN | FIN, 2),
        ] {
            for seq in [7, u32::MAX] {
                let syn = Packet {
                    seq,
                    ack: 0,
                    flags,
                    window: 64_240,
                    payload: pattern(len),
                    options: write(&[
                        Opt::Other(2, vec![5, 0xb4]),
                        Opt::Other(4, vec![]),
                        Opt::Timestamps(7, 0),
                    ]),
                    ..flow.local_segment(side)
                };
                let reset = Packet {
                    dst_mac: syn.src_mac,
                    src_mac: syn.dst_mac,
                    src: syn.dst,
                    dst: syn.src,
                    seq: 0,
                    ack: seq.wrapping_add(acked),
                    flags: RST | ACK,
                    window: 0,
                    ..syn.clone()
                };
                flow.egress_gives(side, &syn.bytes(), (REDIRECT, "syn_refused", &reset.bytes()));
            }
        }
    });
}

#[test]
fn connecting_onto_a_live_flow_is_refused_at_once() {
    let flow = Flow::detached(Plan::default());
    flow.plane
        .attach(flow.ifindex(Side::Server), Framing::Ethernet)
        .expect("attached");
    let socket = socket2::Socket::new(
        choose(socket2::Domain::IPV4, socket2::Domain::IPV6),
        socket2::Type::STREAM,
        None,
    )
    .expect("a socket");
    socket.bind(&leg(Side::Server).local.into()).expect("bound");
    let begun = std::time::Instant::now();
    let error = socket
        .connect_timeout(&leg(Side::Server).peer.into(), std::time::Duration::from_secs(3))
        .expect_err("refused");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(begun.elapsed() < std::time::Duration::from_secs(1));
    // The flow did not notice.
    flow.forwards(
        Side::Client,
        &flow.peer_segment(Side::Client),
        &mut flow.reference(Side::Client),
    );
}
