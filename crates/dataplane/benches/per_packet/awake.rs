//! Measures what a packet costs a pair whose sockets are in the path again.

use longsplice_dataplane::{Context, Hook, Mapping, Mode, Offset, Seq, Side};

use crate::{
    CALLS, REPEAT, measure, spread,
    support::{
        flow::{Flow, OK, Plan},
        options::usual,
        packet::Packet,
        woken::Past,
    },
};

/// Payload of an old segment, in bytes.
const OLD: u32 = 1000;
/// A wake is measured alone: so few are enough, and numbers do not wrap.
const WAKES: u32 = CALLS;

fn on(flow: &Flow) -> Context {
    Context {
        ifindex: flow.ifindex(Side::Client),
        ..Context::default()
    }
}

pub(crate) fn rows() {
    println!("{:28}{:>20}", "", "awake");
    let rows = [
        ("delivered", delivered as fn() -> String),
        ("delivered, mapped", mapped),
        ("woken by it", woken),
    ];
    for (name, row) in rows {
        println!("{name:28}{:>20}", row());
    }
    println!("{:28}{:>20}", "forwarded, below the base", forwarded());
}

/// TRACK, for comparison: no more than notes.
fn delivered() -> String {
    let flow = Flow::track(Plan::default());
    let packet = flow.timed(Side::Client, 1, flow.later(Side::Client, 0, 0, 0));
    measure(&flow.plane, &packet.bytes(), on(&flow), "delivered")
}

/// TRACK, of a pair that was spliced before. A run gets what the last one made of the packet: so the mapping is small, and
/// stays within the window.
fn mapped() -> String {
    let flow = Flow::track(Plan {
        mapping: [Mapping {
            seq: Offset::new(1),
            ack: Offset::default(),
        }; 2],
        ..Plan::default()
    });
    assert!(REPEAT < flow.plan.offered[0]);
    let packet = flow.timed(Side::Client, 1, flow.later(Side::Client, 0, 0, 0));
    measure(&flow.plane, &packet.bytes(), on(&flow), "delivered")
}

/// FINAL: the segment that meets the trap, until it is ready for its socket.
fn woken() -> String {
    let flow = Flow::dormant(Plan::default());
    let (slot, side) = (flow.slot(), Side::Client);
    let mut all = Vec::new();
    for cycle in 0..WAKES {
        let at = cycle * 2 * OLD;
        let next = |offset: u32| Packet {
            options: usual(flow.plan.clock[0], 1),
            ..flow.later(side, offset, OLD, 0)
        };
        // The far end has acknowledged all, and offers a window from there.
        let ack = flow.later(side.other(), 0, 0, at);
        flow.ingress(side.other(), &ack.bytes());
        assert_eq!(flow.ingress(side, &next(at).bytes()).verdict, 7);
        slot.set_wakeable(true);
        slot.set_trap(side, Some(Seq::new(flow.plan.peer[0]) + (at + OLD + 1)));
        let ran = flow
            .plane
            .run_in(Hook::Ingress, &next(at + OLD).bytes(), on(&flow), 1)
            .expect("it runs");
        assert_eq!((ran.verdict, slot.mode()), (OK, Mode::Undrain));
        all.push(ran.nanoseconds);
        // Its socket takes the half that it got, and offers a window from there.
        let taken = flow.local_later(side, 0, 0, (cycle + 1) * OLD);
        assert_eq!(flow.egress(side, &taken.bytes()).verdict, OK);
        slot.set_trap(side, None);
        assert!(slot.transition(Mode::Undrain, Mode::Track));
        assert!(slot.transition(Mode::Track, Mode::Drain));
        flow.finish();
    }
    spread(all)
}

/// UNDRAIN: what was forwarded before is forwarded once more. A segment that was translated is none of its flow's any
/// more: so each is run once.
fn forwarded() -> String {
    let flow = Flow::woken(Plan::default(), Past::unacknowledged([OLD, OLD]));
    let packet = flow
        .timed(Side::Client, 1, flow.later(Side::Client, 0, OLD, 0))
        .bytes();
    let all = (0..CALLS).map(|_| {
        let ran = flow
            .plane
            .run_in(Hook::Ingress, &packet, on(&flow), 1)
            .expect("it runs");
        assert_eq!(ran.verdict, 7);
        ran.nanoseconds
    });
    spread(all.collect())
}
