//! Numbers of the sockets after a wake: behind all forwarded bytes, with an offset from those on the wire.

use longsplice_dataplane::{LegState, Mapping, Mode, Offset, Seq, Side};

use crate::support::{
    flow::{Flow, OK, Plan},
    packet::L4,
    raw::types::{ls_bypassed, ls_leg},
    woken::Past,
};

fn plans() -> [Plan; 3] {
    [
        Plan::default(),
        // Every number wraps within the forwarded bytes.
        Plan {
            peer: [u32::MAX - 99, u32::MAX - 3],
            local: [u32::MAX - 2, u32::MAX - 500],
            ..Plan::default()
        },
        Plan {
            peer: [0x7fff_ffff - 99, 0x7fff_fff0],
            local: [0x7fff_fffe, 0x8000_0000 - 500],
            ..Plan::default()
        },
    ]
}

fn pasts() -> Vec<Past> {
    let mut all = Vec::new();
    for sent in [[0, 0], [1000, 0], [0, 1000], [1000, 7]] {
        for fin in [[false, false], [true, false], [false, true], [true, true]] {
            let whole = [0, 1].map(|i: usize| sent[i] + u32::from(fin[i]));
            for acked in [
                [0, 0],
                [whole[1] / 2, whole[0] / 2],
                [whole[1], whole[0]],
                [whole[1], 0],
            ] {
                all.push(Past { sent, fin, acked });
            }
        }
    }
    all
}

fn state(flow: &Flow, side: Side) -> LegState {
    flow.plane.leg(flow.slot(), side)
}

/// Compares a leg after a wake with that before it: `sent` bytes of x bypassed its socket, and the far end acknowledged
/// so many of them.
#[track_caller]
fn assert_goes_on(flow: &Flow, before: &ls_leg, side: Side, past: &Past) {
    let o = side.other();
    let (sent, went_past) = (past.sent[side], past.sent[side] > 0 || past.fin[side]);
    let leg = flow.raw_leg(side);
    let start = flow.plan.peer[side];
    let text = format!("{side:?} {past:?}");
    // A FIN is the socket's all the same: it is not among the forwarded bytes.
    let base = start.wrapping_add(sent);
    assert_eq!((leg.cut, leg.rec.rx_end), (base, base), "{text}");
    let bit = |on: bool, flag: ls_bypassed| if on { flag.0 } else { 0 };
    let bypassed =
        bit(went_past, ls_bypassed::LS_BYPASSED) | bit(past.fin[side], ls_bypassed::LS_BYPASSED_FIN);
    assert_eq!(leg.bypassed, bypassed, "{text}");
    assert_eq!(leg.adj_seq, before.adj_seq.wrapping_sub(sent), "{text}");
    // These bytes came toward x past its socket.
    assert_eq!(leg.adj_ack, before.adj_ack.wrapping_sub(past.sent[o]), "{text}");
    let far_end = flow.plan.local[side].wrapping_add(past.sent[o]);
    let far_went_past = past.sent[o] > 0 || past.fin[o];
    assert_eq!(
        leg.loc_end,
        if far_went_past { far_end } else { before.loc_end },
        "{text}"
    );
    assert_eq!(
        leg.loc_acked,
        if far_went_past { far_end } else { before.loc_acked },
        "{text}"
    );
    if !went_past {
        assert_eq!(
            (leg.loc_edge, leg.tx_ack, leg.tx_edge),
            (before.loc_edge, before.tx_ack, before.tx_edge)
        );
        return;
    }
    assert_eq!((leg.base, leg.loc_ack), (base, base), "{text}");
    assert_eq!(leg.delivered, base, "where the socket takes itself to be");
    assert_eq!(
        leg.loc_edge,
        before.loc_edge.wrapping_add(sent),
        "the socket's room is what it was"
    );
    // x was told the far end's acknowledgement; no more than that, and no wider a window than the socket has.
    let acked = start.wrapping_add(past.acked[o]);
    assert_eq!(leg.tx_ack, acked, "{text}");
    let granted = 500u32 << flow.plan.scale_in[o];
    let window = flow.plan.granted[o].max(past.acked[o] + granted);
    let promised = start.wrapping_add(window.min(flow.plan.offered[side] + sent));
    assert_eq!(leg.tx_edge, promised, "{text}");
}

#[test]
fn behind_all_that_was_forwarded() {
    let mut flow = Flow::dormant(Plan::default());
    for plan in plans() {
        for past in pasts() {
            flow.again(plan.clone());
            let before = flow.raw();
            flow.pass(past);
            flow.wake();
            for side in Side::BOTH {
                assert_goes_on(&flow, &before.leg[side], side, &past);
            }
            assert_eq!(flow.raw().flags, 0, "nothing is left of the splice");
        }
    }
}

#[test]
fn every_cycle_adds_to_the_mapping() {
    for plan in plans() {
        let mut flow = Flow::dormant(plan);
        let mut sum = [0u32; 2];
        let cycles = [
            [1000, 7],
            [0, 500],
            [0, 0],
            [u32::from(u16::MAX), 0],
            [3, 3],
            [1, 1 << 17],
        ];
        for sent in cycles {
            // Send it through the program in pieces, as no packet is that long.
            for side in Side::BOTH {
                let mut left = sent[side];
                while left > 0 {
                    let len = left.min(1400);
                    let packet = flow.later(side, sent[side] - left, len, 0);
                    flow.forwards(side, &packet, &mut flow.reference(side));
                    left -= len;
                }
            }
            for side in Side::BOTH {
                let ack = flow.later(side, sent[side], 0, sent[side.other()]);
                flow.forwards(side, &ack, &mut flow.reference(side));
            }
            flow.wake();
            for side in Side::BOTH {
                sum[side] = sum[side].wrapping_add(sent[side]);
                // The wire goes on from here.
                flow.plan.peer[side] = flow.plan.peer[side].wrapping_add(sent[side]);
                let far = side.other();
                flow.plan.local[far] = flow.plan.local[far].wrapping_add(sent[side]);
            }
            for side in Side::BOTH {
                let o = side.other();
                let expected = Mapping {
                    seq: -Offset::new(sum[side]),
                    ack: -Offset::new(sum[o]),
                };
                assert_eq!(flow.slot().mapping(side), expected);
                assert_eq!(state(&flow, side).bypassed, sent[side] > 0);
                // A segment meets its socket at the numbers of the very beginning.
                let packet = flow.later(side, 0, 0, 0);
                let ran = flow.ingress(side, &packet.bytes());
                assert_eq!(ran.verdict, OK);
                let seq = u32::from_be_bytes(ran.packet[L4 + 4..L4 + 8].try_into().expect("four bytes"));
                assert_eq!(seq.wrapping_add(sum[side]), packet.seq);
            }
            assert!(flow.slot().resolve());
            flow.transition(Mode::Track, Mode::Drain);
            flow.finish();
        }
    }
}

#[test]
fn only_from_final_and_only_where_the_sockets_can() {
    let modes = [
        Mode::Free,
        Mode::Track,
        Mode::Aborted,
        Mode::Replaced,
        Mode::Moved,
        Mode::Undrain,
    ];
    for mode in modes {
        let flow = Flow::track(Plan::default());
        flow.slot().set_wakeable(true);
        flow.transition(Mode::Track, mode);
        let before = flow.raw();
        assert_eq!(flow.plane.wake(flow.slot()).expect("it runs"), mode);
        assert_eq!(format!("{:?}", flow.raw()), format!("{before:?}"));
        flow.transition(mode, Mode::Track);
    }
    let flow = Flow::dormant(Plan::default());
    assert_eq!(flow.plane.wake(flow.slot()).expect("it runs"), Mode::Final);
}

#[test]
fn in_drain_a_direction_that_did_not_go_past_stays_the_sockets() {
    // Both sockets still hold old bytes; nothing was forwarded.
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        assert_eq!(
            flow.ingress(side, &flow.later(side, 0, 30, 0).bytes()).verdict,
            OK
        );
    }
    flow.transition(Mode::Track, Mode::Drain);
    let before = flow.raw();
    assert_eq!(flow.plane.wake(flow.slot()).expect("it runs"), Mode::Undrain);
    for side in Side::BOTH {
        let (a, b) = (flow.raw_leg(side), before.leg[side]);
        assert_eq!(format!("{a:?}"), format!("{b:?}"));
    }
}

#[test]
fn in_drain_it_is_refused_until_the_sockets_are_through() {
    for side in Side::BOTH {
        let far = side.other();
        let flow = Flow::track(Plan::default());
        assert_eq!(
            flow.ingress(side, &flow.later(side, 0, 20, 0).bytes()).verdict,
            OK
        );
        assert_eq!(
            flow.egress(far, &flow.local_later(far, 0, 20, 0).bytes()).verdict,
            OK
        );
        flow.transition(Mode::Track, Mode::Drain);
        assert_eq!(
            flow.ingress(side, &flow.later(side, 20, 30, 0).bytes()).verdict,
            7
        );
        let refused = || {
            let before = flow.raw();
            assert_eq!(flow.plane.wake(flow.slot()).expect("it runs"), Mode::Drain);
            assert_eq!(format!("{:?}", flow.raw()), format!("{before:?}"));
        };
        // The far socket's bytes are not acknowledged, and user space has not read on.
        refused();
        flow.slot()
            .set_delivered(side, Seq::new(flow.plan.peer[side]) + 20);
        refused();
        assert_eq!(flow.ingress(far, &flow.later(far, 0, 0, 20).bytes()).verdict, OK);
        flow.slot()
            .set_delivered(side, Seq::new(flow.plan.peer[side]) + 19);
        refused();
        flow.slot()
            .set_delivered(side, Seq::new(flow.plan.peer[side]) + 20);
        assert_eq!(flow.plane.wake(flow.slot()).expect("it runs"), Mode::Undrain);
    }
}
