//! FINAL: timestamps and SACK, at any place among the options.

use longsplice_dataplane::Side;

use crate::support::{
    flow::{Flow, Plan},
    options::{Opt, usual, usual_with_sack, write},
    packet::*,
};

use Opt::{Nop, Other, Rest, Sack, Timestamps};

fn blocks(n: usize) -> Vec<(u32, u32)> {
    (0..n as u32)
        .map(|i| {
            (
                0xffff_ff00u32.wrapping_add(i * 1000),
                0xffff_ff80u32.wrapping_add(i * 1000),
            )
        })
        .collect()
}

/// Returns every layout with a timestamp, of this value.
fn layouts(value: u32, echo: u32) -> Vec<Vec<u8>> {
    let ts = Timestamps(value, echo);
    let unknown = |n| Other(253, vec![0xee; n]);
    let sack = |n| Sack(blocks(n));
    let mut all = vec![
        usual(value, echo),
        write(&[ts.clone(), Nop, Nop]),
        write(std::slice::from_ref(&ts)),
        write(&[Nop, ts.clone(), Nop]),
        write(&[Other(2, vec![5, 0xb4]), ts.clone(), Nop, Nop]),
        write(&[ts.clone(), Other(2, vec![5, 0xb4]), Nop, Nop]),
        write(&[unknown(0), ts.clone()]),
        write(&[unknown(8), ts.clone(), unknown(8)]),
        write(&[Nop, Nop, ts.clone(), unknown(10)]),
        write(&[ts.clone(), Rest(vec![0, 0xde, 0xad])]),
        // A kind that looks like a timestamp, but has another length.
        write(&[Other(8, vec![1, 2]), ts.clone(), Nop, Nop]),
        // Bytes that look like a SACK inside an unknown option.
        write(&[
            Nop,
            Nop,
            ts.clone(),
            Other(200, vec![5, 10, 1, 2, 3, 4, 5, 6, 7, 8]),
        ]),
        // A timestamp as near to the end as possible.
        write(&[unknown(28), ts.clone()]),
        write(&[unknown(27), ts.clone(), Nop]),
        write(&[unknown(26), ts.clone(), Nop, Nop]),
        write(&[Nop, Nop, sack(3), Nop, Nop, ts.clone()]),
        write(&[sack(3), Nop, Nop, Nop, ts.clone(), Nop]),
    ];
    for n in 1..=3 {
        all.push(usual_with_sack(value, echo, &blocks(n)));
        all.push(write(&[sack(n), ts.clone()]));
        all.push(write(&[Nop, sack(n), ts.clone(), Nop]));
        all.push(write(&[ts.clone(), sack(n)]));
        all.push(write(&[Nop, ts.clone(), sack(n)]));
    }
    all
}

fn without_timestamps() -> Vec<Vec<u8>> {
    let mut all = vec![
        write(&[Nop, Nop, Nop, Nop]),
        write(&[Other(2, vec![5, 0xb4])]),
        // Impossible lengths: the rest is not touched.
        write(&[Rest(vec![5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])]),
        write(&[Rest(vec![5, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])]),
        write(&[Rest(vec![5, 18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])]),
        write(&[Rest(vec![8, 40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])]),
        write(&[Nop, Nop, Rest(vec![0, 0, 5, 10, 1, 2, 3, 4, 5, 6])]),
        // A kind and no length.
        write(&[Nop, Nop, Nop, Rest(vec![5])]),
        write(&[Rest([vec![1; 39], vec![8]].concat())]),
        write(&vec![Nop; 40]),
    ];
    for n in 1..=4 {
        let sack = Sack(blocks(n));
        all.push(write(&[Nop, Nop, sack.clone()]));
        all.push(write(&[sack.clone(), Nop, Nop]));
        all.push(write(&[Nop, sack.clone(), Nop]));
        all.push(write(&[sack]));
    }
    all.push(write(&[Sack(blocks(1)), Sack(blocks(2)), Nop, Nop]));
    all
}

fn each(plan: Plan, mut test: impl FnMut(&Flow, Side)) {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(plan.clone());
        for side in Side::BOTH {
            test(&flow, side);
        }
    }
}

fn with(flow: &Flow, side: Side, options: Vec<u8>) -> Packet {
    Packet {
        options,
        payload: pattern(5),
        ..flow.peer_segment(side)
    }
}

#[test]
fn timestamps_in_any_order() {
    each(Plan::default(), |flow, side| {
        let mut reference = flow.reference(side);
        let now = flow.plan.clock[side];
        for (later, options) in layouts(0, 0).iter().enumerate() {
            assert!(!options.is_empty());
            let options = layouts(now + 10 + later as u32, 77_000 + later as u32).swap_remove(later);
            flow.forwards(side, &with(flow, side, options), &mut reference);
        }
    });
}

#[test]
fn timestamps_wrap_around() {
    let plan = Plan {
        clock: [u32::MAX - 5, 0x7fff_fffa],
        ts: [3, 1],
        ..Plan::default()
    };
    each(plan, |flow, side| {
        let mut reference = flow.reference(side);
        for later in 0..12 {
            let now = flow.plan.clock[side].wrapping_add(later);
            for options in [usual(now, now), write(&[Timestamps(now, now)])] {
                flow.forwards(side, &with(flow, side, options), &mut reference);
            }
        }
    });
}

#[test]
fn an_echo_of_0_stays_0() {
    each(Plan::default(), |flow, side| {
        let mut reference = flow.reference(side);
        for options in layouts(flow.plan.clock[side] + 1, 0) {
            let packet = with(flow, side, options);
            flow.forwards(side, &packet, &mut reference);
        }
        // An echo that becomes 0 by the translation is 0, too.
        let echo = flow.plan.ts[side.other()];
        let options = usual(flow.plan.clock[side] + 1, echo);
        assert_eq!(
            reference.translate(&with(flow, side, options.clone())).options[8..],
            [0; 4]
        );
        flow.forwards(side, &with(flow, side, options), &mut reference);
    });
}

#[test]
fn a_timestamp_never_goes_back() {
    each(Plan::default(), |flow, side| {
        let now = flow.plan.clock[side];
        let high = now + flow.plan.ts[side];
        let mut reference = flow.reference(side);
        for options in layouts(now - 1_000, 5) {
            let packet = with(flow, side, options);
            let expected = reference.translate(&packet);
            assert_eq!(reference.ts_high, high);
            flow.ingress_gives(side, &packet.bytes(), (7, "forwarded", &expected.bytes()));
        }
        // It goes on from there, and is held again.
        for value in [now + 5, now + 4, now + 5, now - 1, now + 6] {
            flow.forwards(side, &with(flow, side, usual(value, 5)), &mut reference);
        }
    });
}

#[test]
fn selective_acknowledgements_in_any_place() {
    each(Plan::default(), |flow, side| {
        for options in without_timestamps() {
            flow.forwards(side, &with(flow, side, options), &mut flow.reference(side));
        }
    });
}

#[test]
fn selective_acknowledgements_are_blanked_for_an_end_that_did_not_permit_them() {
    let plan = Plan {
        blank_sack: [true; 2],
        ..Plan::default()
    };
    each(plan, |flow, side| {
        let mut reference = flow.reference(side);
        let with_timestamps = layouts(flow.plan.clock[side] + 1, 5);
        for options in without_timestamps().into_iter().chain(with_timestamps) {
            flow.forwards(side, &with(flow, side, options), &mut reference);
        }
    });
}
