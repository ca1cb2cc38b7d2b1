//! VLAN tags (IEEE 802.1Q). A sub-interface sees none: the packet is an ordinary one, on an interface of its own. This
//! machine's kernel has no sub-interfaces, so the interface below is tested.

use longsplice_dataplane::{Framing, Side};

use crate::support::{
    flow::{Flow, Plan},
    packet::*,
    tap::{Offload, Tap},
};

use Side::Client;

/// Returns the frame of a segment with payload, tagged with a priority and a number.
fn tagged(packet: &Packet, priority: u8, number: u8) -> Vec<u8> {
    let mut frame = packet.bytes();
    frame.splice(12..12, [0x81, 0x00, priority << 5, number]);
    frame
}

fn wired() -> (Flow, [Tap; 2], Packet) {
    let flow = Flow::detached(Plan::default());
    flow.plane
        .attach(flow.ifindex(Client), Framing::Ethernet)
        .expect("attached");
    let taps = ["a1", "b1"].map(|name| Tap::new(flow.net.ifindex(name)));
    let packet = Packet {
        payload: pattern(100),
        ..flow.peer_segment(Client)
    };
    (flow, taps, packet)
}

#[test]
fn a_number_means_another_interface() {
    let (flow, taps, packet) = wired();
    let ((), counted) = flow.counted(|| {
        taps[0].send(&tagged(&packet, 0, 7), Offload::default());
        taps[1].nothing();
    });
    assert!(counted.is_empty(), "{counted:?}");
}

#[test]
fn a_priority_is_none_on_the_other_link() {
    let (flow, taps, packet) = wired();
    taps[0].send(&tagged(&packet, 5, 0), Offload::default());
    let expected = flow.reference(Client).translate(&packet);
    assert_frame(&taps[1].only(), &expected.bytes(), "without a tag");
}
