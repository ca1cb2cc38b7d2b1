//! The table of flows: whatever flows come and go, each tuple leads to its own flow only.

use std::{collections::BTreeMap, thread, time::Duration};

use longsplice_dataplane::{Dataplane, Leg, Mode, Offset, Options, PerSide, Side, Slot};

use crate::support::{
    flow::{Flow, Plan, legs},
    net::Net,
    packet::*,
    plane::{Plane, options, unique_instance},
};

/// Number of flows that exist at one time or another.
const FLOWS: u16 = 160;

/// Returns options for so few chains that some have many flows.
fn crowded(instance: &str) -> Options {
    Options {
        max_flows: 30,
        max_slots: 2,
        ..options(instance)
    }
}

/// Returns the legs of the n-th flow, of which four share each address.
fn nth(n: u16) -> PerSide<Leg> {
    legs().map(|mut leg| {
        leg.peer.set_port(1000 + n / 4);
        leg.local.set_port(2000 + n % 4);
        leg
    })
}

/// Registers the n-th flow in a slot that others have had, and detaches it.
fn add(plane: &Dataplane, slot: &Slot, n: u16) -> std::io::Result<u32> {
    let mut starts = Plan::default().starts();
    for side in Side::BOTH {
        starts[side].leg = nth(n)[side];
    }
    let serial = plane.next_serial();
    plane.register(slot, serial, true, &starts)?;
    assert!(slot.transition(Mode::Track, Mode::Drain) && slot.transition(Mode::Drain, Mode::Final));
    plane.demote(slot, nth(n), PerSide::both(0))?;
    Ok(serial)
}

/// Registers the n-th flow once there is room, by polling: no event reports room.
fn add_rested(plane: &Dataplane, slot: &Slot, n: u16) -> u32 {
    loop {
        match add(plane, slot, n) {
            Ok(serial) => return serial,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Other, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Asserts that each flow is found by both its legs, and nothing else is.
#[track_caller]
fn holds(plane: &Dataplane, flows: &BTreeMap<u16, u32>) {
    for n in 0..FLOWS {
        let found = nth(n).map(|leg| plane.direction(leg).map(|d| (d.serial, d.side, d.leg, d.far)));
        let PerSide { client, server } = nth(n);
        let expected = flows.get(&n).map(|&serial| PerSide {
            client: (serial, Side::Client, client, server),
            server: (serial, Side::Server, server, client),
        });
        assert_eq!(
            found,
            expected.map_or(PerSide::both(None), |both| both.map(Some)),
            "flow {n}"
        );
    }
    let mut seen = 0;
    plane.scan(|_| seen += 1).expect("a scan");
    assert_eq!(seen, 2 * flows.len());
}

#[test]
fn whatever_comes_and_goes_each_tuple_leads_to_its_flow() {
    let _net = Net::new();
    let instance = unique_instance();
    let (plane, _) = Dataplane::open(&crowded(&instance)).expect("opened");
    let plane = Plane::adopted(plane, &instance);
    let slot = plane.take_slot().expect("a slot");
    let mut flows = BTreeMap::new();
    for n in 0..32 {
        flows.insert(n, add(&plane, &slot, n).expect("there is room"));
    }
    holds(&plane, &flows);
    let full = add(&plane, &slot, FLOWS).expect_err("it is full");
    assert_eq!(full.kind(), std::io::ErrorKind::Other, "{full}");
    let taken = add(&plane, &slot, 7).expect_err("it is there, and the table is full");
    assert_eq!(taken.kind(), std::io::ErrorKind::Other, "{taken}");
    // Remove from the fronts, the middles and the ends of their chains.
    for n in (0..32).filter(|n| n % 3 != 1) {
        plane.end(nth(n));
        flows.remove(&n);
        holds(&plane, &flows);
    }
    // Freed elements are used again once they have rested, in other chains.
    for n in 32..FLOWS {
        while flows.len() > 31 || (flows.len() > 16 && n % 16 == 0) {
            // Remove any one: an old one, a young one, one in between.
            let (&gone, _) = flows
                .iter()
                .nth(usize::from(n) * 7 % flows.len())
                .expect("one of them");
            plane.end(nth(gone));
            flows.remove(&gone);
        }
        flows.insert(n, add_rested(&plane, &slot, n));
        holds(&plane, &flows);
    }
    // A successor finds the same flows, and room at once except for elements that were just freed.
    plane.leave();
    let (next, _) = Dataplane::open(&crowded(&instance)).expect("adopted");
    holds(&next, &flows);
    assert_eq!(next.max_flows(), 30);
}

#[test]
fn a_flow_that_a_syn_has_replaced_is_collected() {
    let flow = Flow::detached(Plan::default());
    flow.plane.spoil();
    let fin = |side| Packet {
        flags: ACK | FIN,
        ..flow.later(side, 0, 0, 0)
    };
    for side in Side::BOTH {
        flow.ingress(side, &fin(side).bytes());
    }
    let syn = Packet {
        flags: SYN,
        ..flow.later(Side::Client, 5_000_000, 0, 0)
    };
    for side in Side::BOTH {
        let acked = Packet {
            flags: ACK,
            ..flow.later(side, 1, 0, 1)
        };
        flow.ingress(side, &acked.bytes());
    }
    let (_, counted) = flow.counted(|| flow.ingress(Side::Client, &syn.bytes()));
    assert_eq!(counted.get("syn_replaced"), Some(&1), "{counted:?}");
    assert!(legs().iter().all(|&leg| !flow.plane.in_use(leg)));
    // These tuples have a flow again, whether or not the old one has been collected.
    let slot = flow.plane.take_slot().expect("a slot");
    let mut starts = Plan::default().starts();
    starts.client.seq_off = Offset::new(77);
    flow.plane
        .register(&slot, 4711, true, &starts)
        .expect("the table has no such flow");
    let mut found = Vec::new();
    flow.plane.scan(|d| found.push(d.serial)).expect("a scan");
    assert_eq!(found, [4711, 4711]);
    assert_eq!(flow.plane.direction(legs().client).map(|d| d.serial), Some(4711));
}

/// Leaves a half of a flow, as a process that dies between the removals of two directions does.
#[test]
fn a_half_of_a_flow_is_collected() {
    for side in Side::BOTH {
        for flow in [Flow::detached(Plan::default()), Flow::dormant(Plan::default())] {
            flow.plane.spoil();
            let serial = flow.plane.direction(legs()[side]).expect("it is there").serial;
            assert_eq!(flow.plane.unregister(serial, PerSide::both(legs()[side])), 1);
            assert!(flow.plane.in_use(legs()[side.other()]));
            flow.plane.scan(|d| panic!("{d:?}")).expect("a scan");
            assert!(legs().iter().all(|&leg| !flow.plane.in_use(leg)));
            assert_eq!(flow.plane.flow_count(), 0);
        }
    }
}

/// Registers another flow over the same tuples, as after a port was given to a new connection.
fn successor(flow: &Flow, legs: PerSide<Leg>) -> (Slot, u32) {
    let slot = flow.plane.take_slot().expect("a slot");
    let mut starts = Plan::default().starts();
    (starts.client.leg, starts.server.leg) = (legs.client, legs.server);
    let serial = flow.plane.next_serial();
    flow.plane
        .register(&slot, serial, true, &starts)
        .expect("the table has no such flow");
    (slot, serial)
}

#[test]
fn what_is_removed_late_leaves_the_flow_that_has_the_tuples_now() {
    let flow = Flow::dormant(Plan::default());
    let old = flow.slot().serial();
    // Both tuples, or one of them with another leg.
    let other = |mut leg: Leg| {
        leg.peer.set_port(1);
        leg
    };
    let PerSide { client, server } = legs();
    for new in [
        legs(),
        PerSide::new(client, other(server)),
        PerSide::new(other(client), server),
    ] {
        flow.plane.end(legs());
        let before = flow.plane.flow_count();
        let (slot, serial) = successor(&flow, new);
        assert_eq!(flow.plane.unregister(old, legs()), 0);
        flow.plane.part(flow.slot(), legs());
        flow.demote().expect_err("it is another one");
        new.into_iter().for_each(|leg| flow.plane.remove_alone(leg));
        assert_eq!(flow.plane.flow_count(), before + 1);
        for leg in new {
            let found = flow.plane.direction(leg).map(|d| (d.serial, d.slot));
            assert_eq!(found, Some((serial, Some(slot.index()))), "{leg:?} of {new:?}");
        }
        assert_eq!(flow.plane.unregister(serial, new), 2);
        assert_eq!(
            (flow.plane.unregister(serial, new), flow.plane.flow_count()),
            (0, before)
        );
    }
}
