//! Corrupted segments: in no state is one corrected for a socket, does it wake a pair, is it held, or does it change the
//! state of its flow.
//!
//! `LONGSPLICE_SPOILT` sets their number in all, `LONGSPLICE_SEED` repeats a run.

use std::collections::BTreeMap;

use longsplice_dataplane::{Event, Family, LegState, Mode, Side};

use crate::support::{
    FAMILY, choose,
    flow::{Flow, OK, Plan, REDIRECT, SHOT, legs},
    packet::*,
    random::{Random, number, seed},
    woken::Past,
};

/// Number of corrupted segments in `make test`.
const SPOILT: u64 = 600;

/// Bytes that each peer sent past the sockets.
const SENT: [u32; 2] = [700, 90];

/// Bytes that went through the sockets before.
const OLD: u32 = 40;

/// Segments, each with the side that sends it.
type Coming = Vec<(Side, Packet)>;

/// Describes a state of a flow, and the segments that come then. Each time it is made, all of it is the same.
struct State {
    name: &'static str,
    make: fn() -> (Flow, Coming),
    /// True if the next segment in order is forwarded without a look at its checksum.
    passes: bool,
}

/// Returns two segments of each peer from the end of its stream: bytes with an acknowledgement, and one alone.
fn next(flow: &Flow, offset: [u32; 2], acked: [u32; 2]) -> Coming {
    let each = |side: Side| {
        [(0, 120), (120, 0)].map(|(at, len)| {
            let packet = flow.later(side, offset[side] + at, len, acked[side]);
            (side, flow.timed(side, 5, packet))
        })
    };
    Side::BOTH.into_iter().flat_map(each).collect()
}

/// Returns a spliced flow; all that passed is acknowledged.
fn dormant() -> Flow {
    let flow = Flow::dormant(Plan::default());
    flow.pass(Past::all_acknowledged(SENT));
    flow
}

/// Returns a spliced flow with traps at the next byte of both.
fn armed() -> Flow {
    let flow = dormant();
    for side in Side::BOTH {
        let end = flow.plane.leg(flow.slot(), side).rx_end;
        flow.slot().set_trap(side, Some(end + 1));
    }
    flow
}

fn released(mut flow: Flow) -> Flow {
    flow.detach();
    flow
}

fn after_all(flow: Flow) -> (Flow, Coming) {
    let packets = next(&flow, SENT, [SENT[1], SENT[0]]);
    (flow, packets)
}

/// Returns a flow in DRAIN: each peer has sent OLD bytes, which the sockets have sent on, and 120 more past them.
fn draining(trap: bool) -> (Flow, Coming) {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        flow.ingress(side, &flow.later(side, 0, OLD, 0).bytes());
    }
    for side in Side::BOTH {
        flow.egress(side, &flow.local_later(side, 0, OLD, OLD).bytes());
    }
    flow.transition(Mode::Track, Mode::Drain);
    for side in Side::BOTH {
        flow.ingress(side, &flow.later(side, OLD, 120, 0).bytes());
    }
    if trap {
        for side in Side::BOTH {
            let end = flow.plane.leg(flow.slot(), side).rx_end;
            flow.slot().set_trap(side, Some(end + 1));
        }
    }
    let mut packets = next(&flow, [OLD + 120; 2], [OLD; 2]);
    let old = Side::BOTH.map(|side| (side, flow.later(side, 10, 60, 0)));
    packets.extend(old);
    (flow, packets)
}

/// Returns a woken flow, with no forwarded byte acknowledged: segments below the base, across it, from it on.
fn awake() -> (Flow, Coming) {
    let flow = Flow::woken(Plan::default(), Past::unacknowledged(SENT));
    let mut packets = Vec::new();
    for side in Side::BOTH {
        let sent = SENT[side];
        for (offset, len) in [(sent - 60, 50), (sent - 60, 100), (sent, 100), (sent + 100, 0)] {
            packets.push((side, flow.later(side, offset, len, 30)));
        }
    }
    (flow, packets)
}

const STATES: [State; 12] = [
    State {
        name: "track",
        make: || {
            let flow = Flow::track(Plan::default());
            let packets = next(&flow, [0; 2], [0; 2]);
            (flow, packets)
        },
        passes: false,
    },
    State {
        name: "coupling, mapped",
        make: || {
            let flow = Flow::track(Plan::mapped());
            flow.slot().set_coupling(true);
            let packets = next(&flow, [0; 2], [0; 2]);
            (flow, packets)
        },
        passes: false,
    },
    State {
        name: "drain",
        make: || draining(false),
        passes: false,
    },
    State {
        name: "a trap in the drain",
        make: || draining(true),
        passes: false,
    },
    State {
        name: "dormant",
        make: || after_all(dormant()),
        passes: true,
    },
    State {
        name: "dormant, copied",
        make: || {
            let flow = dormant();
            flow.slot().set_copying(true);
            after_all(flow)
        },
        passes: false,
    },
    State {
        name: "a trap, sockets that can go on",
        make: || {
            let flow = armed();
            flow.slot().set_wakeable(true);
            after_all(flow)
        },
        passes: false,
    },
    State {
        name: "a trap, sockets that cannot",
        make: || after_all(armed()),
        passes: false,
    },
    State {
        name: "frozen",
        make: || {
            let flow = dormant();
            assert_eq!(flow.plane.freeze(flow.slot()).expect("it runs"), Mode::Freeze);
            after_all(flow)
        },
        passes: false,
    },
    State {
        name: "detached",
        make: || after_all(released(dormant())),
        passes: true,
    },
    State {
        name: "a trap, detached",
        make: || after_all(released(armed())),
        passes: false,
    },
    State {
        name: "undrain",
        make: awake,
        passes: false,
    },
];

/// Returns true if a receiver would take the frame, by its checksums.
fn is_sound(frame: &[u8]) -> bool {
    let Some((6, tcp)) = upper(frame).filter(|&(_, tcp)| tcp >= L4) else {
        return false;
    };
    let Some(segment) = frame.get(tcp..) else {
        return false;
    };
    let ip = &frame[ETH..tcp];
    let addresses = match FAMILY {
        Family::V4 => &ip[12..20],
        Family::V6 => &ip[8..40],
    };
    let length = (segment.len() as u32).to_be_bytes();
    let counted = usize::from(u16::from_be_bytes([frame[LENGTH.start], frame[LENGTH.start + 1]]));
    let counts = counted == frame.len() - choose(ETH, ETH + 40);
    let header = FAMILY == Family::V6 || internet_checksum(&[ip]) == 0;
    counts && header && internet_checksum(&[addresses, &length, &[0, 0, 0, 6], segment]) == 0
}

/// Fate of segments in turn, and the state of the flow then.
#[derive(Debug, PartialEq)]
struct Outcome {
    each: Vec<(u32, Vec<u8>, BTreeMap<String, u64>)>,
    events: Vec<Event>,
    mode: Option<Mode>,
    known: [String; 2],
}

fn outcome(flow: &Flow, packets: &[(Side, Packet)]) -> Outcome {
    let mut ring = flow.plane.events().expect("the ring");
    let run = |(side, packet): &(Side, Packet)| {
        let (ran, counted) = flow.counted(|| flow.ingress(*side, &packet.bytes()));
        (ran.verdict, ran.packet, counted)
    };
    let each = packets.iter().map(run).collect();
    let slot = flow.slot.as_ref();
    let mut events = ring.take().expect("the ring");
    // Another flow has the same addresses, and another number.
    events.iter_mut().for_each(|event| event.serial = 0);
    Outcome {
        each,
        events,
        mode: slot.map(longsplice_dataplane::Slot::mode),
        known: Side::BOTH.map(|side| match slot {
            Some(slot) => {
                let leg = LegState {
                    last_seen: 0,
                    ..flow.plane.leg(slot, side)
                };
                format!("{leg:?}")
            }
            None => {
                let found = flow.plane.direction(legs()[side]);
                let found = found.expect("the flow is there");
                format!("{} {} {} {}", found.end, found.ack, found.fin, found.reset)
            }
        }),
    }
}

/// Changes a bit that a checksum covers.
fn spoil(random: &mut Random, packet: &Packet, passes: bool) -> Vec<u8> {
    let mut frame = packet.bytes();
    loop {
        let at = ETH + random.below((frame.len() - ETH) as u32) as usize;
        // No checksum covers these fields of IPv6: its class, its flow label, its hop limit.
        let is_covered = FAMILY == Family::V4 || !matches!(at, 14..18 | 21);
        // TSval advances with each segment: a little more of it is believed for a segment in order.
        let is_clock = passes && (BODY + 4..BODY + 8).contains(&at);
        if is_covered && !is_clock {
            frame[at] ^= 1 << random.below(8);
            return frame;
        }
    }
}

#[test]
fn what_was_spoilt_is_never_made_right_nor_believed() {
    let (seed, count) = (seed(), number("LONGSPLICE_SPOILT").unwrap_or(SPOILT));
    println!("LONGSPLICE_SEED={seed} LONGSPLICE_SPOILT={count}");
    let mut random = Random::new(seed);
    for state in &STATES {
        let expected = {
            let (flow, packets) = (state.make)();
            outcome(&flow, &packets)
        };
        let (flow, packets) = (state.make)();
        let mut ring = flow.plane.events().expect("the ring");
        let least = count.div_ceil(STATES.len() as u64);
        let (mut made, mut dropped) = (0, 0);
        // Where a segment in order passes unseen, few are dropped: go on until one is.
        while made < least || (dropped == 0 && made < 20 * least) {
            made += 1;
            let (side, packet) = &packets[random.below(packets.len() as u32) as usize];
            let frame = spoil(&mut random, packet, state.passes);
            let (ran, counted) = flow.counted(|| flow.ingress(*side, &frame));
            let what = format!("{}: {counted:?} {frame:02x?}", state.name);
            match ran.verdict {
                OK | REDIRECT => assert!(!is_sound(&ran.packet), "{what}"),
                verdict => assert_eq!(verdict, SHOT, "{what}"),
            }
            for believed in ["woken", "queued", "aborted", "syn_replaced"] {
                assert!(!counted.contains_key(believed), "{what}");
            }
            assert!(ring.take().expect("the ring").is_empty(), "{what}");
            dropped += counted.get("drop_checksum").copied().unwrap_or(0);
        }
        assert!(dropped > 0, "{}", state.name);
        drop(ring);
        let after = outcome(&flow, &packets);
        for (one, other) in after.each.iter().zip(&expected.each) {
            assert_frame(&one.1, &other.1, state.name);
        }
        assert_eq!(after.known, expected.known, "{}", state.name);
        assert_eq!(after, expected, "{}", state.name);
    }
}
