//! A flow that is registered in a data plane of its own.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ops::Deref,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use longsplice_dataplane::{
    Context, Dataplane, Hook, Leg, LegStart, Mapping, Mode, Options, Peek, Ran, Side, Slot, XdpMode,
};

use super::{
    choose,
    net::{Net, OUR_MAC, PEER_MAC},
    packet::{Packet, assert_frame, pattern},
    reference::Reference,
    workplace::workplace,
};

pub const OK: u32 = u32::MAX; // TC_ACT_UNSPEC: the next program on the hook has its turn
pub const SHOT: u32 = 2;
pub const REDIRECT: u32 = 7;
pub const XDP_PASS: u32 = 2;
pub const XDP_TX: u32 = 3;
pub const XDP_REDIRECT: u32 = 4;

/// A name for pins that no other test has.
pub fn unique_instance() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "packets-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A data plane whose pins go with it.
pub struct Plane {
    pub plane: Dataplane,
    pub instance: String,
    /// Another flow may use it.
    reusable: Cell<bool>,
}

impl Plane {
    pub fn open() -> Plane {
        let instance = unique_instance();
        let (plane, orphans) = Dataplane::open(&options(&instance)).expect("these tests need root");
        let plane = Plane {
            plane,
            instance,
            reusable: Cell::new(true),
        };
        assert!(orphans.is_empty());
        plane
    }

    /// A data plane that was opened over an instance's pins.
    pub fn adopted(plane: Dataplane, instance: &str) -> Rc<Plane> {
        Rc::new(Plane {
            plane,
            instance: instance.to_owned(),
            reusable: Cell::new(false),
        })
    }

    /// Removes what these legs have, whatever flow it is.
    pub fn end(&self, legs: [Leg; 2]) {
        for leg in legs {
            if let Some(d) = self.direction(leg) {
                self.unregister(d.serial, [leg, d.far]);
            }
            self.remove_alone(leg);
        }
    }

    /// No other flow is to use it.
    pub fn spoil(&self) {
        self.reusable.set(false);
    }

    /// Removes whatever flows have left, and takes the programs off; whether it is as good as new then.
    pub fn is_clean(&self) -> bool {
        if !self.reusable.get() {
            return false;
        }
        for ifindex in self.linked_interfaces() {
            self.detach(ifindex);
        }
        let alone = self.legs_alone().expect("a scan");
        alone.into_iter().for_each(|leg| self.remove_alone(leg));
        let mut flows = Vec::new();
        self.scan(|d| flows.push((d.serial, [d.leg, d.far])))
            .expect("a scan");
        for (serial, legs) in flows {
            self.unregister(serial, legs);
        }
        self.set_record_count(0);
        self.events().and_then(|mut events| events.take()).is_ok()
    }
}

pub fn options(instance: &str) -> Options {
    Options {
        instance: instance.to_owned(),
        max_flows: 16,
        max_slots: 512,
    }
}

impl Deref for Plane {
    type Target = Dataplane;

    fn deref(&self) -> &Dataplane {
        &self.plane
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.plane.remove();
    }
}

/// Where two connections stand when their flow is registered; arrays are indexed by side.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Next sequence number of each peer.
    pub peer: [u32; 2],
    /// Next sequence number of the local socket toward each peer.
    pub local: [u32; 2],
    /// Bytes that each peer may send, and each local socket.
    pub offered: [u32; 2],
    pub granted: [u32; 2],
    pub ts: [u32; 2],
    pub scale_in: [u8; 2],
    pub scale_out: [u8; 2],
    pub blank_sack: [bool; 2],
    /// TSval of each peer at this moment.
    pub clock: [u32; 2],
    /// The peers that are on this host.
    pub on_this_host: [bool; 2],
    /// What each local socket's own numbers are greater by.
    pub mapping: [Mapping; 2],
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            peer: [1_000_000, 3_000_000_000],
            local: [2_000_000_000, 700_000],
            offered: [1 << 18, 1 << 18],
            granted: [1 << 18, 1 << 18],
            ts: [123_456, 0x9000_0000],
            scale_in: [7, 9],
            scale_out: [8, 6],
            blank_sack: [false; 2],
            clock: [10_000, 50_000],
            on_this_host: [false; 2],
            mapping: [Mapping::default(); 2],
        }
    }
}

impl Plan {
    /// Of a pair that was spliced before: its sockets count otherwise than the wire.
    pub fn mapped() -> Plan {
        let mapping = |seq, ack| Mapping { seq, ack };
        Plan {
            mapping: [
                mapping(0xffff_0000, 0x1234_5678),
                mapping(0x89ab_cdef, 0xfff0_0001),
            ],
            ..Plan::default()
        }
    }

    /// Two flows, of which the second turns back what the first does to a segment.
    pub fn mirror() -> [Plan; 2] {
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
        [there, back]
    }

    /// The identity case (papers' section III-F): both connections count alike.
    pub fn identity() -> Plan {
        let plan = Plan::default();
        Plan {
            local: [plan.peer[1], plan.peer[0]],
            ts: [0; 2],
            scale_in: [7; 2],
            scale_out: [7; 2],
            ..plan
        }
    }

    pub fn seq_off(&self, side: Side) -> u32 {
        self.local[side.other().index()].wrapping_sub(self.peer[side.index()])
    }

    pub fn starts(&self) -> [LegStart; 2] {
        Side::BOTH.map(|side| self.start(side))
    }

    fn start(&self, side: Side) -> LegStart {
        let x = side.index();
        LegStart {
            leg: leg(side),
            seq_off: self.seq_off(side),
            tsval_off: self.ts[x],
            wscale_in: self.scale_in[x],
            wscale_out: self.scale_out[x],
            blank_sack: self.blank_sack[x],
            ended: false,
            peek: Peek {
                rcv_nxt: self.peer[x],
                copied_seq: self.peer[x],
                snd_nxt: self.local[x],
                snd_una: self.local[x],
                write_seq: self.local[x],
                offered_edge: self.peer[x].wrapping_add(self.offered[x]),
                peer_edge: self.local[x].wrapping_add(self.granted[x]),
                ts_recent: self.clock[x],
                ifindex: u32::from(self.on_this_host[x]),
                mss_clamp: 1460,
                out_of_order: false,
                layered: false,
            },
            ts_high: self.clock[x].wrapping_add(self.ts[x]),
            mapping: self.mapping[x],
            alone: false,
            mss: 1460,
            sack: true,
            ecn: false,
        }
    }
}

pub fn leg(side: Side) -> Leg {
    let (peer, local) = match side {
        Side::Client => choose(
            ("198.18.1.2:40000", "198.18.1.1:80"),
            ("[2001:db8:1::2]:40000", "[2001:db8:1::1]:80"),
        ),
        Side::Server => choose(
            ("198.18.2.2:8080", "198.18.2.1:50000"),
            ("[2001:db8:2::2]:8080", "[2001:db8:2::1]:50000"),
        ),
    };
    Leg {
        peer: peer.parse().expect("an address"),
        local: local.parse().expect("an address"),
    }
}

/// Both legs of the flow.
pub fn legs() -> [Leg; 2] {
    Side::BOTH.map(leg)
}

/// A registered flow. Fields are dropped in this order: the slot before its table, the pins while still in the namespace.
pub struct Flow {
    pub slot: Option<Slot>,
    pub plane: Rc<Plane>,
    pub net: Rc<Net>,
    pub plan: Plan,
    ifindex: [u32; 2],
    /// How many transitions it has made, and whether it is detached then.
    modes: usize,
    detached: bool,
    /// The exits that it has opened.
    exits: [Cell<bool>; 2],
}

impl Flow {
    /// In mode Track.
    pub fn track(plan: Plan) -> Flow {
        let (plane, net) = workplace();
        let slot = register(&plane, &plan);
        let ifindex = ["a0", "b0"].map(|name| net.ifindex(name));
        Flow {
            slot: Some(slot),
            plane,
            net,
            plan,
            ifindex,
            modes: 0,
            detached: false,
            exits: Default::default(),
        }
    }

    pub fn drain(plan: Plan) -> Flow {
        let mut flow = Flow::track(plan);
        flow.modes = 1;
        flow.advance();
        flow
    }

    /// Final, with its sockets parked: dormant.
    pub fn dormant(plan: Plan) -> Flow {
        let mut flow = Flow::track(plan);
        flow.modes = 2;
        flow.advance();
        flow
    }

    /// Final, without sockets and without a slot.
    pub fn detached(plan: Plan) -> Flow {
        let mut flow = Flow::track(plan);
        flow.modes = 2;
        flow.detached = true;
        flow.advance();
        flow
    }

    /// From Track to where it is made for.
    fn advance(&mut self) {
        if self.modes > 0 {
            self.switch(Mode::Track, Mode::Drain);
        }
        if self.modes > 1 {
            self.finish();
        }
        if self.detached {
            self.release().expect("the records are there");
            self.slot = None;
        }
    }

    /// A fresh flow with the same addresses in its place, in the same mode.
    pub fn again(&mut self, plan: Plan) {
        let serial = self.plane.next_serial();
        self.again_as(plan, serial);
    }

    /// The same, with this serial number.
    pub fn again_as(&mut self, plan: Plan, serial: u32) {
        self.plane.end(legs());
        self.slot = Some(register_as(&self.plane, &plan, serial));
        self.plan = plan;
        self.advance();
    }

    pub fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("it has a slot")
    }

    #[track_caller]
    pub fn switch(&self, from: Mode, to: Mode) {
        assert!(self.slot().switch(from, to));
    }

    /// From Drain to Final.
    #[track_caller]
    pub fn finish(&self) {
        let cuts = Side::BOTH.map(|side| self.plane.leg(self.slot(), side).cut);
        let mode = self.plane.finish(self.slot(), cuts, false).expect("it runs");
        assert_eq!(mode, Mode::Final);
    }

    pub fn release(&self) -> std::io::Result<()> {
        self.plane
            .release(self.slot(), legs(), [self.ifindex[1], self.ifindex[0]])
    }

    pub fn ifindex(&self, side: Side) -> u32 {
        self.ifindex[side.index()]
    }

    /// The next segment of a peer, a pure acknowledgement of all that it got.
    pub fn peer_segment(&self, side: Side) -> Packet {
        let i = side.index();
        Packet {
            dst_mac: OUR_MAC[i],
            src_mac: PEER_MAC[i],
            src: leg(side).peer,
            dst: leg(side).local,
            seq: self.plan.peer[i],
            ack: self.plan.local[i],
            window: 500,
            ..Packet::blank()
        }
    }

    /// Goes from Track to Drain when a peer has sent so many bytes, of which the other socket waits for the
    /// acknowledgement: it gets copies of the other peer's segments.
    pub fn drain_behind(&self, side: Side, bytes: usize) {
        let old = Packet {
            payload: pattern(bytes),
            ..self.peer_segment(side)
        };
        self.ingress(side, &old.bytes());
        self.switch(Mode::Track, Mode::Drain);
    }

    /// The next segment of the local socket toward a peer.
    pub fn local_segment(&self, side: Side) -> Packet {
        let i = side.index();
        Packet {
            dst_mac: PEER_MAC[i],
            src_mac: OUR_MAC[i],
            src: leg(side).local,
            dst: leg(side).peer,
            seq: self.plan.local[i],
            ack: self.plan.peer[i],
            window: 500,
            ..Packet::blank()
        }
    }

    /// What independent arithmetic makes of a peer's segments.
    pub fn reference(&self, side: Side) -> Reference {
        let (x, o) = (side.index(), side.other().index());
        let far = leg(side.other());
        Reference {
            src: far.local,
            dst: far.peer,
            src_mac: OUR_MAC[o],
            dst_mac: PEER_MAC[o],
            seq: self.plan.seq_off(side),
            far_seq: self.plan.seq_off(side.other()),
            ts: self.plan.ts[x],
            far_ts: self.plan.ts[o],
            scale_in: self.plan.scale_in[x],
            scale_out: self.plan.scale_out[x],
            blank_sack: self.plan.blank_sack[x],
            ts_high: self.plan.clock[x].wrapping_add(self.plan.ts[x]),
        }
    }

    /// Runs ingress over a frame on the interface toward `side`. Its sum is verified by the kernel afterwards, too.
    pub fn ingress(&self, side: Side, frame: &[u8]) -> Ran {
        self.run(Hook::Ingress, side, frame)
    }

    /// Runs egress over a frame on the interface toward `side`.
    pub fn egress(&self, side: Side, frame: &[u8]) -> Ran {
        self.run(Hook::Egress, side, frame)
    }

    /// Frames of XDP may leave by the interface toward `side`, or not: the other end of the veth pair takes them or does
    /// not.
    pub fn set_exit(&self, side: Side, open: bool) {
        self.net.take_frames(side, open);
        let opened = self.plane.open_exit(self.ifindex(side), XdpMode::Native);
        assert_eq!(opened.expect("the map is there"), open);
        self.exits[side.index()].set(open);
    }

    /// Runs the program of a hook over a frame on the interface toward `side`.
    pub fn run(&self, hook: Hook, side: Side, frame: &[u8]) -> Ran {
        let context = Context {
            ifindex: self.ifindex(side),
            ..Context::default()
        };
        self.plane
            .run_in(hook, frame, context, 1)
            .expect("the program runs")
    }

    /// Runs `work` and gives its value and the counters that moved.
    pub fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, BTreeMap<String, u64>) {
        let before = self.plane.verdicts();
        let value = work();
        let mut after = self.plane.verdicts();
        after.retain(|name, n| {
            *n -= before[name];
            *n != 0
        });
        (value, after)
    }

    /// Asserts what becomes of a frame on ingress: the program's value, the counters that move by one (mostly one, or none,
    /// ""), and every byte afterwards.
    #[track_caller]
    pub fn ingress_gives(&self, side: Side, frame: &[u8], expected: (u32, &str, &[u8])) {
        self.gives(Hook::Ingress, side, frame, expected);
    }

    /// The same of XDP.
    #[track_caller]
    pub fn xdp_gives(&self, side: Side, frame: &[u8], expected: (u32, &str, &[u8])) {
        self.gives(Hook::Xdp, side, frame, expected);
    }

    #[track_caller]
    pub fn egress_gives(&self, side: Side, frame: &[u8], expected: (u32, &str, &[u8])) {
        self.gives(Hook::Egress, side, frame, expected);
    }

    #[track_caller]
    fn gives(&self, hook: Hook, side: Side, frame: &[u8], (verdict, counters, after): (u32, &str, &[u8])) {
        let (ran, counted) = self.counted(|| self.run(hook, side, frame));
        let expected: BTreeMap<_, _> = counters
            .split_whitespace()
            .map(|name| (name.to_owned(), 1))
            .collect();
        assert_eq!((ran.verdict, counted), (verdict, expected), "{hook:?} {side:?}");
        assert_frame(&ran.packet, after, &format!("{hook:?} {side:?}"));
    }

    /// Asserts that a peer's segment is forwarded as the reference says.
    #[track_caller]
    pub fn forwards(&self, side: Side, packet: &Packet, reference: &mut Reference) {
        let expected = reference.translate(packet).bytes();
        self.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected));
    }

    /// The same for a segment that is out of the window.
    #[track_caller]
    pub fn forwards_stray(&self, side: Side, packet: &Packet, reference: &mut Reference) {
        let expected = reference.translate_stray(packet).bytes();
        self.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected));
    }

    /// Asserts that a frame stays as it is, and is neither dropped nor counted.
    #[track_caller]
    pub fn ignores(&self, side: Side, frame: &[u8]) {
        self.ingress_gives(side, frame, (OK, "", frame));
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if thread::panicking() {
            return self.plane.spoil();
        }
        for side in Side::BOTH {
            if self.exits[side.index()].get() && self.net.is_here() {
                self.set_exit(side, false);
            }
        }
    }
}

/// Registers the flow of a plan in mode Track.
pub fn register(plane: &Dataplane, plan: &Plan) -> Slot {
    register_as(plane, plan, plane.next_serial())
}

fn register_as(plane: &Dataplane, plan: &Plan, serial: u32) -> Slot {
    let slot = plane.take_slot().expect("a free slot");
    plane
        .register(&slot, serial, true, &plan.starts())
        .expect("the flow is new");
    slot
}
