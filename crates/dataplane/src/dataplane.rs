//! The kernel half as this process holds it.

mod moves;
mod registration;

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

pub use registration::Alone;

use crate::{
    abi::{Leg, Pod, Side},
    attach::Programs,
    births::Births,
    error::Error,
    events::Events,
    flows::Direction,
    forwarding,
    leg::LegState,
    load::{META_KEY, init_meta, load, read_meta, refuse_foreign},
    peek::{self, Peek},
    pins::Pins,
    run::{self, Context, Ran},
    slot::Slot,
    slots::SlotTable,
    table::Table,
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
