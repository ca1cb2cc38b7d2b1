//! A table with a million flows: what a segment costs, of the same flow and of any.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use longsplice_dataplane::{Context, Dataplane, Family, Hook, Leg, Mode, Options, PerSide, Ruling};

use crate::{
    Mirror, REPEAT, measure, spread,
    support::{
        packet::Packet,
        plane::{Plane, options, unique_instance},
    },
};

const FLOWS: u32 = 1_000_000;
/// Flows that are met by chance.
const MET: u32 = 20_000;
/// Flows that a rule matches.
const RULED: usize = 100_000;

/// An address and port with a number in it.
fn numbered(base: SocketAddr, n: u32) -> SocketAddr {
    let IpAddr::V4(v4) = base.ip() else {
        unreachable!("these flows are IPv4's");
    };
    let ip = u32::from(v4) ^ (n >> 14) << 8;
    SocketAddr::new(IpAddr::V4(ip.into()), 1024 + (n & 0x3fff) as u16)
}

/// The n-th flow's client leg, and its server leg.
fn legs(mirror: &Mirror, n: u32) -> PerSide<Leg> {
    let PerSide { client, server } = mirror.legs[0];
    let local = SocketAddr::new(server.local.ip(), 1024 + (n & 0x3fff) as u16);
    let peer = SocketAddr::new(server.peer.ip(), 9000 + (n >> 14) as u16);
    PerSide {
        client: Leg {
            peer: numbered(client.peer, n),
            ..client
        },
        server: Leg { peer, local },
    }
}

/// Fills the table with detached flows like the one that is there.
fn fill(plane: &Plane, mirror: &Mirror) {
    let slot = plane.take_slot().expect("a free slot");
    for n in 0..FLOWS {
        let mut starts = mirror.plans[0].starts();
        let legs = legs(mirror, n);
        (starts.client.leg, starts.server.leg) = (legs.client, legs.server);
        plane
            .register(&slot, plane.next_serial(), true, &starts)
            .expect("the flow is new");
        assert!(slot.transition(Mode::Track, Mode::Drain) && slot.transition(Mode::Drain, Mode::Final));
        plane.demote(&slot, legs, PerSide::both(0)).expect("demoted");
    }
}

pub(crate) fn rows(context: Context) {
    let instance = unique_instance();
    let (plane, _) = Dataplane::open(&Options {
        max_flows: FLOWS + 2,
        ..options(&instance)
    })
    .expect("loaded");
    let plane = Plane::adopted(plane, &instance);
    let mirror = Mirror::new(Family::V4);
    mirror.splice(&plane, false);
    fill(&plane, &mirror);
    println!("{:28}{:>12}", "", "a million");
    let same = measure(&plane, &mirror.timed().bytes(), context, "forwarded");
    println!("{:28}{same:>12}", format!("timestamps, {REPEAT} times"));
    let mut at = 12345u32;
    let met = (0..MET).map(|_| {
        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let packet = Packet {
            src: legs(&mirror, (at >> 8) % FLOWS).client.peer,
            ..mirror.timed()
        };
        let ran = plane
            .run_in(Hook::Ingress, &packet.bytes(), context, 1)
            .expect("it runs");
        assert_eq!(ran.verdict, 7);
        ran.nanoseconds
    });
    // The clock is read twice within each, and nothing of the flow is in a cache.
    println!("{:28}{:>12}", "timestamps, any of them", spread(met.collect()));
    rule(&plane);
}

/// Makes and lifts rulings on some of the flows, as a replacement of rules does.
fn rule(plane: &Plane) {
    let mut serials = Vec::new();
    let begin = Instant::now();
    let scan = plane.scan_flows(|directions| {
        if let Some((a, _)) = directions.complete()
            && serials.len() < RULED
        {
            serials.push((a.leg, a.serial));
        }
    });
    scan.expect("a scan");
    let scanned = begin.elapsed();
    let ruling = Ruling {
        drop: true,
        ..Ruling::default()
    };
    let begin = Instant::now();
    for &(leg, serial) in &serials {
        assert!(
            plane.rule_flow(leg, serial, &ruling).expect("room"),
            "it is there"
        );
    }
    let made = begin.elapsed();
    let begin = Instant::now();
    for &(leg, serial) in &serials {
        plane.lift_ruling(leg, serial).expect("it is there");
    }
    println!(
        "{} flows scanned in {scanned:?}; rulings on {} of them made in {made:?}, lifted in {:?}",
        FLOWS,
        serials.len(),
        begin.elapsed()
    );
}
