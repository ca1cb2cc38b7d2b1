//! The far end waits for acknowledgements of the bytes that it sent past the sockets: it gets a copy without payload of
//! each segment for the socket. The copy comes in once more, so real interfaces show this.

use longsplice_dataplane::{Framing, Seq, Side};

use super::{SENT, across, start};
use crate::support::{
    flow::{Flow, Plan},
    options::{usual, usual_with_sack},
    packet::*,
    tap::{Offload, Tap},
    woken::{Past, with_sack},
};

fn wired(past: Past) -> (Flow, [Tap; 2]) {
    let flow = Flow::woken(Plan::default(), past);
    flow.net.deaf();
    for side in Side::BOTH {
        flow.plane
            .attach(flow.ifindex(side), Framing::Ethernet)
            .expect("attached");
    }
    let taps = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
    (flow, taps)
}

/// Returns the far end's copy of a segment: no payload, at the end of the forwarded part.
fn copy(flow: &Flow, side: Side, packet: &Packet, acked: u32, promised: u32) -> Packet {
    let bare = Packet {
        seq: start(flow, side).wrapping_add(SENT[side]),
        flags: packet.flags & (ACK | RST),
        payload: vec![],
        padding: vec![],
        ..packet.clone()
    };
    across(
        flow,
        side,
        &bare,
        start(flow, side.other()) + acked,
        promised - acked,
    )
}

fn promised(flow: &Flow, far: Side) -> u32 {
    flow.raw_leg(far).tx_edge.wrapping_sub(start(flow, far))
}

#[test]
fn of_payload_for_the_socket_the_far_end_gets_the_acknowledgement() {
    for side in Side::BOTH {
        let far = side.other();
        let (sent, all) = (SENT[side], SENT[far]);
        for partial in [false, true] {
            let (flow, taps) = wired(Past::unacknowledged(SENT));
            let mut offset = sent;
            for (len, acked) in [
                (1, 0),
                (2, 5),
                (1400, 5),
                (999, all - 1),
                (0, all - 1),
                (333, all),
            ] {
                let room = promised(&flow, far);
                let packet = flow.timed(side, acked, flow.later(side, offset, len, acked));
                offset += len;
                let expected = copy(&flow, side, &packet, acked, room);
                let offload = Offload {
                    needs_checksum: partial,
                    ..Offload::default()
                };
                let frame = if partial {
                    packet.bytes_for_offload()
                } else {
                    packet.bytes()
                };
                // Count once the copy is there: a busy processor may take the packet in after the call.
                let ((got, bytes), counted) = flow.counted(|| {
                    taps[side].send(&frame, offload);
                    taps[far].only_with_offload()
                });
                assert_eq!(
                    (counted["delivered"], counted["forwarded"]),
                    (1, 1),
                    "{len} {acked}"
                );
                assert_eq!(got.needs_checksum, partial, "{len} {acked}");
                let expected = if partial {
                    expected.bytes_for_offload()
                } else {
                    expected.bytes()
                };
                assert_frame(&bytes, &expected, "the copy");
            }
            // The far end knows everything: from now on its socket speaks for itself.
            let last = flow.later(side, offset, 10, all);
            let ((), counted) = flow.counted(|| {
                taps[side].send(&last.bytes(), Offload::default());
                taps[far].nothing();
            });
            assert_eq!(counted.get("forwarded"), None);
        }
    }
}

/// A blind guess of any old number says nothing about what its end has received.
#[test]
fn a_forged_segment_has_no_copy_and_tells_nothing() {
    for side in Side::BOTH {
        let far = side.other();
        let (flow, taps) = wired(Past::unacknowledged(SENT));
        let state = |flow: &Flow| {
            let leg = flow.raw_leg(far);
            (leg.tx_ack, leg.tx_edge, flow.raw_leg(side).rec.ts_high)
        };
        let before = state(&flow);
        for seq in [1 << 30, 1 << 24] {
            let mut forged = flow.later(side, SENT[side], 0, 300);
            forged.seq = forged.seq.wrapping_sub(seq);
            forged.options = usual(1 << 29, 1 << 30);
            taps[side].send(&forged.bytes(), Offload::default());
            taps[far].nothing();
            assert_eq!(state(&flow), before, "{seq}");
        }
    }
}

#[test]
fn the_copy_of_a_super_packet_is_one_header() {
    for side in Side::BOTH {
        let far = side.other();
        let (flow, taps) = wired(Past::unacknowledged(SENT));
        let room = promised(&flow, far);
        let packet = flow.timed(side, 1, flow.later(side, SENT[side], 10_000, 3));
        let expected = copy(&flow, side, &packet, 3, room);
        let offload = Offload {
            needs_checksum: true,
            gso_size: 1000,
        };
        taps[side].send(&packet.bytes_for_offload(), offload);
        let (got, bytes) = taps[far].only_with_offload();
        assert!(got.needs_checksum);
        assert_frame(&bytes, &expected.bytes_for_offload(), "the copy");
    }
}

#[test]
fn a_trimmed_copy_is_right_on_a_wire_that_needs_its_checksum() {
    // This repeats the test above with a socket without offloads: the kernel finishes the checksums that are left to the
    // device.
    for side in Side::BOTH {
        let far = side.other();
        let (flow, taps) = wired(Past::unacknowledged(SENT));
        let raw = Tap::new(flow.net.ifindex(["a1", "b1"][far]));
        // The device toward the far end cannot compute checksums.
        let device = ["a0", "b0"][far];
        let status = std::process::Command::new("ethtool")
            .args(["-K", device, "tx", "off"])
            .stdout(std::process::Stdio::null())
            .status()
            .expect("ethtool");
        assert!(status.success());
        let room = promised(&flow, far);
        let packet = flow.timed(side, 1, flow.later(side, SENT[side], 501, 3));
        let expected = copy(&flow, side, &packet, 3, room);
        let offload = Offload {
            needs_checksum: true,
            ..Offload::default()
        };
        taps[side].send(&packet.bytes_for_offload(), offload);
        assert_frame(&raw.only(), &expected.bytes(), "on the wire");
    }
}

#[test]
fn selective_acknowledgements_are_clipped_in_the_copy() {
    for side in Side::BOTH {
        let far = side.other();
        let all = SENT[far];
        let (flow, taps) = wired(Past::unacknowledged(SENT));
        let (room, local) = (promised(&flow, far), flow.plan.local[side]);
        let packet = Packet {
            options: usual_with_sack(flow.plan.clock[side], 1, &[(local + 50, local + all)]),
            ..flow.later(side, SENT[side], 20, 7)
        };
        let mut expected = copy(&flow, side, &packet, 7, room);
        let first = start(&flow, far);
        expected.options = with_sack(&expected.options, |_, _| (first + 50, first + all));
        taps[side].send(&packet.bytes(), Offload::default());
        assert_frame(&taps[far].only(), &expected.bytes(), "the copy");
    }
}

#[test]
fn where_nothing_went_past_the_far_socket_nobody_needs_a_copy() {
    for side in Side::BOTH {
        let far = side.other();
        let mut sent = [0; 2];
        sent[side] = SENT[side];
        let (flow, taps) = wired(Past::unacknowledged(sent));
        let packet = flow.later(side, SENT[side], 20, 0);
        taps[side].send(&packet.bytes(), Offload::default());
        taps[far].nothing();
    }
}

#[test]
fn the_segment_that_wakes_the_pair_has_a_copy_too() {
    for side in Side::BOTH {
        let far = side.other();
        let flow = Flow::dormant(Plan::default());
        flow.pass(Past::unacknowledged(SENT));
        flow.slot().set_wakeable(true);
        flow.slot()
            .set_trap(side, Some(Seq::new(start(&flow, side)) + SENT[side] + 1));
        flow.net.deaf();
        for s in Side::BOTH {
            flow.plane
                .attach(flow.ifindex(s), Framing::Ethernet)
                .expect("attached");
        }
        let taps = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
        let packet = flow.later(side, SENT[side], 20, 9);
        let ((), counted) = flow.counted(|| taps[side].send(&packet.bytes(), Offload::default()));
        assert_eq!(
            (counted["woken"], counted["delivered"], counted["forwarded"]),
            (1, 1, 1)
        );
        let expected = {
            let room = promised(&flow, far);
            copy(&flow, side, &packet, 9, room)
        };
        assert_frame(&taps[far].only(), &expected.bytes(), "the copy");
    }
}

/// The socket's number stands behind the forwarded bytes: that its send queue is empty says nothing of them.
#[test]
fn what_bypassed_a_socket_is_not_acknowledged_by_its_empty_queue() {
    for side in Side::BOTH {
        let flow = Flow::woken(Plan::default(), Past::unacknowledged(SENT));
        let before = flow.plane.leg(flow.slot(), side);
        assert!(!flow.slot().note_acknowledged(side, before.loc_end));
        let after = flow.plane.leg(flow.slot(), side);
        assert_eq!(after.rx_ack, before.rx_ack);
        assert_ne!(
            after.rx_ack, before.loc_end,
            "the far end has sent past the socket"
        );
    }
}
