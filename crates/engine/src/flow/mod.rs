//! Holds a registered flow that still has its sockets, between relay and detached.

pub(crate) mod assess;
pub(crate) mod capture;
mod coupling;
pub(crate) mod drain;
pub(crate) mod rebuild;
mod stall;

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use longsplice_core::{limit::Rate, reason::RelayReason, seq::Seq};
use longsplice_dataplane::{Alone, Dataplane, Direction, Leg, LegState, Mapping, Mode, PerSide, Side, Slot};

use crate::{
    kernel::{
        Kernel,
        held::{FlowQueue, HoldGuard},
        socket::is_marked,
    },
    relay::{pump::Pump, traps::Distance},
};
use assess::{Assessment, Refusal};

/// Holds a flow in the kernel half's table, with a slot.
#[derive(Debug)]
pub(crate) struct Flow {
    kernel: Arc<Kernel>,
    slot: Option<Slot>,
    legs: PerSide<Leg>,
    timestamps: bool,
    /// True if the sockets' timestamp clocks are those of the far ends: there is no offset to add.
    pub(crate) one_clock: bool,
    interfaces: PerSide<u32>,
    /// `copied_seq` of each socket less the pump's consumed bytes at that time; bytes consumed later are added.
    copied_base: PerSide<Seq>,
    hold: HoldGuard,
    /// True once the flow has been in mode Drain: TSvals of the other leg went to its ends.
    drained: bool,
    /// True if a leg stood alone in the table before, for its socket's numbers.
    stood_alone: bool,
    /// Time of registration, while a packet that passed the programs before it may still be on its way to a socket.
    unnoted_since: Option<Instant>,
    /// Window that the coupling takes back, by the side whose peer must be told.
    notices: PerSide<Option<coupling::Notice>>,
    /// True if the socket marks what it sends, so that connection tracking leaves it out.
    marked: PerSide<bool>,
    /// Rate limit of each side's payload.
    limits: PerSide<Option<Rate>>,
    /// Last progress of the ends, while one of them owes an acknowledgement.
    heard: Option<stall::Heard>,
    /// True for an end that was through when its last acknowledgement was taken back, because its socket lacked it: what
    /// the socket sends again may be answered by a reset.
    through: PerSide<bool>,
    /// True if the records stay when the flow is dropped.
    released: bool,
}

impl Flow {
    /// Registers the pair: from then on its packets are noted. `pump` must not move between the assessment and this call.
    pub(crate) fn register(
        kernel: &Arc<Kernel>,
        assessment: &Assessment,
        pump: &Pump,
        serial: u32,
    ) -> Result<Flow, Refusal> {
        let plane = &kernel.plane;
        let slot = plane
            .take_spare_slot()
            .filter(|_| plane.flow_count() < plane.max_flows());
        let slot = slot.ok_or_else(|| Refusal::for_now(RelayReason::TableFull))?;
        plane
            .register(&slot, serial, assessment.plan.timestamps, &assessment.start(pump))
            .map_err(|e| match e.kind() {
                io::ErrorKind::AlreadyExists => Refusal::for_now(RelayReason::NotEstablished),
                io::ErrorKind::Other => Refusal::for_now(RelayReason::TableFull),
                _ => Refusal::system("cannot register a flow", &e),
            })?;
        let mut flow = Flow::attached(kernel, slot, assessment.legs);
        flow.interfaces = assessment.interfaces();
        flow.marked = PerSide::from_fn(|side| is_marked(pump.socket(side)));
        flow.copied_base = assessment.copied_base(pump);
        flow.drained = false;
        flow.stood_alone = assessment.stood_alone();
        flow.unnoted_since = Some(Instant::now());
        flow.note_streams(pump);
        // Until now the sockets themselves told their peers what they take.
        for side in Side::BOTH {
            flow.slot().note_offered(side, flow.leg(side).loc_edge);
        }
        flow.note_clocks(pump);
        Ok(flow)
    }

    /// Returns the flow of a record with a slot, as it is without sockets.
    pub(crate) fn attached(kernel: &Arc<Kernel>, slot: Slot, legs: PerSide<Leg>) -> Flow {
        let serial = slot.serial();
        let timestamps = kernel.plane.leg(&slot, Side::Client).timestamps;
        Flow {
            kernel: Arc::clone(kernel),
            slot: Some(slot),
            legs,
            timestamps,
            one_clock: false,
            interfaces: PerSide::both(0),
            copied_base: PerSide::default(),
            hold: kernel.held.hold(serial),
            drained: true,
            stood_alone: false,
            unnoted_since: None,
            notices: PerSide::both(None),
            // Connection tracking takes such legs for one connection.
            marked: PerSide::both(
                (legs.client.peer, legs.client.local) == (legs.server.local, legs.server.peer),
            ),
            limits: PerSide::both(None),
            heard: None,
            through: PerSide::both(false),
            released: false,
        }
    }

    /// Prepares a pair that came back for another splice: switches from Undrain to Track. The handler may have read and
    /// written any data meanwhile. Returns false if some forwarded bytes are not acknowledged yet.
    pub(crate) fn resume(&mut self, assessment: &Assessment, pump: &Pump) -> bool {
        match self.mode() {
            Mode::Undrain if !(self.is_quiescent() && self.slot().resolve()) => return false,
            Mode::Track => self.slot().own_all(),
            _ => {}
        }
        self.slot().set_offsets(assessment.offsets(pump));
        self.interfaces = assessment.interfaces();
        self.copied_base = assessment.copied_base(pump);
        self.hold.queue.keep_out();
        true
    }

    /// Turns the flow into a plain relay, once no byte that bypassed the sockets is in flight.
    pub(crate) fn resolve(&self) {
        self.slot().resolve();
    }

    pub(crate) fn plane(&self) -> &Dataplane {
        &self.kernel.plane
    }

    pub(crate) fn legs(&self) -> PerSide<Leg> {
        self.legs
    }

    pub(crate) fn serial(&self) -> u32 {
        self.slot().serial()
    }

    pub(crate) fn held(&self) -> &Arc<FlowQueue> {
        &self.hold.queue
    }

    /// Returns the offsets between the numbers of a side's socket and those on the wire.
    pub(crate) fn mapping(&self, side: Side) -> Mapping {
        self.slot().mapping(side)
    }

    /// Returns true if both ends have acknowledged all that bypassed the sockets.
    pub(crate) fn is_quiescent(&self) -> bool {
        let states = PerSide::from_fn(|side| self.leg(side));
        Side::BOTH.iter().all(|&side| {
            let (x, o) = (&states[side], &states[side.other()]);
            let past = !x.bypassed || o.rx_ack.at_or_after(x.base + x.seq_off);
            // Beyond `loc_end`, o has acknowledged a forwarded FIN that the socket toward o has not sent yet.
            past && o.rx_ack - o.loc_end <= 0
        })
    }

    pub(crate) fn slot(&self) -> &Slot {
        self.slot
            .as_ref()
            .expect("the slot is taken only when the flow is consumed")
    }

    pub(crate) fn mode(&self) -> Mode {
        self.slot().mode()
    }

    /// Returns the records of both directions: the bytes that passed, translated.
    pub(crate) fn directions(&self) -> PerSide<Direction> {
        self.plane().directions(self.slot(), self.legs)
    }

    pub(crate) fn leg(&self, side: Side) -> LegState {
        self.plane().leg(self.slot(), side)
    }

    /// Returns true if a connection tracker of this host may take a new socket's segments for invalid.
    pub(crate) fn is_tracked(&self) -> bool {
        self.kernel.conntrack.refuses()
    }

    /// Makes a connection tracker of this host accept the segments of its sockets. An error says that it may not.
    pub(crate) fn expect_return(&self) -> io::Result<()> {
        self.kernel.conntrack.expect_return(self.legs)
    }

    /// Returns the next sequence number that the pump will read of a side.
    pub(crate) fn copied(&self, side: Side, pump: &Pump) -> Seq {
        self.copied_base[side] + pump.consumed(side) as u32
    }

    /// Returns true if an end has sent a valid reset while either stream toward or from it was open. A later one only
    /// answers a late duplicate.
    pub(crate) fn was_reset(&self) -> bool {
        let states = PerSide::from_fn(|side| self.leg(side));
        Side::BOTH
            .iter()
            .any(|&side| states[side].reset && !self.is_through(&states, side))
    }

    /// Returns true if both ends have sent their FIN, and each has acknowledged the other's. A later segment only answers
    /// a late duplicate.
    pub(crate) fn is_complete(&self) -> bool {
        let states = PerSide::from_fn(|side| self.leg(side));
        Side::BOTH.iter().all(|&side| self.is_through(&states, side))
    }

    /// Returns true if both ends have sent their FIN, and that of this side has acknowledged all that came from the other
    /// one: it may be gone.
    fn is_through(&self, states: &PerSide<LegState>, side: Side) -> bool {
        states.iter().all(|x| x.fin) && (self.through[side] || has_heard_all(states, side))
    }

    /// Returns true if both ends are done, and segments bypassed the sockets: the sockets' numbers may differ from the
    /// ends of the streams.
    pub(crate) fn went_by(&self) -> bool {
        matches!(self.mode(), Mode::Drain | Mode::Final | Mode::Replaced) && self.is_complete()
    }

    /// Takes the sockets of a finished flow out of the path, and lets its records stand alone, like [`Flow::demote`].
    pub(crate) fn release_finished(self) -> Result<(), Box<Flow>> {
        // The records show that the flow has ended in order.
        for side in Side::BOTH {
            if self.through[side] {
                let o = self.leg(side.other());
                self.slot().note_acknowledged(side, o.end() + o.seq_off);
            }
        }
        self.slot().transition(Mode::Drain, Mode::Final);
        self.demote()
    }

    /// Returns the end of each local socket's own part of its peer's stream.
    pub(crate) fn cuts(&self) -> PerSide<Seq> {
        PerSide::from_fn(|side| self.leg(side).cut)
    }

    /// Returns the number of payload bytes that the pump may read of a side to come to `cut`, in the pump's count.
    pub(crate) fn bytes_to(&self, side: Side, cut: Seq, pump: &Pump) -> u64 {
        pump.bytes(side) + u64::from(cut.bytes_since(self.copied(side, pump)))
    }

    /// Arms the traps: payload that ends at this distance from the next byte to be read, or later, brings control back.
    pub(crate) fn arm(&self, pump: &Pump, distances: PerSide<Option<Distance>>) {
        for side in Side::BOTH {
            let distance = distances[side];
            let at = distance.map(|d| self.copied(side, pump) + d.bytes);
            self.slot()
                .set_successor(side, distance.map(|d| d.plan).unwrap_or_default());
            self.slot().set_trap(side, at);
        }
    }

    /// Switches from Drain to Final, which takes the sockets out of the path. Returns the mode after it: Drain, if a
    /// socket was given data since the pair was found drained at these cuts. `wakeable`: the sockets could carry on at
    /// any moment.
    pub(crate) fn finish(&self, cuts: PerSide<Seq>, wakeable: bool) -> io::Result<Mode> {
        self.plane().finish(self.slot(), cuts, wakeable)
    }

    /// Returns the state of one leg on its own.
    pub(crate) fn alone(&self, side: Side) -> Alone {
        let leg = self.leg(side);
        Alone {
            mapping: leg.mapping,
            sent: leg.ts_sent,
            heard: leg.peer_ts,
        }
    }

    /// Adds relayed bytes to a record.
    pub(crate) fn add_bytes(&self, side: Side, bytes: u64) {
        self.slot().add_bytes(side, bytes);
    }

    /// Returns true if its sockets still need the kernel half after the flow. A replaced flow's tuple is a new
    /// connection's.
    pub(crate) fn is_mapped(&self) -> bool {
        (self.drained || self.stood_alone) && self.mode() != Mode::Replaced
    }

    /// Lets the kernel half's records stand alone; the slot goes to the quarantine. Returns the flow itself if a packet
    /// has just woken its sockets.
    pub(crate) fn demote(mut self) -> Result<(), Box<Flow>> {
        match self.plane().demote(self.slot(), self.legs, self.interfaces) {
            Err(_) if self.mode() == Mode::Undrain => return Err(Box::new(self)),
            // Errors NotFound and ResourceBusy mean that the tuple has a new owner already.
            Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy) => {
                tracing::error!(error = %e, "cannot release a flow from its slot");
            }
            _ => {}
        }
        self.leave();
        Ok(())
    }

    /// Releases a flow whose sockets were built, and are not used now: its ends notice nothing.
    pub(crate) fn abandon(self) -> Result<(), Box<Flow>> {
        self.slot().transition(Mode::Freeze, Mode::Final);
        self.demote()
    }

    /// Returns the flow, after an attempt to wake its new sockets, if they are awake, also by a packet that has come at
    /// this moment. Fails if they are not awake. The flow is detached as before, and the caller closes the sockets in
    /// silence. `NotFound`: the flow is being replaced, or has just ended.
    pub(crate) fn awake(self, woken: io::Result<bool>) -> io::Result<Flow> {
        if matches!(woken, Ok(true)) {
            return Ok(self);
        }
        match self.abandon() {
            Err(awake) => Ok(*awake),
            Ok(()) => Err(woken.err().unwrap_or_else(|| io::ErrorKind::NotFound.into())),
        }
    }

    /// Parts the legs, which have nothing to do with each other any more; the slot goes to the quarantine.
    pub(crate) fn part(mut self) {
        self.plane().part(self.slot(), self.legs);
        self.leave();
    }

    fn leave(&mut self) {
        self.released = true;
        if let Some(slot) = self.slot.take() {
            self.kernel.quarantine.put(slot, self.legs, self.interfaces);
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if !self.released {
            self.plane().unregister(self.serial(), self.legs);
        }
    }
}

/// Returns true if the end of this side has acknowledged all that came from the other one.
fn has_heard_all(states: &PerSide<LegState>, side: Side) -> bool {
    let (x, o) = (&states[side], &states[side.other()]);
    x.rx_ack.at_or_after(o.end() + o.seq_off)
}

fn micros(us: u32) -> Duration {
    Duration::from_micros(us.into())
}
