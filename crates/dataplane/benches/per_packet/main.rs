//! Measures what a packet costs: nanoseconds of the ingress program alone, by BPF_PROG_RUN. Needs root.
//!
//! A test run uses one packet again and again, and a translated one is another flow's. So there are two flows here, each
//! of which turns the other's segments back: every run is a whole translation. (A route look-up is paid for once in a timer
//! tick.) What a pair costs whose sockets are awake again is in `awake`; a table of a million flows in `million`; and what of
//! each figure is the test run's own is in `empty`.

use std::net::SocketAddr;

use longsplice_dataplane::{Context, Family, Hook, Leg, LegStart, Mode, PerSide, Slot};

#[allow(dead_code, unreachable_pub)]
#[path = "../../tests/support/mod.rs"]
mod support;

mod awake;
mod empty;
mod identity;
mod million;

use support::{
    flow::Plan,
    net::{Net, OUR_MAC, PEER_MAC},
    options::{usual, usual_with_sack},
    packet::{Packet, pattern},
    plane::Plane,
};

/// The time to live is what ends it.
const REPEAT: u32 = 250;
const CALLS: u32 = 1000;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Runs a packet often; asserts that every run had this fate. Returns the median and the least of the nanoseconds of a run.
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

/// Returns the median and the least, as text.
fn spread(mut all: Vec<u32>) -> String {
    all.sort_unstable();
    format!("{} ({})", all[all.len() / 2], all[0])
}

/// Registers a flow from x to o in FINAL; detached, if there is to be no slot.
fn splice(plane: &Plane, plan: &Plan, x: Leg, o: Leg, dormant: bool) -> Option<Slot> {
    let slot = plane.take_slot().expect("a free slot");
    let mut starts: PerSide<LegStart> = plan.starts();
    starts.client.leg = x;
    starts.server.leg = o;
    plane
        .register(&slot, plane.next_serial(), true, &starts)
        .expect("the flow is new");
    assert!(slot.transition(Mode::Track, Mode::Drain) && slot.transition(Mode::Drain, Mode::Final));
    if dormant {
        return Some(slot);
    }
    plane
        .demote(&slot, PerSide::new(x, o), PerSide::both(0))
        .expect("demoted");
    None
}

/// Two flows, each of which turns the other's segments back: the ends of the one are the local ends of the other.
struct Mirror {
    legs: [PerSide<Leg>; 2],
    plans: [Plan; 2],
}

impl Mirror {
    fn new(family: Family) -> Mirror {
        let ends = match family {
            Family::V4 => [
                "198.18.1.2:40000",
                "198.18.1.3:80",
                "198.18.2.2:8080",
                "198.18.2.3:50000",
            ],
            Family::V6 => [
                "[2001:db8:1::2]:40000",
                "[2001:db8:1::3]:80",
                "[2001:db8:2::2]:8080",
                "[2001:db8:2::3]:50000",
            ],
        };
        let [p1, l1, p2, l2] = ends.map(address);
        let leg = |peer, local| Leg { peer, local };
        Mirror {
            legs: [
                PerSide::new(leg(p1, l1), leg(p2, l2)),
                PerSide::new(leg(l2, p2), leg(l1, p1)),
            ],
            plans: Plan::mirror(),
        }
    }

    fn splice(&self, plane: &Plane, dormant: bool) -> [Option<Slot>; 2] {
        [0, 1].map(|i| {
            splice(
                plane,
                &self.plans[i],
                self.legs[i].client,
                self.legs[i].server,
                dormant,
            )
        })
    }

    fn end(&self, plane: &Plane) {
        self.legs.iter().for_each(|&legs| plane.end(legs));
    }

    /// The next segment of the first flow's client.
    fn segment(&self) -> Packet {
        Packet {
            dst_mac: OUR_MAC[0],
            src_mac: PEER_MAC[0],
            ttl: 255,
            src: self.legs[0].client.peer,
            dst: self.legs[0].client.local,
            seq: self.plans[0].peer[0],
            ack: self.plans[0].local[0],
            window: 500,
            ..Packet::blank()
        }
    }

    /// Returns the highest TSval that the first flow's client was sent.
    fn told(&self) -> u32 {
        let plan = &self.plans[0];
        plan.clock[1].wrapping_add(plan.ts[1])
    }

    fn timed(&self) -> Packet {
        Packet {
            options: usual(self.plans[0].clock[0], self.told()),
            ..self.segment()
        }
    }

    fn rows(&self) -> Vec<(&'static str, Packet)> {
        let (base, clock) = (self.segment(), self.plans[0].clock);
        let sack = usual_with_sack(clock[0], self.told(), &[(base.ack, base.ack + 9)]);
        let stranger = Packet {
            src: self.legs[0].server.peer,
            ..base.clone()
        };
        let with_sack = Packet {
            options: sack,
            ..base.clone()
        };
        // Looked at from the direction back, too: it may be forged.
        let stray = Packet {
            seq: base.seq + 5000,
            payload: pattern(1000),
            ..self.timed()
        };
        vec![
            ("not ours", stranger),
            ("no options", base),
            ("timestamps", self.timed()),
            ("timestamps, SACK", with_sack),
            ("timestamps, out of order", stray),
        ]
    }
}

/// The far ends' neighbours, and the way there over IPv6 (over IPv4 there is one).
fn prepare(net: &Net) {
    net.ip("neighbour replace 198.18.1.3 lladdr 02:00:00:00:01:02 dev a0");
    net.ip_of(
        Family::V6,
        "address add 2001:db8:1::1/64 dev a0 nodad
         address add 2001:db8:2::1/64 dev b0 nodad
         neighbour replace 2001:db8:1::2 lladdr 02:00:00:00:01:02 dev a0
         neighbour replace 2001:db8:1::3 lladdr 02:00:00:00:01:02 dev a0
         neighbour replace 2001:db8:2::2 lladdr 02:00:00:00:02:02 dev b0",
    );
}

fn main() {
    let net = Net::new();
    prepare(&net);
    println!("{:28}{:>12}", "ns, median (least)", "");
    println!("{:28}{:>12}", "an empty program", empty::row());
    println!("{:28}{:>12}{:>12}{:>12}", "", "detached", "dormant", "IPv6");
    let context = Context {
        ifindex: net.ifindex("a0"),
        ..Context::default()
    };
    let plane = Plane::open();
    let mut cells = vec![Vec::new(); 5];
    let columns = [(Family::V4, false), (Family::V4, true), (Family::V6, false)];
    for (family, dormant) in columns {
        let mirror = Mirror::new(family);
        let slots = mirror.splice(&plane, dormant);
        for (row, (name, packet)) in mirror.rows().iter().enumerate() {
            let fate = if *name == "not ours" { "" } else { "forwarded" };
            cells[row].push(measure(&plane, &packet.bytes(), context, fate));
        }
        mirror.end(&plane);
        drop(slots);
    }
    for ((name, _), cells) in Mirror::new(Family::V4).rows().iter().zip(cells) {
        println!("{name:28}{:>12}{:>12}{:>12}", cells[0], cells[1], cells[2]);
    }
    let same = [Family::V4, Family::V6].map(|family| identity::column(&plane, context, family));
    let names = ["no options", "timestamps", "timestamps, SACK"];
    for (row, name) in names.iter().enumerate() {
        let name = format!("identity, {name}");
        println!("{name:28}{:>12}{:>12}{:>12}", same[0][row], "", same[1][row]);
    }
    drop(plane);
    million::rows(context);
    drop(net);
    awake::rows();
}
