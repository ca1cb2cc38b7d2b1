//! XDP translates a segment as tc does, byte by byte, and notes the same.

use longsplice_dataplane::{Hook, Side};
use nix::time::{ClockId, clock_gettime};

use super::{SERIAL, detached, records};
use crate::support::{
    flow::{Flow, Plan, REDIRECT, XDP_REDIRECT, XDP_TX, leg},
    net::{HOST_BITS, OUR_MAC, PEER_MAC},
    options::{Opt, usual, usual_with_sack, write},
    packet::*,
    reference::Reference,
};

use Side::{Client, Server};

/// Returns the time of records, in ticks: 2^30 nanoseconds each.
fn tick() -> i64 {
    let t = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).expect("a clock");
    (t.tv_sec() * 1_000_000_000 + t.tv_nsec()) >> 30
}

type Frames = Vec<(Side, Vec<u8>)>;
type Outcome = (u32, Vec<u8>, [String; 2]);

/// Returns a hook's results for frames, one after the other, on a fresh flow: its value, the frame, the records.
fn outcomes(flow: &mut Flow, hook: Hook, frames: &Frames) -> Vec<Outcome> {
    flow.again_as(flow.plan.clone(), SERIAL);
    let one = |(side, frame): &(Side, Vec<u8>)| {
        let ran = flow.run(hook, *side, frame);
        (ran.verdict, ran.packet, records(flow))
    };
    frames.iter().map(one).collect()
}

/// Asserts that XDP forwards and notes the same as tc.
#[track_caller]
fn same_as_tc(what: &str, plan: Plan, frames: impl Fn(&Flow) -> Frames) {
    let mut flow = detached(plan);
    let frames = frames(&flow);
    // The time in the records must be the same, too.
    let (at_tc, in_xdp) = loop {
        let before = tick();
        let at_tc = outcomes(&mut flow, Hook::Ingress, &frames);
        let (in_xdp, counted) = {
            let before = flow.plane.verdicts()["forwarded_xdp"];
            let all = outcomes(&mut flow, Hook::Xdp, &frames);
            (all, flow.plane.verdicts()["forwarded_xdp"] - before)
        };
        assert_eq!(counted, frames.len() as u64, "{what}");
        if tick() == before {
            break (at_tc, in_xdp);
        }
    };
    for (n, (tc, xdp)) in at_tc.iter().zip(&in_xdp).enumerate() {
        assert_eq!((tc.0, xdp.0), (REDIRECT, XDP_REDIRECT), "{what}, frame {n}");
        assert_frame(&xdp.1, &tc.1, &format!("{what}, frame {n}"));
        assert_eq!(xdp.2, tc.2, "{what}: records after frame {n}");
    }
}

/// Asserts that XDP does the same as tc for one packet of each side.
#[track_caller]
fn same_of_each(what: &str, packet: impl Fn(&Flow, Side) -> Packet) {
    same_as_tc(what, Plan::default(), |flow| {
        let frame = |side| (side, packet(flow, side).bytes());
        Side::BOTH.map(frame).into()
    });
}

#[test]
fn a_segment_is_what_the_reference_says() {
    let flow = detached(Plan::default());
    for side in Side::BOTH {
        let mut reference = flow.reference(side);
        let now = flow.plan.clock[side];
        for options in [vec![], usual(now + 5, 77)] {
            let packet = Packet {
                payload: pattern(100),
                flags: ACK | PSH,
                options,
                ..flow.peer_segment(side)
            };
            let expected = reference.translate(&packet).bytes();
            flow.xdp_gives(side, &packet.bytes(), (XDP_REDIRECT, "forwarded_xdp", &expected));
        }
    }
}

#[test]
fn headers_of_every_kind_are_as_at_tc() {
    let full = 1514 - BODY;
    for len in [0, 1, 2, 3, 5, 536, full - 13, full - 12, full] {
        same_of_each("payload", |flow, side| Packet {
            payload: pattern(len),
            ..flow.peer_segment(side)
        });
    }
    for flags in [ACK, ACK | PSH, ACK | ECE, ACK | CWR | PSH, ACK | ECE | CWR] {
        same_of_each("flags", |flow, side| Packet {
            flags,
            reserved: 5,
            payload: pattern(7),
            ..flow.peer_segment(side)
        });
    }
    for (tos, id, fragment, ttl) in [
        (0b1011_1010, 0, 0x4000, 33),
        (0b1011_1011, 0xffff, 0, 34),
        (1, 1, 0x8000, 64),
        (2, 0x8000, 0xc000, 255),
    ] {
        same_of_each("the IP header", |flow, side| Packet {
            tos,
            id,
            fragment,
            ttl,
            ..flow.peer_segment(side)
        });
    }
    for (len, padding) in [(0, 6), (1, 5), (5, 1), (0, 20)] {
        same_of_each("padding", |flow, side| Packet {
            payload: pattern(len),
            padding: vec![0xa5; padding],
            ..flow.peer_segment(side)
        });
    }
}

#[test]
fn timestamps_are_as_at_tc() {
    same_as_tc("timestamps", Plan::default(), |flow| {
        let now = flow.plan.clock[0];
        // Forth, back, the same once more, nothing to echo, over the wrap.
        let values = [
            (now, 4),
            (now + 9, 5),
            (now + 3, 6),
            (now + 9, 0),
            (now + (1 << 30), 7),
            (0x9000_0000, 8),
        ];
        let timed = |(value, echo)| Packet {
            options: usual(value, echo),
            payload: pattern(9),
            ..flow.peer_segment(Client)
        };
        values.map(|v| (Client, timed(v).bytes())).into()
    });
}

#[test]
fn options_of_any_kind_are_as_at_tc() {
    for blank_sack in [false, true] {
        let plan = Plan {
            blank_sack: [blank_sack; 2],
            ..Plan::default()
        };
        same_as_tc("options", plan, |flow| {
            let now = flow.plan.clock[0];
            let sacks = |n: u32| Opt::Sack((0..n).map(|i| (700_000 + 10 * i, 700_005 + 10 * i)).collect());
            let all = [
                write(&[Opt::Nop, Opt::Nop, sacks(1)]),
                write(&[Opt::Nop, Opt::Nop, sacks(4)]),
                usual_with_sack(now, 4, &[(5, 6), (u32::MAX, 0), (7, 8)]),
                write(&[Opt::Nop, Opt::Timestamps(now + 1, 4), Opt::Nop]),
                write(&[sacks(1), Opt::Timestamps(now + 2, 4)]),
                write(&[Opt::Other(254, vec![1, 2, 3]), Opt::Nop, Opt::Nop, Opt::Nop]),
                write(&[Opt::Rest(vec![0, 5, 10, 8])]),
                write(&[Opt::Rest(vec![99, 1, 5, 10])]),
                vec![1; 4],
                vec![1; 12],
                vec![1; 40],
            ];
            let frame = |options: &Vec<u8>| {
                let packet = Packet {
                    options: options.clone(),
                    payload: pattern(3),
                    ..flow.peer_segment(Client)
                };
                (Client, packet.bytes())
            };
            all.iter().map(frame).collect()
        });
    }
}

#[test]
fn windows_are_rescaled_as_at_tc() {
    for (scale_in, scale_out) in [(0, 0), (0, 14), (14, 0), (14, 14), (7, 9), (9, 7)] {
        let plan = Plan {
            scale_in: [scale_in, scale_out],
            scale_out: [scale_out, scale_in],
            ..Plan::default()
        };
        same_as_tc("windows", plan, |flow| {
            let packet = |window| Packet {
                window,
                ..flow.peer_segment(Client)
            };
            [0, 1, 3, 255, 500, 32_768, 65_535]
                .map(|w| (Client, packet(w).bytes()))
                .into()
        });
    }
}

/// A conversation has new payload in order, beyond a hole, into it, and once more; acknowledgements; both sides in turn,
/// past the wrap of the sequence numbers.
#[test]
fn a_conversation_is_as_at_tc() {
    for (peer, local) in [
        ([1_000_000, 3_000_000_000], [2_000_000_000, 700_000]),
        ([u32::MAX - 2, 5], [u32::MAX, 0x7fff_ffff]),
        ([0x7fff_fff0, 0xffff_fff0], [0, u32::MAX - 50]),
    ] {
        let plan = Plan {
            peer,
            local,
            ..Plan::default()
        };
        same_as_tc("a conversation", plan, |flow| {
            // Steps: the side, the bytes from its start to the segment, its length, its acknowledgement.
            let steps = [
                (Client, 0, 100, 0),
                (Server, 0, 50, 100),
                (Client, 200, 100, 50),
                (Client, 100, 100, 50),
                (Client, 0, 100, 50),
                (Server, 50, 0, 300),
                (Server, 50, 1400, 300),
                (Client, 300, 0, 1450),
                (Server, 1450, 1, 300),
            ];
            let frame = |(n, (side, at, len, acked)): (usize, (Side, u32, usize, u32))| {
                let base = flow.peer_segment(side);
                let clock = flow.plan.clock[side] + n as u32;
                let packet = Packet {
                    seq: base.seq.wrapping_add(at),
                    ack: base.ack.wrapping_add(acked),
                    payload: pattern(len),
                    options: usual(clock, flow.told(side)),
                    ..base
                };
                (side, packet.bytes())
            };
            steps.into_iter().enumerate().map(frame).collect()
        });
    }
}

#[test]
fn back_by_the_same_interface_it_is_sent_from_there() {
    let flow = detached(Plan::default());
    let (far, gateway) = (leg(Server).peer.ip(), leg(Client).peer.ip());
    flow.net.ip(&format!("route add {far}/{HOST_BITS} via {gateway}"));
    let mut turned = Reference {
        src_mac: OUR_MAC[0],
        dst_mac: PEER_MAC[0],
        ..flow.reference(Client)
    };
    let packet = flow.peer_segment(Client);
    let expected = turned.translate(&packet).bytes();
    flow.xdp_gives(Client, &packet.bytes(), (XDP_TX, "forwarded_xdp", &expected));
}
