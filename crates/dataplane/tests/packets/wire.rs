//! Runs the programs on interfaces: frames are sent into one and come out of the other, in every state of a checksum.

use std::net::SocketAddr;

use longsplice_dataplane::{Framing, Mode, Side};

use crate::support::{
    flow::{Flow, Plan, leg},
    options::{usual, usual_with_sack},
    packet::*,
    tap::{Offload, Tap},
};

use Side::{Client, Server};

/// Returns a flow with the programs attached on both sides, and taps at both ends.
fn wired(make: fn(Plan) -> Flow) -> (Flow, [Tap; 2]) {
    let flow = make(Plan::default());
    for side in Side::BOTH {
        flow.plane
            .attach(flow.ifindex(side), Framing::Ethernet)
            .expect("attached");
    }
    let taps = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
    (flow, taps)
}

fn segments(flow: &Flow, side: Side) -> Vec<Packet> {
    let base = flow.peer_segment(side);
    let now = flow.plan.clock[side];
    [0, 1, 999, 1400]
        .into_iter()
        .flat_map(|len| {
            [
                vec![],
                usual(now + 1, 4),
                usual_with_sack(now + 1, 4, &[(5, 6), (7, 8)]),
            ]
            .map(|options| Packet {
                payload: pattern(len),
                options,
                ..base.clone()
            })
        })
        .collect()
}

#[test]
fn a_segment_crosses() {
    for make in [Flow::dormant, Flow::detached] {
        let (flow, taps) = wired(make);
        for side in Side::BOTH {
            let mut reference = flow.reference(side);
            for packet in segments(&flow, side) {
                taps[side].send(&packet.bytes(), Offload::default());
                let expected = reference.translate(&packet);
                let got = taps[side.other()].only_with_offload();
                assert_eq!(got.0, Offload::default());
                assert_frame(&got.1, &expected.bytes(), "across");
            }
        }
    }
}

#[test]
fn a_segment_crosses_whose_checksum_is_left_to_the_device() {
    for make in [Flow::dormant, Flow::detached] {
        let (flow, taps) = wired(make);
        for side in Side::BOTH {
            let mut reference = flow.reference(side);
            for packet in segments(&flow, side) {
                let offload = Offload {
                    needs_checksum: true,
                    ..Offload::default()
                };
                taps[side].send(&packet.bytes_for_offload(), offload);
                let expected = reference.translate(&packet);
                let got = taps[side.other()].only_with_offload();
                assert!(got.0.needs_checksum);
                assert_frame(&got.1, &expected.bytes_for_offload(), "across");
            }
        }
    }
}

#[test]
fn a_super_packet_crosses() {
    for make in [Flow::dormant, Flow::detached] {
        let (flow, taps) = wired(make);
        for side in Side::BOTH {
            let packet = Packet {
                payload: pattern(30_000),
                options: usual(flow.plan.clock[side] + 1, 4),
                ..flow.peer_segment(side)
            };
            let offload = Offload {
                needs_checksum: true,
                gso_size: 1000,
            };
            taps[side].send(&packet.bytes_for_offload(), offload);
            let expected = flow.reference(side).translate(&packet);
            let got = taps[side.other()].only_with_offload();
            assert_eq!((got.0.needs_checksum, got.0.gso_size), (true, 1000));
            assert_frame(&got.1, &expected.bytes_for_offload(), "across");
        }
    }
}

#[test]
fn a_segment_waits_for_a_neighbour() {
    let (flow, taps) = wired(Flow::detached);
    flow.net.del_neighbour(Server);
    let packet = Packet {
        payload: pattern(10),
        ..flow.peer_segment(Client)
    };
    taps[0].send(&packet.bytes(), Offload::default());
    taps[1].nothing();
    flow.net.add_neighbour(Server);
    let expected = flow.reference(Client).translate(&packet);
    assert_frame(&taps[1].only(), &expected.bytes(), "late");
}

#[test]
fn the_far_copy_of_the_drain_waits_for_a_neighbour() {
    let (flow, taps) = wired(Flow::track);
    flow.plane
        .attach(flow.ifindex(Client), Framing::Ethernet)
        .expect("attached");
    let old = Packet {
        payload: pattern(50),
        ..flow.peer_segment(Server)
    };
    flow.ingress(Server, &old.bytes());
    flow.transition(Mode::Track, Mode::Drain);
    flow.net.del_neighbour(Server);
    let packet = Packet {
        payload: pattern(10),
        ..flow.peer_segment(Client)
    };
    let ((), counted) = flow.counted(|| {
        taps[0].send(&packet.bytes(), Offload::default());
        taps[1].nothing();
    });
    assert_eq!(counted["duplicated"], 1);
    flow.net.add_neighbour(Server);
    let expected = flow.reference(Client).translate(&packet);
    assert_frame(&taps[1].only(), &expected.bytes(), "late");
}

#[test]
fn the_far_copy_of_the_drain_is_a_whole_super_packet() {
    let (flow, taps) = wired(Flow::track);
    let old = Packet {
        payload: pattern(50),
        ..flow.peer_segment(Server)
    };
    flow.ingress(Server, &old.bytes());
    flow.transition(Mode::Track, Mode::Drain);
    let packet = Packet {
        payload: pattern(10_000),
        options: usual(flow.plan.clock[0] + 1, 4),
        ..flow.peer_segment(Client)
    };
    let offload = Offload {
        needs_checksum: true,
        gso_size: 1000,
    };
    let ((), counted) = flow.counted(|| taps[0].send(&packet.bytes_for_offload(), offload));
    assert_eq!(counted["duplicated"], 1);
    let expected = flow.reference(Client).translate(&packet);
    let got = taps[1].only_with_offload();
    assert_eq!(got.0, offload);
    assert_frame(&got.1, &expected.bytes_for_offload(), "the far copy");
}

#[test]
fn nothing_of_a_parked_socket_gets_out() {
    let (flow, taps) = wired(Flow::dormant);
    // No socket has this tuple: the kernel would answer with a reset if it got there.
    let stranger = Packet {
        src: SocketAddr::new(leg(Client).peer.ip(), 41000),
        ..flow.peer_segment(Client)
    };
    taps[0].send(&stranger.bytes(), Offload::default());
    let reset = taps[0].only();
    assert_eq!(reset[L4 + 13] & RST, RST, "a stranger is told");
    taps[0].send(&flow.peer_segment(Client).bytes(), Offload::default());
    taps[0].nothing();
}
