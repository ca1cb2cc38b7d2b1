//! The XDP program on interfaces: attached, adopted, detached; and its treatment of frames that come over a wire.

use std::process::Command;

use longsplice_dataplane::{Dataplane, Framing, Side, XdpError, XdpMode};
use strum::VariantArray;

use crate::support::{
    flow::{Flow, Plan},
    options::usual,
    packet::*,
    plane::{Plane, options},
    tap::{Offload, Tap},
};

use Side::{Client, Server};

/// Returns the word of `ip link` for XDP on an interface: "xdp", "xdpgeneric", or nothing.
fn xdp_on(device: &str) -> String {
    let shown = Command::new("ip").args(["link", "show", device]).output();
    let text = String::from_utf8(shown.expect("ip").stdout).expect("text");
    text.split_whitespace()
        .find(|word| ["xdp", "xdpgeneric"].contains(word))
        .unwrap_or_default()
        .to_owned()
}

/// Attaches tc and XDP to both interfaces; frames can leave by both, since the ends take them.
fn wired(mode: XdpMode) -> (Flow, [Tap; 2]) {
    let flow = Flow::detached(Plan::default());
    for side in Side::BOTH {
        flow.net.take_frames(side, true);
        let ifindex = flow.ifindex(side);
        flow.plane.attach(ifindex, Framing::Ethernet).expect("attached");
        flow.plane.attach_xdp(ifindex, mode).expect("attached");
        assert!(flow.plane.open_exit(ifindex, mode).expect("told"));
    }
    flow.plane.spoil();
    let taps = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
    (flow, taps)
}

#[test]
fn a_segment_crosses_in_xdp_as_it_does_at_tc() {
    XdpMode::VARIANTS.iter().copied().for_each(crosses);
}

fn crosses(mode: XdpMode) {
    let (flow, taps) = wired(mode);
    for side in Side::BOTH {
        let mut reference = flow.reference(side);
        for len in [0, 1, 999, 1400] {
            let packet = Packet {
                payload: pattern(len),
                options: usual(flow.plan.clock[side] + 1, 4),
                ..flow.peer_segment(side)
            };
            let ((), counted) = flow.counted(|| {
                taps[side].send(&packet.bytes(), Offload::default());
                let expected = reference.translate(&packet);
                let got = taps[side.other()].only();
                assert_frame(&got, &expected.bytes(), "across");
            });
            assert_eq!(counted, [("forwarded_xdp".to_owned(), 1)].into());
        }
    }
}

#[test]
fn what_xdp_leaves_reaches_tc() {
    for &mode in XdpMode::VARIANTS {
        let (flow, taps) = wired(mode);
        for side in Side::BOTH {
            let mut reference = flow.reference(side);
            for (options, flags) in [
                (vec![], ACK),
                (vec![], ACK | FIN),
                (usual(flow.plan.clock[side] + 1, 4), ACK | FIN),
            ] {
                let packet = Packet {
                    ttl: 64,
                    urgent: 3,
                    flags: if flags == ACK { ACK | 0x20 } else { flags },
                    options,
                    ..flow.peer_segment(side)
                };
                let ((), counted) = flow.counted(|| {
                    taps[side].send(&packet.bytes(), Offload::default());
                    let expected = reference.translate(&packet);
                    let got = taps[side.other()].only();
                    assert_frame(&got, &expected.bytes(), "across");
                });
                let expected = ["forwarded", "passed_xdp"].map(|name| (name.to_owned(), 1));
                assert_eq!(counted, expected.into(), "{mode}");
            }
        }
    }
}

/// Socket data on veth comes without a checksum. XDP cannot compute it; at tc the kernel still can.
#[test]
fn an_unfinished_checksum_reaches_tc_unfinished() {
    let (flow, taps) = wired(XdpMode::Native);
    let packet = Packet {
        payload: pattern(1000),
        options: usual(flow.plan.clock[0] + 1, 4),
        ..flow.peer_segment(Client)
    };
    let unfinished = Offload {
        needs_checksum: true,
        gso_size: 0,
    };
    let ((), counted) = flow.counted(|| {
        taps[0].send(&packet.bytes_for_offload(), unfinished);
        let (offload, got) = taps[1].only_with_offload();
        let expected = flow.reference(Client).translate(&packet);
        match offload.needs_checksum {
            true => assert_frame(&got, &expected.bytes_for_offload(), "across"),
            false => assert_frame(&got, &expected.bytes(), "across"),
        }
    });
    let expected = ["forwarded", "csum_partial_xdp"].map(|name| (name.to_owned(), 1));
    assert_eq!(counted, expected.into());
}

#[test]
fn links_outlive_their_daemon_and_are_taken_over_and_off() {
    let (mut flow, _taps) = wired(XdpMode::Native);
    assert_eq!(xdp_on("a0"), "xdp");
    let instance = flow.plane.instance.clone();
    flow.plane.leave();
    let (successor, _) = Dataplane::open(&options(&instance)).expect("adopted");
    let ifindex = flow.ifindex(Client);
    successor
        .attach_xdp(ifindex, XdpMode::Native)
        .expect("taken over");
    assert_eq!(xdp_on("a0"), "xdp");
    successor
        .attach_xdp(ifindex, XdpMode::Generic)
        .expect("in another mode");
    assert_eq!(xdp_on("a0"), "xdpgeneric");
    successor.detach_xdp(ifindex);
    assert_eq!(xdp_on("a0"), "");
    // Detaching tc detaches XDP.
    successor.detach(flow.ifindex(Server));
    assert_eq!(xdp_on("b0"), "");
    flow.plane = Plane::adopted(successor, &instance);
}

#[test]
fn an_interface_that_cannot_is_told_apart() {
    let flow = Flow::detached(Plan::default());
    let attach = |ifindex, mode| flow.plane.attach_xdp(ifindex, mode);
    let refused = attach(1, XdpMode::Native).expect_err("the loopback has none");
    assert!(matches!(refused, XdpError::NotNative), "{refused}");
    // Its other end takes no frames: they would be lost.
    let ifindex = flow.ifindex(Client);
    assert!(!flow.plane.open_exit(ifindex, XdpMode::Native).expect("told"));

    attach(ifindex, XdpMode::Native).expect("attached");
    let second = Plane::open();
    let taken = second.attach_xdp(ifindex, XdpMode::Native).expect_err("taken");
    assert!(matches!(taken, XdpError::Taken), "{taken}");
    flow.plane.detach(ifindex);
    second
        .attach_xdp(ifindex, XdpMode::Native)
        .expect("it is free now");
    second.detach_xdp(ifindex);
}
