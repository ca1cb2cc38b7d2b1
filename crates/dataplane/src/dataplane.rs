//! The kernel half as this process holds it.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    abi::{Leg, Mapping, Pod, Side, ls_move, ls_record, ls_wake},
    attach::Programs,
    births::Births,
    error::Error,
    events::Events,
    flows::{Direction, is_alone, is_identity},
    forwarding,
    leg::{LegStart, LegState, start_leg},
    load::{META_KEY, init_meta, load, read_meta, refuse_foreign},
    peek::{self, Peek},
    pins::Pins,
    run::{self, Context, Ran},
    skel::types::{ls_placement, ls_trait, ls_wake_how},
    slot::{Mode, Slot},
    slots::SlotTable,
    table::{Entry, Table},
    time, verdicts,
    xdp::{Xdp, XdpError, XdpMode},
};

/// Serial numbers are reserved in the pinned map by the block: a successor begins after the last block.
const SERIAL_BLOCK: u32 = 4096;

/// How the kernel half is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names the pins.
    pub instance: String,
    /// How many flows there can be. Ignored where pins of a predecessor have a size already.
    pub max_flows: u32,
    /// How many of them can have sockets. Likewise.
    pub max_slots: u32,
}

/// Where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// What the peers send.
    Ingress,
    /// What our own sockets send.
    Egress,
    /// What the peers send, before there is an sk_buff: segments of detached flows (IP/FWD).
    Xdp,
}

/// A leg that belongs to no flow, but was spliced before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alone {
    /// What its socket counts otherwise than the wire.
    pub mapping: Mapping,
    /// The highest TSval that was sent to its peer.
    pub sent: u32,
    /// The highest one of the peer.
    pub heard: u32,
}

/// The kernel half: programs loaded and attached, maps open. Everything outlives this value, pinned.
#[derive(Debug)]
pub struct Dataplane {
    pins: Pins,
    programs: Programs,
    peek: OwnedFd,
    release: OwnedFd,
    attach: OwnedFd,
    wake: OwnedFd,
    inject: OwnedFd,
    events: MapHandle,
    flows: Table,
    verdicts: MapHandle,
    meta: MapHandle,
    slots: Arc<SlotTable>,
    max_flows: u32,
    serial: Mutex<(u32, u32)>,
    births: Mutex<Births>,
    records: AtomicU32,
    xdp: Xdp,
}

impl Dataplane {
    /// Loads the programs, with a predecessor's maps if there are any. Also gives the slots that were in use: their
    /// flows had sockets of a process that is gone.
    ///
    /// # Errors
    /// [`Error::Version`] and [`Error::Namespace`] where the pins are not ours to take; nothing is changed then.
    pub fn open(options: &Options) -> Result<(Dataplane, Vec<Slot>), Error> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |level, message| {
            tracing::debug!(?level, "{}", message.trim_end());
        })));
        let pins = Pins::prepare(&options.instance)?;
        refuse_foreign(&pins, options)?;
        let loaded = load(&pins, options).inspect_err(|_| pins.remove_if_empty())?;
        let slots = SlotTable::map(loaded.slots.as_fd(), loaded.slots.max_entries())
            .map_err(|e| Error::from_io("cannot map the slots", e))?;
        let meta = init_meta(&loaded.meta, options, loaded.hash_keys)?;
        let orphans = slots.take_over();
        let plane = Dataplane {
            pins,
            programs: loaded.programs,
            peek: loaded.peek,
            release: loaded.release,
            attach: loaded.attach,
            wake: loaded.wake,
            inject: loaded.inject,
            events: loaded.events,
            max_flows: meta.max_flows,
            flows: Table::new([loaded.flows, loaded.heads], loaded.table, loaded.adopted)
                .map_err(|e| Error::from_io("cannot read the flows", e))?,
            verdicts: loaded.verdicts,
            meta: loaded.meta,
            slots,
            serial: Mutex::new((meta.next_serial, meta.next_serial)),
            births: Mutex::new(Births::new(time::now())),
            records: AtomicU32::new(0),
            xdp: Xdp::default(),
        };
        plane.programs.detach_rules(&plane.pins);
        plane.keep_lo_forwarding()?;
        let mut records = 0;
        plane
            .scan(|_| records += 1)
            .map_err(|e| Error::from_io("cannot read the flows", e))?;
        plane.records.store(records, Ordering::Relaxed);
        Ok((plane, orphans))
    }

    /// Route look-ups of the kernel half need forwarding on the loopback, and on no other interface.
    pub fn keep_lo_forwarding(&self) -> Result<(), Error> {
        forwarding::keep()
    }

    /// The counters of what becomes of packets.
    pub(crate) fn verdict_map(&self) -> &MapHandle {
        &self.verdicts
    }

    /// Where it is pinned.
    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// How many flows there can be.
    pub fn max_flows(&self) -> u32 {
        self.max_flows
    }

    /// Records that exist now.
    pub fn flow_count(&self) -> u32 {
        self.records.load(Ordering::Relaxed) / 2
    }

    /// Watches an interface; again is no error.
    pub fn attach(&self, ifindex: u32) -> Result<(), Error> {
        self.programs.attach(&self.pins, ifindex)
    }

    /// Stops to watch it; XDP, too.
    pub fn detach(&self, ifindex: u32) {
        self.detach_xdp(ifindex);
        self.programs.detach(&self.pins, ifindex);
    }

    /// Puts the XDP program on an interface that is watched, or in the place of a predecessor's; again is no error. The
    /// first call loads it.
    ///
    /// # Errors
    /// The interface is as it was, and its segments are translated at tc.
    pub fn attach_xdp(&self, ifindex: u32, mode: XdpMode) -> Result<(), XdpError> {
        self.xdp.attach(&self.pins, ifindex, mode)
    }

    /// Takes it off, whoever put it there.
    pub fn detach_xdp(&self, ifindex: u32) {
        self.xdp.detach(&self.pins, ifindex);
    }

    /// Whether frames that XDP redirects may leave by an interface now, which is looked at anew: a driver may refuse them,
    /// and nobody would be told. Where they may not, segments that go there are translated at tc.
    pub fn open_exit(&self, ifindex: u32, mode: XdpMode) -> Result<bool, XdpError> {
        self.xdp.open_exit(&self.pins, ifindex, mode)
    }

    /// Interfaces that a predecessor watched.
    pub fn linked_interfaces(&self) -> Vec<u32> {
        self.pins.interfaces("ingress")
    }

    /// What the socket of a leg knows of its connection.
    pub fn peek(&self, leg: Leg) -> io::Result<Peek> {
        peek::peek(self.peek.as_fd(), leg)
    }

    /// The same of two legs at once.
    pub fn peek_both(&self, legs: [Leg; 2]) -> io::Result<[Peek; 2]> {
        peek::both(self.peek.as_fd(), legs)
    }

    /// A free slot, or `None`.
    pub fn take_slot(&self) -> Option<Slot> {
        self.slots.take()
    }

    /// A serial number that no flow of this instance has had within 2^32.
    pub fn next_serial(&self) -> u32 {
        let mut next = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
        let (serial, reserved) = *next;
        *next = (serial.wrapping_add(1), reserved);
        if serial == reserved {
            next.1 = reserved.wrapping_add(SERIAL_BLOCK);
            if let Ok(mut meta) = read_meta(&self.meta) {
                meta.next_serial = next.1;
                let _ = self.meta.update(&META_KEY, meta.bytes(), MapFlags::ANY);
            }
        }
        self.births().note(serial, time::now());
        serial
    }

    fn births(&self) -> MutexGuard<'_, Births> {
        self.births.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a tuple carries a flow: its port must not be used for another connection.
    pub fn in_use(&self, leg: Leg) -> bool {
        self.flows.find(leg).is_some()
    }

    /// Installs both directions of a flow, or none; from then on its packets are noted (mode Track). `InvalidInput`: the two
    /// legs' versions of IP differ, which is not translated.
    pub fn register(
        &self,
        slot: &Slot,
        serial: u32,
        timestamps: bool,
        start: &[LegStart; 2],
    ) -> io::Result<()> {
        if start[0].leg.family() != start[1].leg.family() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a leg of IPv4 and one of IPv6 cannot be spliced",
            ));
        }
        let now = time::now();
        let legs = Side::BOTH.map(|side| {
            let (x, o) = (&start[side.index()], &start[side.other().index()]);
            start_leg(side, x, o, slot.index(), serial, timestamps, now)
        });
        slot.fill(serial, legs, Mode::Track);
        self.flows.add(Side::BOTH.map(|side| {
            let start = &start[side.index()];
            Entry {
                leg: start.leg,
                rec: legs[side.index()].rec,
                replace: start.alone,
            }
        }))?;
        self.records.fetch_add(2, Ordering::Relaxed);
        Ok(())
    }

    /// The flow of two legs ends, but not their connections: what each socket counts otherwise than the wire is kept.
    /// Packets must find no other use for the slot than they did (mode Track, or Undrain with all settled). A socket that
    /// counts as the wire does may still be behind the TSval that its peer was sent.
    pub fn part(&self, slot: &Slot, legs: [Leg; 2]) {
        let records = Side::BOTH.map(|side| {
            let back = slot.leg(side.other()).rec;
            let timestamps = u32::from(back.traits) & ls_trait::LS_TIMESTAMPS.0 != 0;
            let mapping = slot.mapping(side);
            (!mapping.is_none() || timestamps).then(|| ls_record {
                placement: ls_placement::LS_ALONE.0 as u8,
                seq_off: mapping.seq,
                ack_off: mapping.ack,
                ts_high: back.ts_high,
                tsval_off: slot.leg(side).rx_ts,
                ..Default::default()
            })
        });
        match self.flows.part(slot.serial(), legs, records) {
            Ok(true) => self.records_gone(2),
            // A new connection has taken its place, or that of one leg.
            Ok(false) => drop(self.unregister(slot.serial(), legs)),
            Err(error) => {
                tracing::error!(%error, ?legs, "cannot keep the sequence numbers of two legs: they will stall");
            }
        }
    }

    /// The legs that belong to no flow but count otherwise than the wire.
    pub fn legs_alone(&self) -> io::Result<Vec<Leg>> {
        let mut legs = Vec::new();
        self.flows.scan(|flow| {
            let alone = flow.from.iter().filter(|d| is_alone(&d.rec));
            legs.extend(alone.map(|d| Leg::from_tuple(&d.key)));
        })?;
        Ok(legs)
    }

    /// What the socket of a leg that belongs to no flow counts otherwise than the wire, and the highest TSval that was sent
    /// to its peer.
    pub fn alone(&self, leg: Leg) -> Option<Alone> {
        let (flow, side) = self.flows.find(leg)?;
        let rec = flow.from[side.index()].rec;
        is_alone(&rec).then_some(Alone {
            mapping: Mapping {
                seq: rec.seq_off,
                ack: rec.ack_off,
            },
            sent: rec.ts_high,
            heard: rec.tsval_off,
        })
    }

    /// Removes what there is of both directions of the flow with this serial number; how many that were. Another flow that has
    /// been given a tuple meanwhile is not touched.
    pub fn unregister(&self, serial: u32, legs: [Leg; 2]) -> u32 {
        let is_its = |rec: &ls_record| rec.serial == serial && !is_alone(rec);
        let removed = legs.into_iter().filter(|&leg| self.flows.remove(leg, is_its));
        let removed = removed.count() as u32;
        self.records_gone(removed);
        removed
    }

    /// Removes the record of a leg that belongs to no flow. If it has become part of one meanwhile, it stays.
    pub fn remove_alone(&self, leg: Leg) {
        self.flows.remove(leg, is_alone);
    }

    /// The count may be behind: the kernel half removes some itself, which the next scan finds.
    fn records_gone(&self, gone: u32) {
        // It never declines: the closure always gives a value.
        let _ = self
            .records
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                Some(n.saturating_sub(gone))
            });
    }

    /// Sets the number of records after a scan: the kernel half removes some itself.
    pub fn set_record_count(&self, records: u32) {
        self.records.store(records, Ordering::Relaxed);
    }

    /// Moves a spliced flow from its slot into its records; `where` are the interfaces toward the far ends, hints. The slot
    /// is in mode Moved then. `NotFound`: a new connection has taken the flow's place. `ResourceBusy`: it was not in mode Final,
    /// and nothing has changed.
    pub fn release(&self, slot: &Slot, legs: [Leg; 2], toward: [u32; 2]) -> io::Result<()> {
        self.r#move(self.release.as_fd(), slot, legs, toward)
    }

    /// Moves a detached flow from its records into a free slot, which is in mode Final then, without sockets. `NotFound`:
    /// there is no such flow, or it has a slot. In that case neither record has changed, or the flow is being replaced.
    pub fn attach_flow(&self, slot: &Slot, serial: u32, legs: [Leg; 2]) -> io::Result<()> {
        slot.fill(serial, Default::default(), Mode::Final);
        self.r#move(self.attach.as_fd(), slot, legs, [0; 2])
    }

    fn r#move(
        &self,
        program: BorrowedFd<'_>,
        slot: &Slot,
        legs: [Leg; 2],
        toward: [u32; 2],
    ) -> io::Result<()> {
        let identity = Side::BOTH.map(|side| {
            let (leg, far) = (legs[side.index()], legs[side.other().index()]);
            u32::from(is_identity(leg, far, &slot.leg(side).rec))
        });
        let argument = ls_move {
            key: legs.map(Leg::tuple),
            slot: slot.index(),
            r#where: toward,
            identity,
        };
        match run::with_argument(program, argument.bytes())? {
            0 => Ok(()),
            2 => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the flow's sockets are awake",
            )),
            _ => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the flow's records are gone",
            )),
        }
    }

    /// Takes the sockets of a slot back into the path, if they can go on now; the mode after it, [`Mode::Undrain`] if the
    /// pair is awake.
    pub fn wake(&self, slot: &Slot) -> io::Result<Mode> {
        self.change(slot, ls_wake_how::LS_W_GO_ON, [0; 2], false)
    }

    /// From Final to Freeze: what is new is held from now on; the mode after it.
    pub fn freeze(&self, slot: &Slot) -> io::Result<Mode> {
        self.change(slot, ls_wake_how::LS_W_FREEZE, [0; 2], false)
    }

    /// From Freeze to Track: the sockets have all that was forwarded and may be lacking, the one toward each side from
    /// `acked` on (as that side's peer acknowledges). The mode after it.
    pub fn take_over(&self, slot: &Slot, acked: [u32; 2]) -> io::Result<Mode> {
        self.change(slot, ls_wake_how::LS_W_TAKE_OVER, acked, false)
    }

    /// From Drain to Final, if nothing was given to a local socket since the pair was found drained at these cuts; the mode
    /// after it. `wakeable`: the sockets could go on any moment, so that a trap may wake them.
    pub fn finish(&self, slot: &Slot, cuts: [u32; 2], wakeable: bool) -> io::Result<Mode> {
        self.change(slot, ls_wake_how::LS_W_FINISH, cuts, wakeable)
    }

    fn change(&self, slot: &Slot, how: ls_wake_how, at: [u32; 2], wakeable: bool) -> io::Result<Mode> {
        let argument = ls_wake {
            slot: slot.index(),
            serial: slot.serial(),
            how: how.0,
            at,
            wakeable: wakeable.into(),
            mode: 0,
        };
        run::question(self.wake.as_fd(), &argument).map(|answer| Mode::from_raw(answer.mode))
    }

    /// Has a packet come in on an interface once more.
    pub fn inject(&self, ifindex: u32, packet: &[u8]) -> io::Result<()> {
        let context = Context {
            ifindex,
            ..Context::default()
        };
        match run::over_packet(self.inject.as_fd(), packet, context, 1)?.verdict {
            0 => Ok(()),
            _ => Err(io::Error::other("the packet could not be injected")),
        }
    }

    /// The packets that the kernel half has for user space. There is one reader for an instance.
    pub fn events(&self) -> io::Result<Events> {
        Events::open(&self.events)
    }

    /// Both directions of the flow in a slot, as they are now.
    pub fn directions(&self, slot: &Slot, legs: [Leg; 2]) -> [Direction; 2] {
        let (births, now) = (self.births(), time::now());
        Side::BOTH.map(|side| {
            let (leg, far) = (legs[side.index()], legs[side.other().index()]);
            Direction::new(side, leg, far, &slot.leg(side).rec, &births, now)
        })
    }

    /// What the kernel half has noted of a leg.
    pub fn leg(&self, slot: &Slot, side: Side) -> LegState {
        LegState::of(&slot.leg(side), &slot.leg(side.other()).rec)
    }

    /// Runs the program of a hook over a packet (BPF_PROG_RUN), for tests and the speed test.
    pub fn run(&self, hook: Hook, packet: &[u8], repeat: u32) -> io::Result<Ran> {
        self.run_in(hook, packet, Context::default(), repeat)
    }

    /// The same, for a packet that brings something along.
    pub fn run_in(&self, hook: Hook, packet: &[u8], context: Context, repeat: u32) -> io::Result<Ran> {
        let program = match hook {
            Hook::Ingress => &self.programs.ingress,
            Hook::Egress => &self.programs.egress,
            Hook::Xdp => {
                let program = self
                    .xdp
                    .program(&self.pins, XdpMode::Native)
                    .map_err(io::Error::other)?;
                return run::over_frame(program, packet, context.ifindex, repeat);
            }
        };
        run::over_packet(program.as_fd(), packet, context, repeat)
    }

    /// The addresses of a flow that a predecessor left in a slot.
    pub fn legs(&self, slot: &Slot) -> [Leg; 2] {
        slot.legs()
    }

    /// The direction whose segments arrive on this leg, if its flow lives.
    pub fn direction(&self, leg: Leg) -> Option<Direction> {
        let (flow, side) = self.flows.find(leg)?;
        Direction::of_flow(&flow, &self.births(), time::now())[side.index()]
    }

    /// Both directions of the flow that has a leg, at one moment.
    pub fn both_directions(&self, leg: Leg) -> [Option<Direction>; 2] {
        let found = self.flows.find(leg);
        found.map_or([None; 2], |(flow, _)| {
            Direction::of_flow(&flow, &self.births(), time::now())
        })
    }

    /// Every direction of every flow, in no order.
    pub fn scan(&self, mut each: impl FnMut(Direction)) -> io::Result<()> {
        self.scan_flows(|directions| directions.into_iter().flatten().for_each(&mut each))
    }

    /// The same, both directions of a flow at one moment.
    pub fn scan_flows(&self, mut each: impl FnMut([Option<Direction>; 2])) -> io::Result<()> {
        let (births, now) = (self.births().clone(), time::now());
        self.flows
            .scan(|flow| each(Direction::of_flow(flow, &births, now)))
    }

    /// Both directions of the flow with this serial number, at one moment. A walk over all records up to it, as there is no way
    /// from a number to its flow.
    pub fn find_flow(&self, serial: u32) -> io::Result<[Option<Direction>; 2]> {
        let found = self.flows.find_serial(serial)?;
        Ok(found.map_or([None; 2], |flow| {
            Direction::of_flow(&flow, &self.births(), time::now())
        }))
    }

    /// What became of the packets of flows, by the name of the verdict, since the programs were first loaded.
    pub fn verdicts(&self) -> BTreeMap<String, u64> {
        verdicts::read(&self.verdicts)
    }

    /// Takes the programs off every interface and removes the pins: whatever was spliced is reset by its next segment.
    pub fn remove(&self) {
        for ifindex in self.linked_interfaces() {
            self.detach(ifindex);
        }
        if let Ok(meta) = read_meta(&self.meta) {
            forwarding::restore(meta.lo_forwarding);
        }
        self.pins.remove_all();
    }
}
