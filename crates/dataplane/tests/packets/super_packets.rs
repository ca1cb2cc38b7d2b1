//! Super-packets that GRO has made of many segments.

use longsplice_dataplane::{Context, Hook, Side};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, legs},
    options::usual,
    packet::*,
};

const SIZE: u32 = 500;

/// Runs ingress over a super-packet of the client.
fn run(flow: &Flow, frame: &[u8], segments: u32) -> (u32, Vec<u8>) {
    let context = Context {
        ifindex: flow.ifindex(Side::Client),
        gso_size: SIZE,
        gso_segs: segments,
        ..Context::default()
    };
    let ran = flow
        .plane
        .run_in(Hook::Ingress, frame, context, 1)
        .expect("the program runs");
    (ran.verdict, ran.packet)
}

fn packet(flow: &Flow, segments: u32) -> Packet {
    Packet {
        payload: pattern((segments * SIZE - 100) as usize),
        options: usual(flow.plan.clock[0] + 1, 2),
        flags: ACK | PSH,
        ..flow.peer_segment(Side::Client)
    }
}

#[test]
fn it_is_forwarded_as_one() {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        let packet = packet(&flow, 6);
        let expected = flow.reference(Side::Client).translate(&packet);
        let (verdict, bytes) = run(&flow, &packet.bytes(), 6);
        assert_eq!(verdict, REDIRECT);
        assert_frame(&bytes, &expected.bytes(), "a super-packet");
        let mut found = vec![];
        match &flow.slot {
            Some(slot) => found.push(flow.plane.directions(slot, legs()).client),
            None => flow.plane.scan(|d| found.push(d)).expect("a scan"),
        }
        found.retain(|d| d.side == Side::Client);
        assert_eq!(found[0].bytes, u64::from(6 * SIZE - 100));
    }
}

#[test]
fn one_of_over_64_kb_has_no_length_field() {
    let flow = Flow::detached(Plan::default());
    let packet = packet(&flow, 4);
    let expected = flow.reference(Side::Client).translate(&packet);
    let (verdict, bytes) = run(&flow, &packet.bytes_without_length(), 4);
    assert_eq!(verdict, REDIRECT);
    assert_frame(&bytes, &expected.bytes_without_length(), "no length");
}

#[test]
fn in_the_drain_the_local_copy_is_trimmed_to_one_header() {
    let flow = Flow::track(Plan::default());
    flow.drain_behind(Side::Server, 50);
    let packet = packet(&flow, 6);
    let local = Packet {
        payload: vec![],
        flags: ACK,
        ..packet.clone()
    };
    let (verdict, bytes) = run(&flow, &packet.bytes(), 6);
    assert_eq!(verdict, OK);
    assert_frame(&bytes, &local.bytes(), "the local copy");
}
