//! VLAN tags (IEEE 802.1Q). A sub-interface sees none: the packet is an ordinary one, on an interface of its own. This
//! machine's kernel has no sub-interfaces, so the interface below is tested.

use longsplice_dataplane::{Framing, Side};

use super::{
    fragments::{pieces, segment, with_id},
    icmp::{error, forwarded, translated},
};
use crate::support::{
    flow::{Flow, Plan},
    icmp::TOO_BIG,
    packet::*,
    tap::{Offload, Tap},
};

use Side::{Client, Server};

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
        taps[0].send(&tagged(&packet.bytes(), 0, 7), Offload::default());
        taps[1].nothing();
    });
    assert!(counted.is_empty(), "{counted:?}");
}

#[test]
fn a_priority_is_none_on_the_other_link() {
    let (flow, taps, packet) = wired();
    taps[0].send(&tagged(&packet.bytes(), 5, 0), Offload::default());
    let expected = flow.reference(Client).translate(&packet);
    assert_frame(&taps[1].only(), &expected.bytes(), "without a tag");
}

#[test]
fn errors_and_later_fragments_with_a_priority_are_translated_as_well() {
    let (flow, taps, _) = wired();
    let (sent, got) = forwarded(&flow, Server);
    let told = error(&flow, Client, TOO_BIG, got);
    let expected = translated(&flow, Client, &told, &sent).bytes();
    let (got, counted) = flow.counted(|| {
        taps[0].send(&tagged(&told.bytes(), 5, 0), Offload::default());
        // The stack sends frames of its own there, of IPv6.
        std::iter::from_fn(|| taps[1].any())
            .find(|f| f.len() == expected.len() && upper(f) == upper(&expected))
    });
    assert_eq!(counted.get("icmp_translated"), Some(&1), "{counted:?}");
    assert_frame(&got.expect("an error"), &expected, "the error");

    let whole = segment(&flow, Client);
    let expected = pieces(&flow.reference(Client).translate(&whole));
    let mut first = None;
    for (i, piece) in pieces(&whole).iter().enumerate() {
        taps[0].send(&tagged(piece, 5, 0), Offload::default());
        let got = taps[1].only();
        let like = first.get_or_insert_with(|| got.clone());
        assert_frame(&got, &with_id(&expected[i], like), &format!("piece {i}"));
    }
}
