//! The identity case (papers' section III-F): both legs have the same addresses and numbers, so that a segment leaves
//! unchanged, but for the time to live.

use longsplice_dataplane::{Leg, Mode, PerSide, Side};

use super::fragments::{pieces, with_id};
use crate::support::{
    choose,
    flow::{Flow, Plan, REDIRECT, SHOT},
    net::{OUR_MAC, PEER_MAC},
    options::{usual, usual_with_sack},
    packet::*,
};

/// Returns the client's leg and the server's: each peer is the other one's local end.
pub(crate) fn same_ends() -> PerSide<Leg> {
    let ends = choose(
        ["198.18.1.2:40000", "198.18.2.2:8080"],
        ["[2001:db8:1::2]:40000", "[2001:db8:2::2]:8080"],
    );
    let [client, server] = ends.map(|end| end.parse().expect("an address"));
    PerSide::new((client, server), (server, client)).map(|(peer, local)| Leg { peer, local })
}

/// Installs a detached flow of this plan between these ends, beside the one that `flow` has.
pub(crate) fn splice(flow: &Flow, plan: &Plan, legs: PerSide<Leg>) {
    let slot = flow.plane.take_slot().expect("a free slot");
    let mut starts = plan.starts();
    starts.client.leg = legs.client;
    starts.server.leg = legs.server;
    let registered = flow
        .plane
        .register(&slot, flow.plane.next_serial(), true, &starts);
    registered.expect("the flow is new");
    assert!(slot.transition(Mode::Track, Mode::Drain) && slot.transition(Mode::Drain, Mode::Final));
    flow.plane.demote(&slot, legs, PerSide::both(0)).expect("demoted");
}

/// Returns true for each direction whose record says that it changes nothing.
fn identity(flow: &Flow, legs: PerSide<Leg>) -> [bool; 2] {
    let mut said = [None; 2];
    let scan = flow.plane.scan(|d| {
        if let Some(side) = legs.iter().position(|leg| *leg == d.leg) {
            said[side] = Some(d.identity);
        }
    });
    scan.expect("a scan");
    said.map(|one| one.expect("a record"))
}

/// Returns the next segment of a peer.
pub(crate) fn segment(plan: &Plan, legs: PerSide<Leg>, side: Side, options: Vec<u8>) -> Packet {
    Packet {
        dst_mac: OUR_MAC[side],
        src_mac: PEER_MAC[side],
        src: legs[side].peer,
        dst: legs[side].local,
        seq: plan.peer[side],
        ack: plan.local[side],
        window: 500,
        options,
        payload: pattern(100),
        ..Packet::blank()
    }
}

/// Returns the packet one hop later, with these options.
fn hop(came: &Packet, side: Side, options: Vec<u8>) -> Packet {
    let o = side.other();
    Packet {
        dst_mac: PEER_MAC[o],
        src_mac: OUR_MAC[o],
        ttl: came.ttl - 1,
        options,
        ..came.clone()
    }
}

#[test]
fn a_segment_leaves_as_it_came() {
    let flow = Flow::detached(Plan::default());
    let (plan, legs) = (Plan::identity(), same_ends());
    splice(&flow, &plan, legs);
    assert_eq!(identity(&flow, legs), [true; 2]);
    for side in Side::BOTH {
        let o = side.other();
        let (clock, echo) = (plan.clock[side], plan.clock[o]);
        let sack = usual_with_sack(clock, echo, &[(plan.local[side] + 9, plan.local[side] + 99)]);
        for options in [vec![], usual(clock, echo), sack] {
            for ttl in [2, 64, 255] {
                let came = Packet {
                    ttl,
                    ..segment(&plan, legs, side, options.clone())
                };
                let left = hop(&came, side, options.clone());
                flow.ingress_gives(side, &came.bytes(), (REDIRECT, "forwarded", &left.bytes()));
            }
            // A segment that keeps its source may go round.
            for ttl in [0, 1] {
                let came = Packet {
                    ttl,
                    ..segment(&plan, legs, side, options.clone())
                };
                flow.ingress_gives(side, &came.bytes(), (SHOT, "drop_ttl", &came.bytes()));
            }
        }
    }
    flow.plane.end(legs);
}

/// The number of an acknowledgement that its receiver would take for old changes here, too.
#[test]
fn an_acknowledgement_below_a_window_that_was_taken_back_gets_a_number_that_is_read() {
    let flow = Flow::detached(Plan::default());
    let (plan, legs) = (Plan::identity(), same_ends());
    splice(&flow, &plan, legs);
    let bare = |side: Side, offset: u32, acked| {
        let options = usual(plan.clock[side], plan.clock[side.other()]);
        let next = segment(&plan, legs, side, options);
        Packet {
            seq: next.seq.wrapping_add(offset),
            ack: next.ack.wrapping_add(acked),
            window: 10_000,
            payload: Vec::new(),
            ..next
        }
    };
    for side in Side::BOTH {
        let payload = pattern(100);
        let data = Packet {
            payload,
            ..bare(side, 0, 0)
        };
        assert_eq!(flow.ingress(side, &data.bytes()).verdict, REDIRECT);
    }
    for (side, number) in [(Side::Client, 100), (Side::Server, 60)] {
        let came = bare(side, number, 100);
        let options = came.options.clone();
        let left = hop(&bare(side, 100, 100), side, options);
        flow.ingress_gives(side, &came.bytes(), (REDIRECT, "forwarded", &left.bytes()));
    }
    flow.plane.end(legs);
}

/// Fragments still get another identification (docs/decisions/0013), the same for all of a datagram.
#[test]
fn fragments_leave_as_they_came_but_for_the_identification() {
    let flow = Flow::detached(Plan::default());
    let (plan, legs) = (Plan::identity(), same_ends());
    splice(&flow, &plan, legs);
    for side in Side::BOTH {
        let (clock, echo) = (plan.clock[side], plan.clock[side.other()]);
        let options = usual(clock, echo);
        let whole = Packet {
            payload: pattern(600),
            ..segment(&plan, legs, side, options.clone())
        };
        let left = pieces(&hop(&whole, side, options));
        let mut first = None;
        for (came, left) in pieces(&whole).iter().zip(&left) {
            let ran = flow.ingress(side, came);
            let like = first.get_or_insert_with(|| ran.packet.clone());
            assert_eq!(ran.verdict, REDIRECT);
            assert_frame(&ran.packet, &with_id(left, like), "a piece");
        }
    }
    flow.plane.end(legs);
}

/// PAWS takes precedence: a TSval below one that the far end has seen is raised here, too.
#[test]
fn an_old_timestamp_is_raised() {
    let flow = Flow::detached(Plan::default());
    let (plan, legs) = (Plan::identity(), same_ends());
    splice(&flow, &plan, legs);
    for side in Side::BOTH {
        let (clock, echo) = (plan.clock[side], plan.clock[side.other()]);
        let came = segment(&plan, legs, side, usual(clock - 1, echo));
        let left = hop(&came, side, usual(clock, echo));
        flow.ingress_gives(side, &came.bytes(), (REDIRECT, "forwarded", &left.bytes()));
    }
    flow.plane.end(legs);
}

/// Each difference shows in the record: of the direction, or of both.
#[test]
fn a_difference_is_no_identity() {
    let flow = Flow::detached(Plan::default());
    let same = Plan::identity();
    let with = |change: fn(&mut Plan)| {
        let mut plan = same.clone();
        change(&mut plan);
        plan
    };
    let changes: [(Plan, [bool; 2]); 4] = [
        (with(|p| p.local[1] += 1), [false; 2]),
        (with(|p| p.ts[0] = 1), [false; 2]),
        (with(|p| p.scale_out[1] = 8), [true, false]),
        (with(|p| p.blank_sack[0] = true), [false, true]),
    ];
    for (n, (plan, expected)) in changes.into_iter().enumerate() {
        let legs = same_ends();
        splice(&flow, &plan, legs);
        assert_eq!(identity(&flow, legs), expected, "change {n}");
        flow.plane.end(legs);
    }
    let mut legs = same_ends();
    legs.server.local.set_port(40_001);
    splice(&flow, &same, legs);
    assert_eq!(identity(&flow, legs), [false; 2], "another port");
    flow.plane.end(legs);
}
