//! A restarted daemon adopts everything; one that must not adopt changes nothing.

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use longsplice_dataplane::{ABI_VERSION, Adopted, Dataplane, Error, Framing, Mode, Options, PerSide, Side};

use crate::support::{
    flow::{Flow, Plan, legs},
    net::Net,
    packet::*,
    plane::{Plane, options, unique_instance},
};

/// Returns a flow in FINAL with a slot, whose daemon has been killed: nothing was dropped in good order.
fn killed() -> (Flow, String, u32) {
    let mut flow = Flow::dormant(Plan::default());
    flow.plane.spoil();
    let packet = Packet {
        payload: pattern(42),
        ..flow.peer_segment(Side::Client)
    };
    flow.forwards(Side::Client, &packet, &mut flow.reference(Side::Client));
    let slot = flow.slot.take().expect("it has a slot");
    let index = slot.index();
    std::mem::forget(slot);
    let instance = flow.plane.instance.clone();
    flow.plane.leave();
    (flow, instance, index)
}

#[test]
fn records_and_slots_are_found() {
    let (mut flow, instance, index) = killed();
    let serial = flow.plane.next_serial();
    let (plane, mut orphans) = Dataplane::open(&Options {
        max_flows: 3,
        max_slots: 2,
        ..options(&instance)
    })
    .expect("adopted");
    flow.plane = Plane::adopted(plane, &instance);

    assert_eq!(orphans.len(), 1);
    let slot = orphans.remove(0);
    assert_eq!((slot.index(), slot.mode()), (index, Mode::Final));
    assert_eq!(flow.plane.legs(&slot), legs());
    // The pins keep their sizes.
    assert_eq!(flow.plane.max_flows(), options("").max_flows);
    assert_eq!(flow.plane.max_slots(), options("").max_slots);
    assert_eq!(flow.plane.flow_count(), 1);
    assert!(legs().iter().all(|&leg| flow.plane.in_use(leg)));
    let directions = flow.plane.directions(&slot, legs());
    assert_eq!(directions.client.bytes, 42);
    assert!(directions.iter().all(|d| d.serial == slot.serial()));
    assert_ne!(flow.plane.next_serial(), serial);
    assert!(flow.plane.next_serial() > serial);

    flow.slot = Some(slot);
    flow.forwards(
        Side::Server,
        &flow.peer_segment(Side::Server),
        &mut flow.reference(Side::Server),
    );
    // No other flow gets that slot, and the adopted one can be released.
    let other = flow.plane.take_slot().expect("a free one");
    assert_ne!(other.index(), index);
    flow.demote().expect("demoted");
}

#[test]
fn detached_records_are_found_without_slots() {
    let flow = Flow::detached(Plan::default());
    flow.plane.spoil();
    flow.plane.leave();
    let (plane, orphans) = Dataplane::open(&options(&flow.plane.instance)).expect("adopted");
    assert!(orphans.is_empty());
    assert_eq!(plane.flow_count(), 1);
    let ran = plane
        .run(
            longsplice_dataplane::Hook::Ingress,
            &Packet {
                dst_mac: [0; 6], // of the loopback
                ..flow.peer_segment(Side::Client)
            }
            .bytes(),
            1,
        )
        .expect("it runs");
    assert_eq!(ran.verdict, 7);
}

/// Keys and values of a map.
type Contents = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the contents of all pinned maps.
fn pins(instance: &str) -> [Contents; 3] {
    ["flows", "slots", "meta"].map(|name| {
        let map = MapHandle::from_pinned_path(format!("/sys/fs/bpf/longsplice-{instance}/{name}"))
            .expect("a pinned map");
        let mut all: Vec<_> = map
            .keys()
            .map(|k| {
                let value = map
                    .lookup(&k, MapFlags::ANY)
                    .expect("the map")
                    .expect("the value");
                (k, value)
            })
            .collect();
        all.sort();
        all
    })
}

#[test]
fn serial_numbers_that_are_in_use_are_not_given_out_again() {
    let flow = Flow::detached(Plan::default());
    flow.plane.spoil();
    let old = flow.plane.direction(legs().client).expect("it is there").serial;
    // A flow that got its number before the last wrap is registered now.
    let late = flow.plane.next_serial().wrapping_add(2);
    let mut starts = Plan::default().starts();
    starts.iter_mut().for_each(|start| start.leg.peer.set_port(1));
    let slot = flow.plane.take_slot().expect("a free slot");
    flow.plane
        .register(&slot, late, true, &starts)
        .expect("the flow is new");
    let given = [flow.plane.next_serial(), flow.plane.next_serial()];
    assert_eq!(given, [late - 1, late + 1]);
    std::mem::forget(slot);
    // A process that has come to the wrap finds the numbers in use.
    let meta = format!("/sys/fs/bpf/longsplice-{}/meta", flow.plane.instance);
    let meta = MapHandle::from_pinned_path(meta).expect("a pinned map");
    let mut value = meta
        .lookup(&[0; 4], MapFlags::ANY)
        .expect("the map")
        .expect("the element");
    value[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    meta.update(&[0; 4], &value, MapFlags::ANY).expect("written");
    flow.plane.leave();
    let (plane, _orphans) = Dataplane::open(&options(&flow.plane.instance)).expect("adopted");
    let given: Vec<u32> = (0..=late).map(|_| plane.next_serial()).collect();
    let expected = (1..).filter(|serial| ![old, late].contains(serial));
    let expected: Vec<u32> = std::iter::once(u32::MAX)
        .chain(expected)
        .take(given.len())
        .collect();
    assert_eq!(given, expected);
}

/// Makes the pins those of another version.
fn of_another_version(instance: &str) {
    let meta =
        MapHandle::from_pinned_path(format!("/sys/fs/bpf/longsplice-{instance}/meta")).expect("a pinned map");
    let mut value = meta
        .lookup(&[0; 4], MapFlags::ANY)
        .expect("the map")
        .expect("the element");
    assert_eq!(value[..4], ABI_VERSION.to_ne_bytes());
    value[..4].copy_from_slice(&(ABI_VERSION + 1).to_ne_bytes());
    meta.update(&[0; 4], &value, MapFlags::ANY).expect("written");
}

/// Returns the directories of an instance's pins, without the prefix of all.
fn generations(instance: &str) -> Vec<String> {
    let prefix = format!("longsplice-{instance}");
    let all = std::fs::read_dir("/sys/fs/bpf").expect("a directory");
    let names = all
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Another test's name may begin with this one.
    let is_its = |rest: &str| rest.is_empty() || rest.starts_with(['+', '~']);
    let mut found: Vec<String> = names
        .filter_map(|name| name.strip_prefix(&prefix).map(str::to_owned))
        .filter(|rest| is_its(rest))
        .collect();
    found.sort();
    found
}

#[test]
fn flows_of_another_version_run_on_until_they_are_adopted() {
    let (mut flow, instance, _) = killed();
    of_another_version(&instance);
    let before = pins(&instance);
    let (plane, orphans) = Dataplane::open(&options(&instance)).expect("a generation of its own");
    assert!(orphans.is_empty());
    assert_eq!(generations(&instance), ["", "+2"]);
    assert!(before == pins(&instance), "nothing of the old one is changed");
    // Theirs still serve the flow; its ports are as taken as our own.
    assert_eq!(plane.flow_count(), 0);
    assert!(legs().iter().all(|&leg| plane.direction(leg).is_none()));
    let old = flow.plane.direction(legs().client).expect("it is there");
    flow.forwards(
        Side::Server,
        &flow.peer_segment(Side::Server),
        &mut flow.reference(Side::Server),
    );

    let adopted = plane.adopt_predecessors(|_, _| false).expect("adopted");
    let expected = Adopted {
        flows: 1,
        ..Default::default()
    };
    assert_eq!(adopted, expected);
    assert_eq!(generations(&instance), ["+2"]);
    flow.plane = Plane::adopted(plane, &instance);
    assert_eq!(flow.plane.flow_count(), 1);
    let new = flow.plane.both_directions(legs().client);
    let (client, server) = (new.client.expect("one"), new.server.expect("one"));
    assert_eq!((client.serial, client.bytes, client.slot), (old.serial, 42, None));
    assert_eq!(server.serial, old.serial);
    assert_ne!(flow.plane.next_serial(), old.serial);
    for side in Side::BOTH {
        flow.forwards(side, &flow.peer_segment(side), &mut flow.reference(side));
    }
    assert_eq!(
        flow.plane.adopt_predecessors(|_, _| false).expect("none is left"),
        Adopted::default()
    );
}

#[test]
fn a_half_of_a_flow_of_another_version_is_not_adopted() {
    for side in Side::BOTH {
        let flow = Flow::detached(Plan::default());
        flow.plane.spoil();
        let serial = flow.plane.direction(legs().client).expect("it is there").serial;
        flow.plane.unregister(serial, PerSide::both(legs()[side]));
        flow.plane.leave();
        of_another_version(&flow.plane.instance);
        let (plane, _) = Dataplane::open(&options(&flow.plane.instance)).expect("a generation of its own");
        let adopted = plane.adopt_predecessors(|_, _| false).expect("adopted");
        assert_eq!((adopted.flows, adopted.left), (0, 0), "{adopted:?}");
        assert!(legs().iter().all(|&leg| !plane.in_use(leg)));
        assert_eq!(generations(&flow.plane.instance), ["+2"]);
        plane.remove();
    }
}

#[test]
fn a_successor_of_a_process_that_still_serves_has_pins_of_its_own() {
    let flow = Flow::detached(Plan::default());
    flow.plane.spoil();
    let instance = flow.plane.instance.clone();
    let (plane, _) = Dataplane::open(&options(&instance)).expect("a generation of its own");
    assert_eq!(generations(&instance), ["", "+2"]);
    assert_eq!(
        plane.adopt_predecessors(|_, _| false).expect("it still serves"),
        Adopted::default()
    );
    assert!(plane.next_serial() > flow.plane.next_serial());
    flow.plane.leave();
    assert_eq!(plane.adopt_predecessors(|_, _| false).expect("adopted").flows, 1);
    let lo = || std::fs::read_to_string("/proc/sys/net/ipv4/conf/lo/forwarding").expect("a sysctl");
    assert_eq!(lo().trim(), "1");
    plane.remove();
    assert_eq!(lo().trim(), "0", "as the first one found it");
    assert!(generations(&instance).is_empty());
}

#[test]
fn an_unfinished_generation_is_removed() {
    let net = Net::new();
    let instance = unique_instance();
    let unfinished = format!("/sys/fs/bpf/longsplice-{instance}~1-1");
    std::fs::create_dir(&unfinished).expect("made");
    let (plane, _) = Dataplane::open(&options(&instance)).expect("opened");
    assert_eq!(generations(&instance), [""]);
    plane.remove();
    drop(net);
}

#[test]
fn pins_of_another_namespace_are_refused_without_a_change() {
    let (_flow, instance, _) = killed();
    let before = pins(&instance);
    {
        let _other = Net::new();
        let refused = Dataplane::open(&options(&instance)).map(drop);
        assert!(matches!(refused, Err(Error::Namespace { .. })), "{refused:?}");
    }
    assert!(before == pins(&instance));
}

#[test]
fn a_plane_that_was_handed_on_is_adopted_in_its_new_namespace() {
    let first = Flow::track(Plan::default());
    first.net.ip("link set lo up"); // The next flow gets another namespace.
    let (before, old) = (first.plane.instance.clone(), first.net.inode());
    drop(first);
    let (mut flow, instance, _) = killed();
    assert_eq!(instance, before);
    assert_ne!(flow.net.inode(), old);
    let (plane, _orphans) = Dataplane::open(&options(&instance)).expect("adopted");
    flow.plane = Plane::adopted(plane, &instance);
}

#[test]
fn a_place_for_pins_that_is_anothers_is_refused() {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, chown},
    };
    let _net = Net::new();
    let instance = unique_instance();
    let place = format!("/sys/fs/bpf/longsplice-{instance}");
    for (owner, mode, why) in [
        (65_534, 0o755, "belongs to another user"),
        (0, 0o777, "can be written by others"),
    ] {
        fs::create_dir(&place).expect("made");
        fs::set_permissions(&place, Permissions::from_mode(mode)).expect("set");
        chown(&place, Some(owner), None).expect("given away");
        let refused = Dataplane::open(&options(&instance)).map(drop);
        let empty = fs::remove_dir(&place);
        match refused {
            Err(Error::Untrusted { path, why: said }) => assert_eq!((path, said), (place.clone(), why)),
            other => panic!("{other:?}"),
        }
        empty.expect("nothing was put there");
    }
}

#[test]
fn removing_leaves_nothing() {
    let flow = Flow::track(Plan::default());
    flow.plane.spoil();
    let slot = no_half_flow(&flow);
    flow.plane
        .attach(flow.ifindex(Side::Client), Framing::Ethernet)
        .expect("attached");
    assert_eq!(flow.plane.linked_interfaces(), [flow.ifindex(Side::Client)]);
    flow.plane.remove();
    assert!(!std::path::Path::new(&format!("/sys/fs/bpf/longsplice-{}", flow.plane.instance)).exists());
    assert_eq!(
        std::fs::read_to_string("/proc/sys/net/ipv4/conf/lo/forwarding")
            .expect("a sysctl")
            .trim(),
        "0"
    );
    drop(slot);
}

/// Installs both directions or none: with one tuple taken, the other one stays free.
fn no_half_flow(flow: &Flow) -> longsplice_dataplane::Slot {
    let slot = flow.plane.take_slot().expect("a free slot");
    let plan = Plan::default();
    let mut start = plan.starts();
    start.client.leg.peer.set_port(1);
    let error = flow
        .plane
        .register(&slot, 99, true, &start)
        .expect_err("the server's tuple is taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    assert!(!flow.plane.in_use(start.client.leg));
    slot
}
