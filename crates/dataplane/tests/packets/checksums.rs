//! The program keeps a checksum right, whichever layer verifies it, and never makes a wrong one right.

use longsplice_dataplane::{Context, Hook, Mode, Side};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT},
    options::{usual, usual_with_sack},
    packet::*,
};

/// Runs ingress over a frame that the device has summed up; the kernel compares its sum with ours.
#[track_caller]
fn summed(flow: &Flow, hook: Hook, side: Side, frame: &[u8]) -> (u32, Vec<u8>) {
    let context = Context {
        ifindex: flow.ifindex(side),
        summed: true,
        ..Context::default()
    };
    let ran = flow
        .plane
        .run_in(hook, frame, context, 1)
        .expect("the device's sum is still right");
    (ran.verdict, ran.packet)
}

fn segments(flow: &Flow, side: Side) -> Vec<Packet> {
    let base = flow.peer_segment(side);
    [0, 1, 2, 77, 1000]
        .into_iter()
        .flat_map(|len| {
            [
                vec![],
                usual(90_000, 4),
                usual_with_sack(90_000, 4, &[(5, 6), (7, 8)]),
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
fn of_a_forwarded_segment_that_the_device_summed_up() {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        for side in Side::BOTH {
            let mut reference = flow.reference(side);
            for packet in segments(&flow, side) {
                let expected = reference.translate(&packet).bytes();
                let (verdict, bytes) = summed(&flow, Hook::Ingress, side, &packet.bytes());
                assert_eq!(verdict, REDIRECT);
                assert_frame(&bytes, &expected, "summed up");
            }
        }
    }
}

#[test]
fn of_the_whole_copy_in_the_drain_that_the_device_summed_up() {
    let flow = Flow::track(Plan::default());
    let packet = Packet {
        payload: pattern(50),
        ..flow.peer_segment(Side::Client)
    };
    flow.ingress(Side::Client, &packet.bytes());
    flow.transition(Mode::Track, Mode::Drain);
    // Both copies are made of it: it is written for the far end, and written back.
    let (verdict, bytes) = summed(&flow, Hook::Ingress, Side::Client, &packet.bytes());
    assert_eq!(verdict, OK);
    assert_frame(&bytes, &packet.bytes(), "the local copy");
}

#[test]
fn of_an_emission_with_another_window() {
    let flow = Flow::track(Plan {
        granted: [1000; 2],
        ..Plan::default()
    });
    flow.slot().set_coupling(true);
    let packet = Packet {
        window: 65_535,
        payload: pattern(50),
        ..flow.local_segment(Side::Client)
    };
    let expected = Packet {
        window: 1000 >> flow.plan.scale_out[1],
        ..packet.clone()
    };
    let (verdict, bytes) = summed(&flow, Hook::Egress, Side::Client, &packet.bytes());
    assert_eq!(verdict, OK);
    assert_frame(&bytes, &expected.bytes(), "clamped");
}

#[test]
fn a_wrong_one_stays_wrong() {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        for side in Side::BOTH {
            let packet = Packet {
                payload: pattern(100),
                options: usual(90_000, 4),
                ..flow.peer_segment(side)
            };
            let mut expected = flow.reference(side).translate(&packet).bytes();
            expected[BODY + 36] ^= 0x40;
            let mut frame = packet.bytes();
            frame[BODY + 36] ^= 0x40;
            flow.ingress_gives(side, &frame, (REDIRECT, "forwarded", &expected));
        }
    }
}
