//! Flows in a ring, each of which translates a segment into one of the next: a packet that is run again and again meets
//! another flow each time.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use longsplice_dataplane::{Context, Dataplane, Hook, Leg, Mode, Options, Side, XdpMode};

use super::support::flow::Plan;
use super::support::net::{Net, OUR_MAC, PEER_MAC};
use super::support::options::usual;
use super::support::packet::Packet;
use super::support::plane::Plane;

/// The time to live ends a packet's way.
const REPEAT: u32 = 250;
/// Ports of an address that connections come from.
const PORTS: u32 = 50_000;
/// Walked by it, the flows of a ring do not lie in memory in the order in which they were made: a prime.
const STRIDE: u64 = 618_041;

/// An even number of detached flows in a data plane of their own.
pub(super) struct Ring {
    plane: Rc<Plane>,
    flows: u32,
    ifindex: u32,
}

/// The network that rings forward in; the thread is in it.
pub(super) fn network() -> Net {
    let net = Net::new();
    // The segments of every other flow go to the one end, the others to the other one; under the address of the interface
    // that they come in by again, since XDP looks at it.
    net.ip("neighbour replace 198.18.1.3 lladdr 02:00:00:00:01:01 dev a0
         neighbour replace 198.18.2.2 lladdr 02:00:00:00:01:01 dev b0");
    for side in Side::BOTH {
        net.take_frames(side, true);
    }
    net
}

impl Ring {
    /// Fills a data plane of this name with so many flows. Its XDP program is attached to the interface `end`, where nothing
    /// comes in: for one that is attached nowhere, each call would have the kernel patch its dispatcher, which takes a grace
    /// period and leaves the caches cold.
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
            starts[0].leg = legs[0];
            starts[1].leg = legs[1];
            let made = ring
                .plane
                .register(&slot, ring.plane.next_serial(), true, &starts)
                .and_then(|()| {
                    slot.switch(Mode::Track, Mode::Drain);
                    slot.switch(Mode::Drain, Mode::Final);
                    ring.plane.release(&slot, legs, [0, 0])
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

    /// The legs of a flow: what comes as its connection leaves as the next one's.
    fn legs(&self, number: u32) -> [Leg; 2] {
        let [(peer, local), (source, target)] = [number, (number + 1) % self.flows].map(connection);
        let leg = |peer, local| Leg { peer, local };
        [leg(peer, local), leg(target, source)]
    }

    /// Two flows translate a segment into one of the flow after them with the same numbers, byte by byte.
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

    /// Nanoseconds for a segment with timestamps at tc or in XDP, the average of each of so many walks that begin all over
    /// the ring.
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

    /// The same for a segment of no flow.
    pub(super) fn pass(&self, walks: u32) -> Result<Vec<f64>> {
        let before = self.plane.verdicts();
        let stranger = Packet {
            src: (Ipv4Addr::new(198, 18, 3, 9), 9).into(),
            ..segment(0)
        };
        let times = (0..walks).map(|_| self.walk(Hook::Ingress, &stranger)).collect();
        ensure!(
            self.plane.verdicts() == before,
            "a segment that is nobody's was counted"
        );
        times
    }

    fn walk(&self, hook: Hook, packet: &Packet) -> Result<f64> {
        let ran = self.plane.run_in(hook, &packet.bytes(), self.context(), REPEAT);
        Ok(ran.context("run the program over a packet")?.nanoseconds.into())
    }
}

/// Source and destination of a connection, as its segments come in. Every other one goes the other way.
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

/// The numbers of a flow: every other one turns back what the one before did.
fn turn(number: u32) -> Plan {
    let [there, back] = Plan::mirror();
    if number.is_multiple_of(2) { there } else { back }
}

/// A segment with timestamps of an even flow.
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
