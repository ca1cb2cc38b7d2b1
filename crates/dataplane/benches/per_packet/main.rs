//! What a packet costs: nanoseconds of the ingress program alone, by BPF_PROG_RUN. Needs root.
//!
//! A test run uses one packet again and again, and a translated one is another flow's. So there are two flows here, each
//! of which turns the other's segments back: every run is a whole translation, with a route look-up. What a pair costs
//! whose sockets are awake again is in `awake`.

use std::net::SocketAddr;

use longsplice_dataplane::{Context, Hook, Leg, LegStart, Mode, Slot};

#[allow(dead_code, unreachable_pub)]
#[path = "../../tests/support/mod.rs"]
mod support;

mod awake;

use support::{
    flow::{Plan, Plane},
    net::{Net, OUR_MAC, PEER_MAC},
    options::{usual, usual_with_sack},
    packet::{Packet, pattern},
};

/// The time to live is what ends it.
const REPEAT: u32 = 250;
const CALLS: u32 = 1000;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Runs a packet often; asserts that every run had this fate. Median and least of the nanoseconds of a run.
fn measure(plane: &Plane, frame: &[u8], context: Context, fate: &str) -> String {
    let before = plane.verdicts();
    let all = (0..CALLS).map(|_| {
        let ran = plane.run_in(Hook::Ingress, frame, context, REPEAT);
        ran.expect("it runs").nanoseconds
    });
    let cell = spread(all.collect());
    let mut moved = plane.verdicts();
    moved.retain(|name, n| *n > before[name]);
    let expected: Vec<&str> = [fate].into_iter().filter(|f| !f.is_empty()).collect();
    assert_eq!(
        moved.keys().collect::<Vec<_>>(),
        expected,
        "every run is of the same kind"
    );
    cell
}

/// Median, and the least.
fn spread(mut all: Vec<u32>) -> String {
    all.sort_unstable();
    format!("{} ({})", all[all.len() / 2], all[0])
}

/// Registers a flow from x to o in FINAL; detached, if there is to be no slot.
fn splice(plane: &Plane, plan: &Plan, x: Leg, o: Leg, dormant: bool) -> Option<Slot> {
    let slot = plane.take_slot().expect("a free slot");
    let mut starts: [LegStart; 2] = plan.starts();
    starts[0].leg = x;
    starts[1].leg = o;
    plane
        .register(&slot, plane.next_serial(), true, &starts)
        .expect("the flow is new");
    assert!(slot.switch(Mode::Track, Mode::Drain) && slot.switch(Mode::Drain, Mode::Final));
    if dormant {
        return Some(slot);
    }
    plane.release(&slot, [x, o], [0, 0]).expect("released");
    None
}

fn main() {
    let net = Net::new();
    let plane = Plane::open();
    net.ip("neighbour replace 198.18.1.3 lladdr 02:00:00:00:01:02 dev a0");
    let (p1, l1) = (address("198.18.1.2:40000"), address("198.18.1.3:80"));
    let (p2, l2) = (address("198.18.2.2:8080"), address("198.18.2.3:50000"));
    let leg = |peer, local| Leg { peer, local };
    let there = Plan {
        scale_in: [7; 2],
        scale_out: [7; 2],
        ..Plan::default()
    };
    let back = Plan {
        peer: [there.local[1], there.local[0]],
        local: [there.peer[1], there.peer[0]],
        ts: there.ts.map(u32::wrapping_neg),
        clock: [0, 1].map(|i| there.clock[i].wrapping_add(there.ts[i])),
        ..there.clone()
    };
    let clock = there.clock;
    let base = Packet {
        dst_mac: OUR_MAC[0],
        src_mac: PEER_MAC[0],
        ttl: 255,
        src: p1,
        dst: l1,
        seq: there.peer[0],
        ack: there.local[0],
        window: 500,
        ..Packet::blank()
    };
    let with = |options: Vec<u8>| Packet {
        options,
        ..base.clone()
    };
    let rows = [
        (
            "not ours",
            Packet {
                src: p2,
                ..base.clone()
            },
        ),
        ("no options", base.clone()),
        ("timestamps", with(usual(clock[0], clock[1]))),
        (
            "timestamps, SACK",
            with(usual_with_sack(clock[0], clock[1], &[(base.ack, base.ack + 9)])),
        ),
        (
            // Looked at from the direction back, too: it may be forged.
            "timestamps, out of order",
            Packet {
                seq: base.seq + 5000,
                payload: pattern(1000),
                ..with(usual(clock[0], clock[1]))
            },
        ),
    ];
    println!("{:28}{:>10}{:>10}", "ns, median (least)", "detached", "dormant");
    let context = Context {
        ifindex: net.ifindex("a0"),
        ..Context::default()
    };
    let mut cells = vec![Vec::new(); rows.len()];
    for dormant in [false, true] {
        let legs = [[leg(p1, l1), leg(p2, l2)], [leg(l2, p2), leg(l1, p1)]];
        let slots = [
            splice(&plane, &there, legs[0][0], legs[0][1], dormant),
            splice(&plane, &back, legs[1][0], legs[1][1], dormant),
        ];
        for (row, (name, packet)) in rows.iter().enumerate() {
            let fate = if *name == "not ours" { "" } else { "forwarded" };
            cells[row].push(measure(&plane, &packet.bytes(), context, fate));
        }
        legs.iter().for_each(|&legs| plane.unregister(legs));
        drop(slots);
    }
    for ((name, _), cells) in rows.iter().zip(cells) {
        println!("{name:28}{:>10}{:>10}", cells[0], cells[1]);
    }
    drop(plane);
    drop(net);
    awake::rows();
}
