//! Moves between slot and records: from dormant to detached and back, while segments pass.

use std::{
    io::ErrorKind,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use longsplice_dataplane::{
    Context, Dataplane, Hook, Mode, PerSide, Seq, Side, Slot, SuccessorAction, SuccessorPlan,
};

use crate::support::{
    flow::{Flow, Plan, REDIRECT, SHOT, legs},
    packet::*,
    raw::types::{ls_mode, ls_placement, ls_record, ls_seen},
    woken::Past,
};

/// Returns a record's placement, and its other fields.
fn placed(rec: ls_record) -> (ls_placement, u32, String) {
    let armed = rec.placement & ls_placement::LS_ARMED.0 as u8;
    let placement = ls_placement(u32::from(rec.placement - armed));
    let rest = ls_record {
        placement: armed,
        r#where: 0,
        ..rec
    };
    (placement, rec.r#where, format!("{rest:?}"))
}

/// Returns a detached flow with a value in every field.
fn detached() -> Flow {
    let mut flow = Flow::dormant(Plan::default());
    flow.pass(Past {
        sent: [500, 30],
        fin: [true, false],
        acked: [3, 44],
    });
    let (plan, _) = SuccessorPlan::of(SuccessorAction::End, 5 << 30, false);
    flow.slot().set_successor(Side::Server, plan);
    flow.slot().set_trap(Side::Server, Some(Seq::new(12_345)));
    flow.slot().set_timestamp_offsets(PerSide::new(7, 9));
    flow.detach();
    flow
}

#[test]
fn attaching_keeps_every_field() {
    let mut flow = detached();
    let before = PerSide::from_fn(|side| flow.raw_record(side).expect("a record"));
    let armed = |r: ls_record| u32::from(r.placement) & ls_placement::LS_ARMED.0 != 0;
    assert_eq!(before.map(armed), PerSide::new(false, true));
    assert_eq!(before.map(|r| r.successor != 0), PerSide::new(false, true));
    assert_eq!(before.client.seen, ls_seen::LS_SEEN_FIN.0 as u8);
    let slot = flow.plane.take_slot().expect("a free slot");
    flow.plane
        .promote(&slot, before.client.serial, legs())
        .expect("attached");
    flow.slot = Some(slot);
    assert_eq!(flow.slot().mode(), Mode::Final);
    assert_eq!(flow.raw().flags, 0, "no sockets: no pair can be woken");
    for side in Side::BOTH {
        let leg = flow.raw_leg(side);
        assert_eq!(placed(leg.rec).2, placed(before[side]).2);
        let (placement, index, rest) = placed(flow.raw_record(side).expect("a record"));
        assert_eq!(
            (placement, index),
            (ls_placement::LS_SLOTTED, flow.slot().index())
        );
        assert_eq!(rest, placed(before[side]).2);
        // It is the lowest possible value of its clock.
        assert_eq!(leg.rx_ts, leg.rec.ts_high.wrapping_sub(leg.rec.tsval_off));
    }
    flow.plan.ts = [7, 9];
    let packet = flow.later(Side::Client, 10, 20, 0);
    flow.forwards(Side::Client, &packet, &mut flow.reference(Side::Client));
    // Move it back again: nothing is lost on the way.
    let before = PerSide::from_fn(|side| flow.raw_leg(side).rec);
    assert_eq!(before.client.bytes_low, 520);
    flow.demote().expect("demoted");
    for side in Side::BOTH {
        let (placement, toward, rest) = placed(flow.raw_record(side).expect("a record"));
        assert_eq!(
            (placement, toward),
            (ls_placement::LS_DETACHED, flow.ifindex(side.other()))
        );
        assert_eq!(rest, placed(before[side]).2);
    }
}

#[test]
fn a_flow_that_is_not_there_or_has_a_slot_is_not_attached() {
    let flow = detached();
    let serial = flow.raw_record(Side::Client).expect("a record").serial;
    let records = || format!("{:?}", Side::BOTH.map(|side| flow.raw_record(side)));
    let before = records();
    let slot = flow.plane.take_slot().expect("a free slot");
    let refused = |serial, legs| {
        let error = flow.plane.promote(&slot, serial, legs).expect_err("not attached");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    };
    refused(serial + 1, legs());
    let mut strangers = legs();
    for leg in &mut strangers {
        leg.peer.set_port(9);
    }
    refused(serial, strangers);
    assert_eq!(records(), before);
    flow.plane.promote(&slot, serial, legs()).expect("attached");
    let before = records();
    let other = flow.plane.take_slot().expect("a free slot");
    let error = flow
        .plane
        .promote(&other, serial, legs())
        .expect_err("it has a slot");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(records(), before);
}

#[test]
fn a_flow_whose_sockets_are_in_the_path_is_not_released() {
    for mode in [
        Mode::Track,
        Mode::Drain,
        Mode::Undrain,
        Mode::Aborted,
        Mode::Freeze,
    ] {
        let flow = Flow::woken(Plan::default(), Past::unacknowledged([1000, 70]));
        if mode != Mode::Undrain {
            flow.transition(Mode::Undrain, mode);
        }
        let state = || {
            format!(
                "{:?} {:?}",
                flow.raw(),
                Side::BOTH.map(|side| flow.raw_record(side))
            )
        };
        let before = state();
        let error = flow.demote().expect_err("its sockets are awake");
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{mode:?}");
        assert_eq!(state(), before, "{mode:?}");
    }
}

#[test]
fn a_segment_between_two_places_comes_in_once_more() {
    for mode in [ls_mode::LS_MOVED, ls_mode::LS_WAKING] {
        for side in Side::BOTH {
            let flow = Flow::dormant(Plan::default());
            flow.edit(|slot| slot.mode = mode.0);
            let syn = Packet {
                flags: SYN,
                ..flow.later(side, 0, 0, 0)
            };
            for packet in [flow.later(side, 0, 0, 0), flow.later(side, 0, 100, 0), syn] {
                let frame = packet.bytes();
                flow.ingress_gives(side, &frame, (REDIRECT, "requeued", &frame));
            }
            // A segment of the parked socket is dropped all the same.
            let frame = flow.local_segment(side).bytes();
            flow.egress_gives(side, &frame, (SHOT, "drop_parked", &frame));
            flow.edit(|slot| slot.mode = ls_mode::LS_FINAL.0);
        }
    }
}

/// The processor that changes the mode may be stopped meanwhile, a virtual one's by its host.
#[test]
fn who_asks_in_the_middle_of_a_change_is_told_what_it_became() {
    type Ask = fn(&Dataplane, &Slot) -> std::io::Result<Mode>;
    let asks: [(&str, Ask); 3] = [
        ("wake", Dataplane::wake),
        ("freeze", Dataplane::freeze),
        ("finish", |plane, slot| {
            plane.finish(slot, PerSide::default(), false)
        }),
    ];
    for (name, ask) in asks {
        let flow = Flow::dormant(Plan::default());
        let (plane, slot) = (&flow.plane.plane, flow.slot());
        flow.edit(|slot| slot.mode = ls_mode::LS_WAKING.0);
        let mode = std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(plane, slot).expect("the program runs"));
            // The answer is the same, asked in the meantime or not.
            std::thread::sleep(Duration::from_millis(20));
            flow.edit(|slot| slot.mode = ls_mode::LS_UNDRAIN.0);
            asked.join().expect("it does not panic")
        });
        assert_eq!(mode, Mode::Undrain, "{name}");
    }
}

#[test]
fn nothing_is_forgotten_of_segments_that_pass_meanwhile() {
    const STEP: u32 = 100;
    let mut flow = Flow::dormant(Plan::default());
    let serial = flow.slot().serial();
    let ifindex = flow.ifindex(Side::Client);
    let (stop, passed) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut moves = 0;
    let start = flow.plan.peer[0];
    let template = flow.later(Side::Client, 0, STEP, 0);
    let acknowledgement = flow.later(Side::Server, 0, 0, 0);
    let server = flow.ifindex(Side::Server);
    let plane = &flow.plane.plane;
    // One thread sends, in order; the far end acknowledges what it received. Another one moves the flow.
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut offset = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let packet = Packet {
                    seq: start.wrapping_add(offset),
                    ..template.clone()
                };
                let context = Context {
                    ifindex,
                    ..Context::default()
                };
                let ran = plane
                    .run_in(Hook::Ingress, &packet.bytes(), context, 1)
                    .expect("it runs");
                assert_eq!(ran.verdict, REDIRECT);
                // A changed packet was forwarded; an unchanged one comes in once more.
                if ran.packet == packet.bytes() {
                    continue;
                }
                offset += STEP;
                passed.store(offset, Ordering::Relaxed);
                let ack = Packet {
                    ack: acknowledgement.ack.wrapping_add(offset),
                    ..acknowledgement.clone()
                };
                let context = Context {
                    ifindex: server,
                    ..Context::default()
                };
                // It is faster than any path: it may come before the slot knows the bytes that it acknowledges.
                let come = || {
                    plane
                        .run_in(Hook::Ingress, &ack.bytes(), context, 1)
                        .expect("it runs")
                };
                while come().verdict != REDIRECT {
                    std::thread::yield_now();
                }
            }
            offset
        });
        let mut slot = flow.slot.take().expect("it has a slot");
        while !sender.is_finished() && moves < 200 {
            let before = passed.load(Ordering::Relaxed);
            plane.demote(&slot, legs(), PerSide::both(0)).expect("demoted");
            // The second call merges changes of programs that had found the slot before.
            plane.demote(&slot, legs(), PerSide::both(0)).expect("merged");
            drop(slot);
            slot = loop {
                match plane.take_slot() {
                    Some(slot) => break slot,
                    None => std::thread::yield_now(),
                }
            };
            plane.promote(&slot, serial, legs()).expect("attached");
            moves += 1;
            // Some moves are made at once; after others a segment passes first.
            while moves % 2 == 0 && passed.load(Ordering::Relaxed) == before && !sender.is_finished() {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        flow.slot = Some(slot);
        sender.join().expect("it sends")
    });
    let leg = flow.raw_leg(Side::Client);
    assert_eq!(leg.rec.rx_end, start.wrapping_add(sent));
    assert_eq!(
        flow.raw_leg(Side::Server)
            .rec
            .rx_ack
            .wrapping_sub(flow.plan.local[1])
            / STEP,
        sent / STEP
    );
}
