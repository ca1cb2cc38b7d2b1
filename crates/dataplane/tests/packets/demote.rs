//! Moves from dormant to detached, while segments pass.

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use longsplice_dataplane::{Direction, Mode, Side};

use crate::support::{
    flow::{Flow, Plan, legs, register},
    options::usual,
    packet::*,
};

/// Offset of `leg[0].rec.seen` in a slot.
const SEEN: usize = 16 + 19;
/// Offset of `leg[0].rec.rx_end`, which `rx_ack` and `rx_edge` follow.
const RX_END: usize = 16 + 40;

/// Returns the directions, the client side's first.
fn records(flow: &Flow) -> Vec<Direction> {
    let mut all = Vec::new();
    flow.plane.scan(|d| all.push(d)).expect("a scan");
    all.sort_by_key(|d| d.side != Side::Client);
    all
}

/// Returns a direction's counts and flags.
fn soft(d: &Direction) -> (u64, u32, u32, bool, bool) {
    (d.bytes, d.end.raw(), d.ack.raw(), d.fin, d.reset)
}

/// Changes the bytes of a flow's slot, as a segment may that had found it before.
fn change_slot(flow: &Flow, change: impl FnOnce(&mut [u8])) {
    let slots = pinned(flow, "slots");
    let key = flow.slot().index().to_ne_bytes();
    let value = slots.lookup(&key, MapFlags::ANY).expect("the map");
    let mut value = value.expect("the slot");
    change(&mut value);
    slots.update(&key, &value, MapFlags::ANY).expect("written");
}

#[test]
fn counters_and_ends_are_kept() {
    let flow = Flow::dormant(Plan::default());
    for side in Side::BOTH {
        let packet = Packet {
            payload: pattern(100),
            ack: flow.plan.local[side].wrapping_add(7),
            ..flow.peer_segment(side)
        };
        // The far end has sent seven bytes, so that they can be acknowledged.
        let far = Packet {
            payload: pattern(7),
            ..flow.peer_segment(side.other())
        };
        flow.forwards(side.other(), &far, &mut flow.reference(side.other()));
        flow.forwards(side, &packet, &mut flow.reference(side));
    }
    let fin = Packet {
        seq: flow.plan.peer[0] + 100,
        flags: FIN | ACK,
        ..flow.peer_segment(Side::Client)
    };
    flow.forwards(Side::Client, &fin, &mut flow.reference(Side::Client));
    let before = flow.plane.directions(flow.slot(), legs());
    assert!(records(&flow).iter().all(|d| d.slot == Some(flow.slot().index())));
    assert_eq!(
        soft(&before.client),
        (107, flow.plan.peer[0] + 100, flow.plan.local[0] + 7, true, false)
    );

    flow.demote().expect("demoted");
    let after = records(&flow);
    assert_eq!(after.len(), 2);
    for (b, a) in before.iter().zip(&after) {
        assert_eq!(soft(a), soft(b));
        assert_eq!((a.slot, a.serial, a.leg, a.far), (None, b.serial, b.leg, b.far));
    }
    // The record has the current state from here on.
    let more = Packet {
        seq: flow.plan.peer[1] + 100,
        payload: pattern(11),
        ..flow.peer_segment(Side::Server)
    };
    flow.forwards(Side::Server, &more, &mut flow.reference(Side::Server));
    assert_eq!(records(&flow)[1].bytes, after[1].bytes + 11);
    assert_eq!(
        flow.plane.directions(flow.slot(), legs()).server.bytes,
        before.server.bytes
    );
}

#[test]
fn the_timestamp_offsets_that_were_set_in_the_slot_are_kept() {
    let mut flow = Flow::dormant(Plan::default());
    flow.plan.ts = [777, 0x1234_5678];
    flow.slot().set_timestamp_offsets(flow.plan.ts.into());
    flow.demote().expect("demoted");
    for side in Side::BOTH {
        let packet = Packet {
            options: usual(0x7000_0000, 5_000),
            ..flow.peer_segment(side)
        };
        let mut reference = flow.reference(side);
        // A TSval that was sent to the far end before the offsets were set is still a floor.
        reference.ts_high = Plan::default().clock[side].wrapping_add(Plan::default().ts[side]);
        flow.forwards(side, &packet, &mut reference);
    }
}

#[test]
fn the_second_call_merges_what_was_under_way() {
    let flow = Flow::dormant(Plan::default());
    flow.demote().expect("demoted");
    // A segment that had found the slot before the first call notes a FIN in it after that.
    change_slot(&flow, |value| value[SEEN] = 1);
    assert!(!records(&flow)[0].fin);
    // The record is not taken back to the slot's counters.
    let packet = Packet {
        payload: pattern(9),
        ..flow.peer_segment(Side::Client)
    };
    flow.forwards(Side::Client, &packet, &mut flow.reference(Side::Client));

    flow.demote().expect("demoted again");
    let all = records(&flow);
    assert_eq!(
        soft(&all[0]),
        (9, flow.plan.peer[0] + 9, flow.plan.local[0], true, false)
    );
    assert!(!all[1].fin);
}

/// The flow has run on for 3 GiB since its first call: the numbers in the slot seem to be 1 GiB ahead.
#[test]
fn the_second_call_takes_no_numbers_that_the_stream_has_left_behind() {
    let flow = Flow::dormant(Plan::default());
    flow.demote().expect("demoted");
    change_slot(&flow, |value| {
        for number in value[RX_END..RX_END + 12].chunks_exact_mut(4) {
            let ahead = u32::from_ne_bytes(number.try_into().expect("four bytes")).wrapping_add(1 << 30);
            number.copy_from_slice(&ahead.to_ne_bytes());
        }
    });
    let before: Vec<_> = records(&flow).iter().map(soft).collect();
    flow.demote().expect("demoted again");
    assert_eq!(records(&flow).iter().map(soft).collect::<Vec<_>>(), before);
    for side in Side::BOTH {
        flow.forwards(side, &flow.peer_segment(side), &mut flow.reference(side));
    }
}

#[test]
fn a_flow_that_was_replaced_is_not_found() {
    let flow = Flow::dormant(Plan::default());
    flow.plane.end(legs());
    let error = flow.demote().expect_err("nothing is there");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);

    // Another flow with the same addresses is not touched.
    let other = register(&flow.plane, &Plan::default());
    let error = flow.demote().expect_err("it is another one");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(records(&flow).iter().all(|d| d.slot == Some(other.index())));
    assert_eq!(other.mode(), Mode::Track);
    drop(other);
}

#[test]
fn a_record_that_points_to_another_flows_slot_uses_it_not() {
    // A packet on another CPU may see this for an instant while release() runs: `where` is an interface already.
    let flow = Flow::dormant(Plan::default());
    let slots = pinned(&flow, "slots");
    let key = flow.slot().index().to_ne_bytes();
    let mut value = slots
        .lookup(&key, MapFlags::ANY)
        .expect("the map")
        .expect("the slot");
    value[8..12].copy_from_slice(&0xdead_beef_u32.to_ne_bytes()); // its serial number
    slots.update(&key, &value, MapFlags::ANY).expect("written");
    for side in Side::BOTH {
        flow.ignores(side, &flow.peer_segment(side).bytes());
    }
}

fn pinned(flow: &Flow, name: &str) -> MapHandle {
    let path = format!("/sys/fs/bpf/longsplice-{}/{name}", flow.plane.instance);
    MapHandle::from_pinned_path(path).expect("a pinned map")
}
