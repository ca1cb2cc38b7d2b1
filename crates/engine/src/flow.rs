//! A registered flow that still has its sockets, between relay and detached.

mod coupling;
pub(crate) mod draining;

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use longsplice_core::{limit::Rate, reason::RelayReason};
use longsplice_dataplane::{Alone, Dataplane, Direction, Leg, LegState, Mapping, Mode, Side, Slot};
use longsplice_repair::close_silently;
use tokio::net::TcpStream;

use crate::{
    held::{Held, Keeping},
    legs::{Assessment, Refusal},
    pump::Pump,
    splicer::Inner,
    traps::Distance,
};

/// A flow in the kernel half's table, with a slot.
#[derive(Debug)]
pub(crate) struct Flow {
    plane: Arc<Dataplane>,
    slot: Option<Slot>,
    legs: [Leg; 2],
    timestamps: bool,
    /// The sockets' timestamp clocks are those of the far ends: there is nothing to add.
    one_clock: bool,
    interfaces: [u32; 2],
    /// `copied_seq` of each socket less what the pump had consumed then: what the pump consumes later is added.
    copied_base: [u32; 2],
    keeping: Keeping,
    /// It has been in mode Drain: TSvals of others went to its ends.
    drained: bool,
    /// When it was registered, as long as something may be between the programs and a socket that passed them before.
    unnoted_since: Option<Instant>,
    /// What the coupling takes back that was offered, by the side whose peer must hear of it.
    notices: [Option<coupling::Notice>; 2],
    /// How fast each side's payload may pass.
    limits: [Option<Rate>; 2],
    /// Nobody has this flow's records to themselves any more: they stay when it is dropped.
    released: bool,
}

impl Flow {
    /// Registers the pair: from then on its packets are noted. `pump` must not move between the assessment and this.
    pub(crate) fn register(
        splicer: &Arc<Inner>,
        plane: &Arc<Dataplane>,
        assessment: &Assessment,
        pump: &Pump,
        serial: u32,
    ) -> Result<Flow, Refusal> {
        let slot = plane
            .take_slot()
            .filter(|_| plane.flow_count() < plane.max_flows());
        let slot = slot.ok_or_else(|| Refusal::for_now(RelayReason::TableFull))?;
        plane
            .register(&slot, serial, assessment.plan.timestamps, &assessment.start(pump))
            .map_err(|e| match e.kind() {
                io::ErrorKind::AlreadyExists => Refusal::for_now(RelayReason::NotEstablished),
                io::ErrorKind::Other => Refusal::for_now(RelayReason::TableFull),
                _ => Refusal::system("cannot register a flow", &e),
            })?;
        let flow = Flow {
            plane: plane.clone(),
            slot: Some(slot),
            legs: assessment.legs,
            timestamps: assessment.plan.timestamps,
            one_clock: false,
            interfaces: assessment.interfaces(),
            copied_base: assessment.copied_base(pump),
            keeping: Keeping::new(splicer, serial),
            drained: false,
            unnoted_since: Some(Instant::now()),
            notices: [None; 2],
            limits: [None; 2],
            released: false,
        };
        for leg in flow.legs {
            splicer.mapped.forget(leg);
        }
        flow.note_streams(pump);
        flow.note_clocks(pump);
        Ok(flow)
    }

    /// A detached flow that has been given a slot.
    pub(crate) fn attached(splicer: &Arc<Inner>, plane: &Arc<Dataplane>, slot: Slot, legs: [Leg; 2]) -> Flow {
        let serial = slot.serial();
        let timestamps = plane.leg(&slot, Side::Client).timestamps;
        Flow {
            plane: plane.clone(),
            slot: Some(slot),
            legs,
            timestamps,
            one_clock: false,
            interfaces: [0; 2],
            copied_base: [0; 2],
            keeping: Keeping::new(splicer, serial),
            drained: true,
            unnoted_since: None,
            notices: [None; 2],
            limits: [None; 2],
            released: false,
        }
    }

    /// Of a pair that came back and is to be spliced again: goes from Undrain to Track. The handler may have read and
    /// written what it liked. False if something that passed is not acknowledged yet.
    pub(crate) fn resume(&mut self, assessment: &Assessment, pump: &Pump) -> bool {
        match self.mode() {
            Mode::Undrain if !(self.is_settled() && self.slot().settle()) => return false,
            Mode::Track => self.slot().own_all(),
            _ => {}
        }
        self.slot().set_offsets(assessment.offsets(pump));
        self.interfaces = assessment.interfaces();
        self.copied_base = assessment.copied_base(pump);
        self.keeping.held.keep_out();
        true
    }

    /// Nothing that passed by the sockets is under way any more: a relay like any other.
    pub(crate) fn settle(&self) {
        self.slot().settle();
    }

    pub(crate) fn plane(&self) -> &Dataplane {
        &self.plane
    }

    pub(crate) fn legs(&self) -> [Leg; 2] {
        self.legs
    }

    pub(crate) fn serial(&self) -> u32 {
        self.slot().serial()
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.keeping.held
    }

    /// What the socket of a side counts otherwise than the wire.
    pub(crate) fn mapping(&self, side: Side) -> Mapping {
        self.slot().mapping(side)
    }

    /// Whether both ends have acknowledged all that passed by the sockets.
    pub(crate) fn is_settled(&self) -> bool {
        let states = Side::BOTH.map(|side| self.leg(side));
        Side::BOTH.iter().all(|&side| {
            let (x, o) = (&states[side.index()], &states[side.other().index()]);
            let past = !x.owed || (o.rx_ack.wrapping_sub(x.base.wrapping_add(x.seq_off)) as i32) >= 0;
            // A FIN that was forwarded, and that the socket toward o has not said yet.
            past && (o.rx_ack.wrapping_sub(o.loc_end) as i32) <= 0
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

    /// What passed, translated, in both directions.
    pub(crate) fn directions(&self) -> [Direction; 2] {
        self.plane.directions(self.slot(), self.legs)
    }

    pub(crate) fn leg(&self, side: Side) -> LegState {
        self.plane.leg(self.slot(), side)
    }

    /// See the field.
    pub(crate) fn set_one_clock(&mut self, one_clock: bool) {
        self.one_clock = one_clock;
    }

    /// The next sequence number that the pump will read of a side.
    pub(crate) fn copied(&self, side: Side, pump: &Pump) -> u32 {
        self.copied_base[side.index()].wrapping_add(pump.consumed(side) as u32)
    }

    /// Whether an end has sent a reset that was in place while either stream toward or from it was open: later, it only
    /// answers a late duplicate.
    pub(crate) fn was_reset(&self) -> bool {
        let states = Side::BOTH.map(|side| self.leg(side));
        Side::BOTH.iter().any(|&side| {
            let (x, o) = (&states[side.index()], &states[side.other().index()]);
            x.reset && !(x.fin && o.fin && has_heard_all(&states, side))
        })
    }

    /// Whether both ends have said their last, and each has acknowledged the other's: whatever comes now is an answer to a
    /// late duplicate.
    pub(crate) fn is_complete(&self) -> bool {
        let states = Side::BOTH.map(|side| self.leg(side));
        Side::BOTH
            .iter()
            .all(|&side| states[side.index()].fin && has_heard_all(&states, side))
    }

    /// Where each local socket's own part of its peer's stream ends.
    pub(crate) fn cuts(&self) -> [u32; 2] {
        Side::BOTH.map(|side| self.leg(side).cut)
    }

    /// How many payload bytes the pump may read of a side so that it comes to `cut`, as the pump counts.
    pub(crate) fn bytes_to(&self, side: Side, cut: u32, pump: &Pump) -> u64 {
        let left = cut.wrapping_sub(self.copied(side, pump)) as i32;
        pump.bytes(side) + u64::try_from(left).unwrap_or(0)
    }

    /// Arms the traps: payload that ends so many bytes from the next one to be read, or later, brings control back.
    pub(crate) fn arm(&self, pump: &Pump, distances: [Option<Distance>; 2]) {
        for side in Side::BOTH {
            let distance = distances[side.index()];
            let at = distance.map(|d| self.copied(side, pump).wrapping_add(d.bytes));
            self.slot()
                .set_will(side, distance.map(|d| d.will).unwrap_or_default());
            self.slot().set_trap(side, at);
        }
    }

    /// Goes from Drain to Final: the sockets are out of the path. The mode after it: Drain, if a socket was given something
    /// since the pair was found drained at these cuts. `wakeable`: the sockets could go on any moment.
    pub(crate) fn finish(&self, cuts: [u32; 2], wakeable: bool) -> io::Result<Mode> {
        self.plane.finish(self.slot(), cuts, wakeable)
    }

    /// A leg of it for itself.
    pub(crate) fn alone(&self, side: Side) -> Alone {
        let leg = self.leg(side);
        Alone {
            mapping: leg.mapping,
            sent: leg.ts_sent,
            heard: leg.peer_ts,
        }
    }

    /// Adds to a record what was relayed.
    pub(crate) fn add_bytes(&self, side: Side, bytes: u64) {
        self.slot().add_bytes(side, bytes);
    }

    /// Whether its sockets still need the kernel half after the flow.
    pub(crate) fn is_mapped(&self) -> bool {
        self.drained
    }

    /// Lets the kernel half's records stand alone. What is given back must be kept for a moment, then be passed to
    /// [`Settling::settle`]. The flow itself comes back if a packet has just woken its sockets.
    pub(crate) fn release(mut self) -> Result<Settling, Box<Flow>> {
        match self.plane.release(self.slot(), self.legs, self.interfaces) {
            Err(_) if self.mode() == Mode::Undrain => return Err(Box::new(self)),
            // Else the tuple has a new owner already.
            Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy) => {
                tracing::error!(error = %e, "cannot release a flow from its slot");
            }
            _ => {}
        }
        Ok(self.leave())
    }

    /// The same for a flow whose sockets were built, and are not to be used now: its ends notice nothing.
    pub(crate) fn abandon(self, splicer: &Inner) -> Result<(), Box<Flow>> {
        self.slot().switch(Mode::Freeze, Mode::Final);
        splicer.settle_later(self.release()?);
        Ok(())
    }

    /// A flow whose sockets were built, after they were to be woken: itself if they are awake, also by a packet that has come
    /// this moment.
    ///
    /// # Errors
    /// It is detached as before, and the sockets are to be closed in silence. `NotFound`: it is being replaced, or has just
    /// ended.
    pub(crate) fn awake(self, splicer: &Inner, woken: io::Result<bool>) -> io::Result<Flow> {
        if matches!(woken, Ok(true)) {
            return Ok(self);
        }
        match self.abandon(splicer) {
            Err(awake) => Ok(*awake),
            Ok(()) => Err(woken.err().unwrap_or_else(|| io::ErrorKind::NotFound.into())),
        }
    }

    /// The legs have nothing to do with each other any more. What is given back is to be kept for a moment, too.
    pub(crate) fn part(mut self) -> Settling {
        let settling = self.leave();
        self.plane.part(&settling.slot, self.legs);
        settling
    }

    fn leave(&mut self) -> Settling {
        self.released = true;
        Settling {
            slot: self
                .slot
                .take()
                .expect("the slot is taken only when the flow is consumed"),
            legs: self.legs,
            interfaces: self.interfaces,
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if !self.released {
            self.plane.unregister(self.serial(), self.legs);
        }
    }
}

/// Closes a parked socket: its peer notices nothing.
pub(crate) fn close_in_silence(socket: TcpStream) -> io::Result<()> {
    let fd = OwnedFd::from(socket.into_std()?);
    close_silently(fd).map_err(|e| {
        // In mode Final the kernel half drops whatever the socket says at its end.
        tracing::error!(error = %e.source, "cannot close a socket in silence");
        e.source.into()
    })
}

/// Whether the end of this side has acknowledged all that came from the other one.
fn has_heard_all(states: &[LegState; 2], side: Side) -> bool {
    let (x, o) = (&states[side.index()], &states[side.other().index()]);
    x.rx_ack.wrapping_sub(o.end().wrapping_add(o.seq_off)) as i32 >= 0
}

fn micros(us: u32) -> Duration {
    Duration::from_micros(us.into())
}

/// A slot that was left, before it may be used again.
#[derive(Debug)]
pub(crate) struct Settling {
    slot: Slot,
    legs: [Leg; 2],
    interfaces: [u32; 2],
}

impl Settling {
    /// Of a flow that a predecessor had.
    pub(crate) fn of_orphan(slot: Slot, legs: [Leg; 2]) -> Settling {
        Settling {
            slot,
            legs,
            interfaces: [0; 2],
        }
    }

    /// Collects what a segment noted in the slot while it was left, and frees it.
    pub(crate) fn settle(self, plane: &Dataplane) {
        if self.slot.mode() == Mode::Moved {
            let _ = plane.release(&self.slot, self.legs, self.interfaces);
        }
    }
}
