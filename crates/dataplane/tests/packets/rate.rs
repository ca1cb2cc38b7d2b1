//! The rate limit of a direction: excess payload is dropped by name, and not noted.

use longsplice_core::limit::Rate;
use longsplice_dataplane::{Context, Hook, Mode, Seq, Side, monotonic};

use crate::support::{
    flow::{Flow, Plan, REDIRECT, SHOT, legs},
    packet::*,
};

const SECOND: u64 = 1_000_000_000;

/// Returns a rate so slow that a test takes no time at it: a thousand bytes are a second.
fn slow(burst: u32) -> Rate {
    Rate::new(1_000).expect("in range").with_burst(burst)
}

/// Runs a test on a flow whose client is limited and has paid until then, in each state that forwards all.
fn limited(rate: Rate, paid: u64, each: impl Fn(&mut Flow)) {
    for detached in [false, true] {
        let mut flow = Flow::track(Plan::default());
        flow.slot().set_rate(Side::Client, Some(rate), paid);
        flow.transition(Mode::Track, Mode::Drain);
        flow.finish();
        if detached {
            flow.detach();
        }
        each(&mut flow);
    }
}

#[track_caller]
fn drops(flow: &Flow, side: Side, packet: &Packet) {
    let frame = packet.bytes();
    flow.ingress_gives(side, &frame, (SHOT, "drop_rate", &frame));
}

#[test]
fn payload_beyond_the_rate_is_dropped_and_forwarded_when_it_comes_again() {
    limited(slow(1_000), 0, |flow| {
        let mut reference = flow.reference(Side::Client);
        // Two of them are more than the burst: the second still begins within it.
        flow.forwards(Side::Client, &flow.later(Side::Client, 0, 900, 0), &mut reference);
        flow.forwards(
            Side::Client,
            &flow.later(Side::Client, 900, 900, 0),
            &mut reference,
        );
        let third = flow.later(Side::Client, 1_800, 900, 0);
        drops(flow, Side::Client, &third);
        drops(flow, Side::Client, &third);
        // It does not count as forwarded.
        let mut seen = vec![];
        match &flow.slot {
            Some(slot) => seen.push(flow.plane.directions(slot, legs()).client),
            None => flow.plane.scan(|d| seen.push(d)).expect("a scan"),
        }
        let client = seen.iter().find(|d| d.side == Side::Client).expect("it is there");
        assert_eq!(
            (client.end, client.bytes),
            (Seq::new(flow.plan.peer[0]) + 1_800, 1_800)
        );
        // The other direction has no limit.
        let mut back = flow.reference(Side::Server);
        for n in 0..5 {
            flow.forwards(
                Side::Server,
                &flow.later(Side::Server, n * 900, 900, 0),
                &mut back,
            );
        }
        if let Some(slot) = &flow.slot {
            // Time has passed.
            slot.set_rate(Side::Client, Some(slow(1_000)), monotonic() - SECOND);
            flow.forwards(Side::Client, &third, &mut reference);
        }
    });
}

#[test]
fn what_has_no_payload_is_never_held_back() {
    limited(slow(1), monotonic() + 1_000 * SECOND, |flow| {
        let mut reference = flow.reference(Side::Client);
        drops(flow, Side::Client, &flow.later(Side::Client, 0, 1, 0));
        flow.forwards(Side::Client, &flow.later(Side::Client, 0, 0, 0), &mut reference);
        for flags in [ACK | FIN, ACK | RST] {
            let packet = Packet {
                flags,
                ..flow.later(Side::Client, 0, 0, 0)
            };
            flow.forwards(Side::Client, &packet, &mut reference);
        }
    });
}

/// The product of such a debt and the rate is greater than 64 bits, of which the lower ones say 4 seconds. The burst is 8.
#[test]
fn a_debt_of_any_length_holds_payload_back() {
    let rate = Rate::new(1 << 28).expect("in range").with_burst(u32::MAX >> 1);
    for debt in [1 << 36, 1 << 62] {
        limited(rate, monotonic() + debt + 4 * SECOND, |flow| {
            drops(flow, Side::Client, &flow.later(Side::Client, 0, 1, 0));
        });
    }
}

#[test]
fn a_super_packet_longer_than_the_burst_passes_whole() {
    limited(slow(1), 0, |flow| {
        let packet = flow.later(Side::Client, 0, 3_000, 0);
        let context = Context {
            ifindex: flow.ifindex(Side::Client),
            gso_size: 500,
            gso_segs: 6,
            ..Context::default()
        };
        let run = |flow: &Flow, packet: &Packet| {
            let frame = packet.bytes();
            let ran = flow.plane.run_in(Hook::Ingress, &frame, context, 1);
            ran.expect("the program runs")
        };
        let expected = flow.reference(Side::Client).translate(&packet).bytes();
        let ran = run(flow, &packet);
        assert_eq!(ran.verdict, REDIRECT);
        assert_frame(&ran.packet, &expected, "a super-packet");
        assert_eq!(
            run(flow, &flow.later(Side::Client, 6_000, 3_000, 0)).verdict,
            SHOT
        );
    });
}

/// Returns a segment that the far end has acknowledged long ago: a repetition, or a guess.
fn stray(flow: &Flow, len: u32) -> Packet {
    Packet {
        seq: flow.plan.peer[0].wrapping_sub(5_000),
        ..flow.later(Side::Client, 0, len, 0)
    }
}

#[test]
fn a_blind_sender_does_not_use_up_the_rate() {
    limited(slow(1), 0, |flow| {
        let mut reference = flow.reference(Side::Client);
        for _ in 0..3 {
            flow.ingress(Side::Client, &stray(flow, 900).bytes());
        }
        flow.forwards(Side::Client, &flow.later(Side::Client, 0, 900, 0), &mut reference);
        drops(flow, Side::Client, &flow.later(Side::Client, 900, 900, 0));
    });
}

#[test]
fn what_is_repeated_has_the_same_rate_beside() {
    limited(slow(1_000), 0, |flow| {
        let mut reference = flow.reference(Side::Client);
        for _ in 0..2 {
            flow.forwards_stray(Side::Client, &stray(flow, 900), &mut reference);
        }
        drops(flow, Side::Client, &stray(flow, 900));
        flow.forwards_stray(Side::Client, &stray(flow, 0), &mut reference);
    });
}

#[test]
fn in_a_drain_what_is_new_is_limited_and_what_is_old_is_not() {
    let flow = Flow::track(Plan::default());
    flow.slot()
        .set_rate(Side::Client, Some(slow(1)), monotonic() + 100 * SECOND);
    // In control mode the sockets' own windows limit.
    let old = flow.later(Side::Client, 0, 100, 0);
    assert_ne!(flow.ingress(Side::Client, &old.bytes()).verdict, SHOT);
    flow.transition(Mode::Track, Mode::Drain);
    drops(&flow, Side::Client, &flow.later(Side::Client, 100, 100, 0));
    let (ran, _) = flow.counted(|| flow.ingress(Side::Client, &old.bytes()));
    assert_ne!(ran.verdict, SHOT, "the local socket waits for it");
}

#[test]
fn the_account_goes_with_the_flow_into_its_records_and_back() {
    let flow = Flow::track(Plan::default());
    let (rate, paid) = (slow(77), monotonic() + 100 * SECOND);
    flow.slot().set_rate(Side::Server, Some(rate), paid);
    flow.transition(Mode::Track, Mode::Drain);
    flow.finish();
    flow.demote().expect("the records are there");
    drops(&flow, Side::Server, &flow.later(Side::Server, 0, 10, 0));
    let slot = flow.plane.take_slot().expect("a slot");
    let serial = flow.slot().serial();
    flow.plane.promote(&slot, serial, legs()).expect("it is there");
    let [client, server] = Side::BOTH.map(|side| flow.plane.leg(&slot, side));
    assert_eq!((server.rate, server.paid), (Some(rate), paid));
    assert_eq!((client.rate, client.paid), (None, 0));
    // Bytes that this process passes on are charged to the same account.
    slot.charge(Side::Server, rate, monotonic(), 1_000);
    assert_eq!(slot.paid(Side::Server), paid + SECOND);
    drop(slot);
}
