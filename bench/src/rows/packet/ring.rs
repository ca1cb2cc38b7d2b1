//! Ring of flows, each of which translates a segment into one of the next: a packet that is run repeatedly meets
//! another flow each time.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use longsplice_dataplane::{Context, Dataplane, Hook, Leg, Mode, Options, PerSide, Side, XdpMode};

use super::support::flow::Plan;
use super::support::net::{Net, OUR_MAC, PEER_MAC};
use super::support::options::usual;
use super::support::packet::Packet;
use super::support::plane::Plane;

/// Number of repetitions in one run. A segment has more than 32 hops left in each: XDP leaves others to tc.
const REPEAT: u32 = 220;
/// Number of ports of an address that connections come from.
const PORTS: u32 = 50_000;
/// Step between the flows of a ring, a prime: their order in memory differs from the order in which they were
/// made.
const STRIDE: u64 = 618_041;

/// Even number of detached flows in a data plane of their own.
pub(super) struct Ring {
    plane: Rc<Plane>,
    flows: u32,
    ifindex: u32,
}

/// Makes the network of the rings; the thread enters it.
pub(super) fn network() -> Net {
    let net = Net::new();
    // The segments of every other flow go to the one end, the others to the other one; under the address of the
    // interface that they come in by again, since XDP looks at it.
    net.ip("neighbour replace 198.18.1.3 lladdr 02:00:00:00:01:01 dev a0
         neighbour replace 198.18.2.2 lladdr 02:00:00:00:01:01 dev b0");
    for side in Side::BOTH {
        net.take_frames(side, true);
    }
    net
}

impl Ring {
    /// Fills a data plane of this name with so many flows. Attaches its XDP program to the interface `end`, where no
    /// packet comes in: for an unattached program, each call would have the kernel patch its dispatcher, which takes a
    /// grace period and leaves the caches cold.
    pub(super) fn new(net: &Net, instance: &str, flows: u32, end: &str) -> Result<Self> {
        let options = Options {
            instance: instance.to_owned(),
            max_flows: flows,
            max_slots: 1,
        };
        let (plane, _) = Dataplane::open(&options).context("open a data plane")?;
        let ring = Ring {
            // From here on its pins go with it.
            plane: Plane::adopted(plane, instance),
            flows,
            ifindex: net.ifindex("a0"),
        };
        let slot = ring.plane.take_slot().context("the data plane has no slot")?;
        for n in 0..u64::from(flows) {
            let number = (n * STRIDE % u64::from(flows)) as u32;
            let legs = ring.legs(number);
            let mut starts = turn(number).starts();
            starts.client.leg = legs.client;
            starts.server.leg = legs.server;
            let made = ring
                .plane
                .register(&slot, ring.plane.next_serial(), true, &starts)
                .and_then(|()| {
                    slot.transition(Mode::Track, Mode::Drain);
                    slot.transition(Mode::Drain, Mode::Final);
                    ring.plane.demote(&slot, legs, PerSide::both(0))
                });
            made.with_context(|| format!("make flow {n} of {flows}"))?;
        }
        ring.plane.attach_xdp(net.ifindex(end), XdpMode::Native)?;
        for device in ["a0", "b0"] {
            let open = ring.plane.open_exit(net.ifindex(device), XdpMode::Native)?;
            ensure!(open, "nothing can leave {device} from XDP");
        }
        for hook in [Hook::Ingress, Hook::Xdp] {
            ring.check(hook)?;
        }
        Ok(ring)
    }

    /// Returns the legs of a flow: a segment of its connection leaves as one of the next flow's.
    fn legs(&self, number: u32) -> PerSide<Leg> {
        let [(peer, local), (source, target)] = [number, (number + 1) % self.flows].map(connection);
        let leg = |peer, local| Leg { peer, local };
        PerSide::new(leg(peer, local), leg(target, source))
    }

    /// Checks that two flows translate a segment into one of the flow after them with the same numbers, byte by byte.
    fn check(&self, hook: Hook) -> Result<()> {
        let ran = self.plane.run_in(hook, &segment(0).bytes(), self.context(), 2)?;
        let expected = Packet {
            dst_mac: OUR_MAC[0],
            src_mac: OUR_MAC[0],
            ttl: 253,
            ..segment(2 % self.flows)
        };
        ensure!(
            ran.packet == expected.bytes(),
            "the flows of the ring do not lead into each other"
        );
        Ok(())
    }

    fn context(&self) -> Context {
        Context {
            ifindex: self.ifindex,
            ..Context::default()
        }
    }

    /// Measures the nanoseconds for a segment with timestamps at tc or in XDP, the average of each of so many walks
    /// that begin all over the ring.
    pub(super) fn translate(&self, hook: Hook, walks: u32) -> Result<Vec<f64>> {
        let counter = match hook {
            Hook::Xdp => "forwarded_xdp",
            _ => "forwarded",
        };
        let forwarded = || self.plane.verdicts().get(counter).copied().unwrap_or(0);
        let before = forwarded();
        let pairs = u64::from(self.flows / 2);
        let start = |walk: u32| segment(2 * (u64::from(walk) * STRIDE % pairs) as u32);
        let times = (0..walks).map(|walk| self.walk(hook, &start(walk))).collect();
        let wanted = u64::from(walks) * u64::from(REPEAT);
        ensure!(
            forwarded() - before == wanted,
            "{} of {wanted} segments were forwarded",
            forwarded() - before
        );
        times
    }

    /// Measures the nanoseconds for a segment of no flow.
    pub(super) fn pass(&self, walks: u32) -> Result<Vec<f64>> {
        let before = self.plane.verdicts();
        let stranger = Packet {
            src: (Ipv4Addr::new(198, 18, 3, 9), 9).into(),
            ..segment(0)
        };
        let times = (0..walks).map(|_| self.walk(Hook::Ingress, &stranger)).collect();
        ensure!(
            self.plane.verdicts() == before,
            "a segment of no flow was counted"
        );
        times
    }

    fn walk(&self, hook: Hook, packet: &Packet) -> Result<f64> {
        let ran = self.plane.run_in(hook, &packet.bytes(), self.context(), REPEAT);
        Ok(ran.context("run the program over a packet")?.nanoseconds.into())
    }
}

/// Returns source and destination of a connection, as its segments come in. Every other one goes the other way.
fn connection(number: u32) -> (SocketAddr, SocketAddr) {
    let (net, target) = match number % 2 {
        0 => (1, (Ipv4Addr::new(198, 18, 1, 3), 80)),
        _ => (2, (Ipv4Addr::new(198, 18, 2, 2), 8080)),
    };
    // A million of them take twenty addresses, and the ports are below 65,536: `as` is exact.
    let source = Ipv4Addr::new(198, 18, net, 10 + (number / PORTS) as u8);
    let port = 10_000 + (number % PORTS) as u16;
    ((source, port).into(), target.into())
}

/// Returns the numbers of a flow: every other one reverses the translation of the one before.
fn turn(number: u32) -> Plan {
    let [there, back] = Plan::mirror();
    if number.is_multiple_of(2) { there } else { back }
}

/// Returns a segment with timestamps of an even flow.
fn segment(number: u32) -> Packet {
    let (plan, (src, dst)) = (turn(number), connection(number));
    Packet {
        dst_mac: OUR_MAC[0],
        src_mac: PEER_MAC[0],
        ttl: 255,
        src,
        dst,
        seq: plan.peer[0],
        ack: plan.local[0],
        window: 500,
        options: usual(plan.clock[0], plan.clock[1]),
        ..Packet::blank()
    }
}
