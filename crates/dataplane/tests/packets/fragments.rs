//! Fragments of a spliced flow: the first one is translated, the others follow it.

use std::{
    ops::Range,
    sync::atomic::{AtomicU16, Ordering},
};

use longsplice_dataplane::{Context, Family, Hook, Side};

use crate::support::{
    choose,
    flow::{Flow, OK, Plan, REDIRECT, SHOT},
    packet::*,
};

/// Bytes of TCP header and payload in a fragment.
const PIECE: usize = 240;

/// Returns a segment that makes three fragments. Its identification is a new one: the programs remember others.
pub(crate) fn segment(flow: &Flow, side: Side) -> Packet {
    static ID: AtomicU16 = AtomicU16::new(1);
    let whole = Packet {
        id: ID.fetch_add(1, Ordering::Relaxed),
        payload: pattern(PIECE * 3 - BODY + L4 - 12 - 40),
        ..flow.peer_segment(side)
    };
    flow.timed(side, 1, whole)
}

/// Returns the version of IP of a frame.
fn version_of(frame: &[u8]) -> Family {
    match frame[ETH] >> 4 {
        4 => Family::V4,
        _ => Family::V6,
    }
}

/// Returns the place of the identification in a frame.
fn id_of(frame: &[u8]) -> Range<usize> {
    match version_of(frame) {
        Family::V4 => 18..20,
        Family::V6 => 58..62,
    }
}

/// Returns the fragments of a segment of either version of IP, with the checksum of the whole.
pub(crate) fn pieces(whole: &Packet) -> Vec<Vec<u8>> {
    let l4 = whole.l4();
    let bytes = whole.bytes();
    let body = &bytes[l4..];
    let n = body.len().div_ceil(PIECE);
    (0..n)
        .map(|i| {
            let last = i + 1 == n;
            let header = whole.fragment_at((i * PIECE / 8) as u16, !last);
            let mut frame = header.bytes();
            frame.truncate(header.l4());
            frame.extend(&body[i * PIECE..body.len().min((i + 1) * PIECE)]);
            let (length, uncounted) = match version_of(&frame) {
                Family::V4 => (16..18, 0),
                Family::V6 => (18..20, 40),
            };
            let len = frame.len() - ETH - uncounted;
            frame[length].copy_from_slice(&(len as u16).to_be_bytes());
            mend(&mut frame);
            frame
        })
        .collect()
}

/// Computes the checksum of an IPv4 header.
fn mend(frame: &mut [u8]) {
    if version_of(frame) == Family::V4 {
        frame[24..26].fill(0);
        let check = internet_checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&check.to_be_bytes());
    }
}

/// Returns the frame with the identification of another.
pub(crate) fn with_id(frame: &[u8], like: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let id = id_of(&frame);
    frame[id.clone()].copy_from_slice(&like[id]);
    mend(&mut frame);
    frame
}

fn run(flow: &Flow, side: Side, frame: &[u8]) -> (u32, Vec<u8>, Vec<String>) {
    let (ran, counted) = flow.counted(|| flow.ingress(side, frame));
    (ran.verdict, ran.packet, counted.into_keys().collect())
}

fn each(test: impl Fn(&Flow, Side)) {
    for make in [Flow::dormant, Flow::detached] {
        for side in Side::BOTH {
            test(&make(Plan::default()), side);
        }
    }
}

#[test]
fn they_follow_the_first_one_in_any_order() {
    each(|flow, side| {
        let whole = Packet {
            flags: ACK | PSH | FIN,
            ..segment(flow, side)
        };
        let expected = pieces(&flow.reference(side).translate(&whole));
        let sent = pieces(&whole);
        assert_eq!(sent.len(), 3);
        let mut first = None;
        for i in [0, 2, 1, 2] {
            let (verdict, got, counted) = run(flow, side, &sent[i]);
            assert_eq!(
                (verdict, counted),
                (REDIRECT, vec!["forwarded".to_owned(), "fragment".to_owned()]),
                "piece {i}"
            );
            let like = first.get_or_insert_with(|| got.clone());
            assert_frame(&got, &with_id(&expected[i], like), &format!("piece {i}"));
        }
        // All of it counts as sent, and so does its FIN.
        if flow.slot.is_some() {
            let leg = flow.raw_leg(side);
            assert_eq!(leg.rec.rx_end, whole.end().wrapping_sub(1));
            assert_eq!(leg.rec.seen, 1, "its FIN");
        }
    });
}

#[test]
fn the_time_of_all_is_that_of_the_first_one() {
    for side in Side::BOTH {
        let flow = Flow::dormant(Plan::default());
        let whole = segment(&flow, side);
        let sent = pieces(&whole);
        flow.ingress(side, &sent[0]);
        let noted = flow.raw_leg(side).rec.ts_high;
        // A segment with another time comes in between, and nothing of it is noted.
        let other = flow.timed(side, 1 << 29, flow.later(side, u32::MAX, 0, 0));
        flow.ingress(side, &other.bytes());
        flow.ingress(side, &sent[1]);
        assert_eq!(flow.raw_leg(side).rec.ts_high, noted);
        assert_eq!(
            flow.raw_leg(side).rec.rx_end,
            whole.seq + 2 * PIECE as u32 - (TCP + whole.options.len()) as u32
        );
    }
}

#[test]
fn a_fin_counts_with_the_last_one() {
    for side in Side::BOTH {
        let flow = Flow::dormant(Plan::default());
        let whole = Packet {
            flags: ACK | FIN,
            ..segment(&flow, side)
        };
        let sent = pieces(&whole);
        for (i, seen) in [(0, 0), (1, 0), (2, 1)] {
            flow.ingress(side, &sent[i]);
            assert_eq!(flow.raw_leg(side).rec.seen, seen, "piece {i}");
        }
    }
}

#[test]
fn a_sum_of_the_device_stays_right() {
    each(|flow, side| {
        let context = Context {
            ifindex: flow.ifindex(side),
            summed: true,
            ..Context::default()
        };
        for frame in pieces(&segment(flow, side)) {
            let ran = flow.plane.run_in(Hook::Ingress, &frame, context, 1);
            assert_eq!(ran.expect("the sum is right").verdict, REDIRECT);
        }
    });
}

#[test]
fn what_has_no_first_one_is_not_touched() {
    each(|flow, side| {
        let sent = pieces(&segment(flow, side));
        // The table outlives a flow: this identification is new to it.
        let mut alone = sent[1].clone();
        let id = id_of(&alone);
        alone[id.start] ^= 0x40;
        mend(&mut alone);
        flow.ignores(side, &alone);
        flow.ingress(side, &sent[0]);
        // A fragment of another datagram, or of another sender.
        let mut other = sent[1].clone();
        other[id.start + 1] ^= 1;
        mend(&mut other);
        flow.ignores(side, &other);
        let mut stranger = sent[1].clone();
        stranger[choose(29, 37)] ^= 1;
        mend(&mut stranger);
        flow.ignores(side, &stranger);
    });
}

#[test]
fn one_over_the_header_of_tcp_is_dropped() {
    each(|flow, side| {
        let whole = segment(flow, side);
        let sent = pieces(&whole);
        flow.ingress(side, &sent[0]);
        for at in [1, 3] {
            let mut frame = whole.fragment_at(at, true).bytes();
            frame.truncate(L4 + choose(0, 8) + 16);
            let len = frame.len() - ETH - choose(0, 40);
            frame[LENGTH].copy_from_slice(&(len as u16).to_be_bytes());
            mend(&mut frame);
            flow.ingress_gives(side, &frame, (SHOT, "drop_fragment", &frame));
        }
    });
}

#[test]
fn a_forged_first_one_makes_no_way_for_others() {
    each(|flow, side| {
        let fine = segment(flow, side);
        let forged = [
            Packet {
                seq: flow.plan.peer[side].wrapping_sub(1 << 26),
                ..fine.clone()
            },
            Packet {
                seq: flow.plan.peer[side].wrapping_add(1 << 24),
                ..fine.clone()
            },
            Packet {
                flags: RST | ACK,
                ..fine.clone()
            },
            Packet {
                flags: SYN,
                ..fine.clone()
            },
        ];
        for whole in forged {
            let sent = pieces(&whole);
            flow.ingress_gives(side, &sent[0], (SHOT, "drop_fragment", &sent[0]));
            flow.ignores(side, &sent[1]);
        }
    });
}

#[test]
fn a_repetition_passes_as_far_back_as_the_window_may_have_reached() {
    each(|flow, side| {
        // More acknowledgements were lost than those of one datagram.
        let whole = Packet {
            seq: flow.plan.peer[side].wrapping_sub(200_000),
            ..segment(flow, side)
        };
        for (i, piece) in pieces(&whole).iter().enumerate() {
            let (verdict, _, counted) = run(flow, side, piece);
            assert_eq!(
                (verdict, counted),
                (REDIRECT, vec!["forwarded".to_owned(), "fragment".to_owned()]),
                "piece {i}"
            );
        }
    });
}

#[test]
fn without_a_whole_tcp_header_it_is_dropped() {
    each(|flow, side| {
        let whole = segment(flow, side);
        let mut frame = whole.fragment_at(0, true).bytes();
        frame.truncate(L4 + choose(0, 8) + 24);
        let len = frame.len() - ETH - choose(0, 40);
        frame[LENGTH].copy_from_slice(&(len as u16).to_be_bytes());
        mend(&mut frame);
        flow.ingress_gives(side, &frame, (SHOT, "drop_fragment", &frame));
    });
}

#[test]
fn in_control_mode_the_kernel_collects_them() {
    for side in Side::BOTH {
        let flow = Flow::track(Plan::default());
        let sent = pieces(&segment(&flow, side));
        flow.ingress_gives(side, &sent[0], (OK, "delivered", &sent[0]));
        flow.ignores(side, &sent[1]);
    }
}
