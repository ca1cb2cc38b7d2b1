//! Registers a flow in a data plane of its own.

use std::{cell::Cell, collections::BTreeMap, rc::Rc, thread};

use longsplice_dataplane::{Context, Dataplane, Hook, Mode, PerSide, Ran, Side, Slot, XdpMode};

pub use super::plan::{Plan, leg, legs};
use super::{
    net::{Net, OUR_MAC, PEER_MAC},
    packet::{Packet, assert_frame, pattern},
    plane::Plane,
    reference::Reference,
    workplace::workplace,
};

pub const OK: u32 = u32::MAX; // TC_ACT_UNSPEC: the next program on the hook runs
pub const SHOT: u32 = 2;
pub const REDIRECT: u32 = 7;
pub const XDP_PASS: u32 = 2;
pub const XDP_TX: u32 = 3;
pub const XDP_REDIRECT: u32 = 4;

/// Holds a registered flow. Fields are dropped in this order: the slot before its table, the pins while still in the
/// namespace.
pub struct Flow {
    pub slot: Option<Slot>,
    pub plane: Rc<Plane>,
    pub net: Rc<Net>,
    pub plan: Plan,
    ifindex: [u32; 2],
    /// Number of its transitions from Track on; `detached` is true if it is detached then.
    modes: usize,
    detached: bool,
    /// True for each exit that it has opened.
    exits: [Cell<bool>; 2],
}

impl Flow {
    /// Returns a flow in mode Track.
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

    /// Returns a flow in mode Final, with its sockets parked: dormant.
    pub fn dormant(plan: Plan) -> Flow {
        let mut flow = Flow::track(plan);
        flow.modes = 2;
        flow.advance();
        flow
    }

    /// Returns a flow in mode Final, without sockets and without a slot.
    pub fn detached(plan: Plan) -> Flow {
        let mut flow = Flow::track(plan);
        flow.modes = 2;
        flow.detached = true;
        flow.advance();
        flow
    }

    /// Switches from Track to the mode that it was made for.
    fn advance(&mut self) {
        if self.modes > 0 {
            self.transition(Mode::Track, Mode::Drain);
        }
        if self.modes > 1 {
            self.finish();
        }
        if self.detached {
            self.demote().expect("the records are there");
            self.slot = None;
        }
    }

    /// Replaces the flow by a fresh one with the same addresses, in the same mode.
    pub fn again(&mut self, plan: Plan) {
        let serial = self.plane.next_serial();
        self.again_as(plan, serial);
    }

    /// Replaces the flow by a fresh one with this serial number.
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
    pub fn transition(&self, from: Mode, to: Mode) {
        assert!(self.slot().transition(from, to));
    }

    /// Switches from Drain to Final.
    #[track_caller]
    pub fn finish(&self) {
        let cuts = PerSide::from_fn(|side| self.plane.leg(self.slot(), side).cut);
        let mode = self.plane.finish(self.slot(), cuts, false).expect("it runs");
        assert_eq!(mode, Mode::Final);
    }

    /// Releases the flow from its slot: its records stand alone.
    pub fn detach(&mut self) {
        self.demote().expect("the records are there");
        self.slot = None;
    }

    pub fn demote(&self) -> std::io::Result<()> {
        self.plane.demote(
            self.slot(),
            legs(),
            PerSide::new(self.ifindex[1], self.ifindex[0]),
        )
    }

    pub fn ifindex(&self, side: Side) -> u32 {
        self.ifindex[side]
    }

    /// Returns the next segment of a peer, a pure acknowledgement of all that it got.
    pub fn peer_segment(&self, side: Side) -> Packet {
        Packet {
            dst_mac: OUR_MAC[side],
            src_mac: PEER_MAC[side],
            src: leg(side).peer,
            dst: leg(side).local,
            seq: self.plan.peer[side],
            ack: self.plan.local[side],
            window: 500,
            ..Packet::blank()
        }
    }

    /// Switches from Track to Drain after a peer has sent so many bytes. The other socket waits for their
    /// acknowledgement, and so gets copies of the other peer's segments.
    pub fn drain_behind(&self, side: Side, bytes: usize) {
        let old = Packet {
            payload: pattern(bytes),
            ..self.peer_segment(side)
        };
        self.ingress(side, &old.bytes());
        self.transition(Mode::Track, Mode::Drain);
    }

    /// Returns the next segment of the local socket toward a peer.
    pub fn local_segment(&self, side: Side) -> Packet {
        Packet {
            dst_mac: PEER_MAC[side],
            src_mac: OUR_MAC[side],
            src: leg(side).local,
            dst: leg(side).peer,
            seq: self.plan.local[side],
            ack: self.plan.peer[side],
            window: 500,
            ..Packet::blank()
        }
    }

    /// Returns an independent translation of a peer's segments.
    pub fn reference(&self, side: Side) -> Reference {
        let o = side.other();
        let far = leg(side.other());
        Reference {
            src: far.local,
            dst: far.peer,
            src_mac: OUR_MAC[o],
            dst_mac: PEER_MAC[o],
            seq: self.plan.seq_off(side).raw(),
            far_seq: self.plan.seq_off(side.other()).raw(),
            ts: self.plan.ts[side],
            far_ts: self.plan.ts[o],
            scale_in: self.plan.scale_in[side],
            scale_out: self.plan.scale_out[side],
            blank_sack: self.plan.blank_sack[side],
            ts_high: self.plan.clock[side].wrapping_add(self.plan.ts[side]),
        }
    }

    /// Runs ingress over a frame on the interface toward `side`. The kernel verifies its sum afterwards, too.
    pub fn ingress(&self, side: Side, frame: &[u8]) -> Ran {
        self.run(Hook::Ingress, side, frame)
    }

    /// Runs egress over a frame on the interface toward `side`.
    pub fn egress(&self, side: Side, frame: &[u8]) -> Ran {
        self.run(Hook::Egress, side, frame)
    }

    /// Opens or closes the interface toward `side` for frames of XDP: the other end of the veth pair takes them or does
    /// not.
    pub fn set_exit(&self, side: Side, open: bool) {
        self.net.take_frames(side, open);
        let opened = self.plane.open_exit(self.ifindex(side), XdpMode::Native);
        assert_eq!(opened.expect("the map is there"), open);
        self.exits[side].set(open);
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

    /// Runs `work`, and returns its value and the counters that moved.
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

    /// Asserts the fate of a frame on ingress: the program's value, the counters that move by one (mostly one, or none,
    /// ""), and every byte afterwards.
    #[track_caller]
    pub fn ingress_gives(&self, side: Side, frame: &[u8], expected: (u32, &str, &[u8])) {
        self.gives(Hook::Ingress, side, frame, expected);
    }

    /// Asserts the fate of a frame in XDP.
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

    /// Asserts that a peer's segment out of the window is forwarded as the reference says.
    #[track_caller]
    pub fn forwards_stray(&self, side: Side, packet: &Packet, reference: &mut Reference) {
        let expected = reference.translate_stray(packet).bytes();
        self.ingress_gives(side, &packet.bytes(), (REDIRECT, "forwarded", &expected));
    }

    /// Asserts that a frame stays unchanged, and is neither dropped nor counted.
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
            if self.exits[side].get() && self.net.is_here() {
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
