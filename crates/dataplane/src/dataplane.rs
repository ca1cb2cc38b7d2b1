//! Holds the kernel half in this process.

mod count;
mod moves;
mod numbers;
mod predecessors;
mod registration;
mod rulings;

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use libbpf_rs::{MapCore, MapFlags};
use parking_lot::Mutex;

use count::Count;
pub use predecessors::Adopted;
pub use registration::Alone;
pub use rulings::{RuledCounts, Ruling};

use crate::{
    abi::{Leg, PerSide, Side},
    attach::{self, Programs},
    bare::{Bare, Framing},
    error::Error,
    events::Event,
    flows::Direction,
    forwarding,
    grace::Grace,
    hook::Hook,
    inspect::{self, Inspection},
    leg::LegState,
    load::{Maps, Moves, find_predecessor, init_meta, load, metas_of_namespace, read_meta},
    neighbours::Neighbours,
    options::Options,
    order::Foreign,
    pins::{Pins, Undo},
    ring::Ring,
    run::{self, Context, Ran},
    serials::Serials,
    slot::Slot,
    slots::SlotTable,
    start_times::StartTimes,
    table::Table,
    time, verdicts,
    withhold::{self, Withheld},
    xdp::{Xdp, XdpError, XdpMode},
};

/// Longest time that a start waits until entries that its predecessor freed last can be used.
const GRACE_AT_START: Duration = Duration::from_secs(1);

/// Number of counts that one call reads (bpf/disorder.h has so many).
const DISORDERS_AT_ONCE: u32 = 4_096;

/// Holds the kernel half: programs loaded and attached, maps open. Everything is pinned, and outlives this value.
#[derive(Debug)]
pub struct Dataplane {
    pub(crate) pins: Pins,
    programs: Programs,
    bare: Bare,
    inspect: OwnedFd,
    moves: Moves,
    inject: OwnedFd,
    pub(crate) maps: Maps,
    flows: Table,
    neighbours: Neighbours,
    slots: Arc<SlotTable>,
    max_flows: u32,
    serials: Mutex<Serials>,
    start_times: Mutex<StartTimes>,
    count: Count,
    xdp: Xdp,
}

impl Dataplane {
    /// Loads the programs, with a predecessor's maps if there are any. Returns the slots in use, too: their flows had
    /// sockets of a process that is gone.
    ///
    /// A generation that another process still serves, or of another version, is left as it is: see
    /// [`Dataplane::adopt_predecessors`].
    ///
    /// # Errors
    /// Returns [`Error::Namespace`] if the pins are not ours to take; nothing is changed then.
    pub fn open(options: &Options) -> Result<(Dataplane, Vec<Slot>), Error> {
        // Let libbpf write no lines that the log leaves out: they are thousands.
        let least = match tracing::enabled!(tracing::Level::DEBUG) {
            true => libbpf_rs::PrintLevel::Debug,
            false => libbpf_rs::PrintLevel::Warn,
        };
        libbpf_rs::set_print(Some((least, |level, message| {
            tracing::debug!(?level, "{}", message.trim_end());
        })));
        let predecessor = find_predecessor(options)?;
        let adopted = predecessor.is_some();
        let pins = match predecessor {
            Some(pins) => pins,
            None => Pins::make(&options.instance)?,
        };
        let mut undo = Undo((!adopted).then(|| pins.clone()));
        let loaded = load(&pins, options, adopted)?;
        let grace = Arc::new(Grace::of_kernel()?);
        let slots = &loaded.maps.slots;
        let slots = SlotTable::map(slots.as_fd(), slots.max_entries(), grace.clone())
            .map_err(|e| Error::from_io("cannot map the slots", e))?;
        let meta = init_meta(&loaded.maps.meta, &pins, options, loaded.hash_keys)?;
        let max_slots = loaded.maps.slots.max_entries();
        if (meta.max_flows, max_slots) != (options.max_flows, options.max_slots) {
            tracing::warn!(
                max_flows = meta.max_flows,
                max_dormant = max_slots,
                configured_max_flows = options.max_flows,
                configured_max_dormant = options.max_slots,
                "connections that a predecessor has spliced keep its table, whose size is in force instead of the configured one: \
                 `longsplice run --replace` makes a table of that size"
            );
        }
        let pins = match adopted {
            true => pins,
            false => pins.publish()?,
        };
        undo.0 = (!adopted).then(|| pins.clone());
        loaded.hold_maps(&pins)?;
        let orphans = Slot::take_over(&slots, adopted);
        let plane = Dataplane {
            pins,
            programs: loaded.programs,
            bare: Bare::default(),
            inspect: loaded.inspect,
            moves: loaded.moves,
            inject: loaded.inject,
            maps: loaded.maps,
            max_flows: meta.max_flows,
            flows: Table::new(loaded.table_maps, loaded.table, adopted, grace.clone())
                .map_err(|e| Error::from_io("cannot read the flows", e))?,
            neighbours: Neighbours::default(),
            slots,
            serials: Mutex::new(Serials::new(meta.next_serial)),
            start_times: Mutex::new(StartTimes::new(time::now())),
            count: Count::default(),
            xdp: Xdp::default(),
        };
        plane.programs.detach_rules(&plane.pins);
        plane.keep_lo_forwarding()?;
        // Count the flows: each walk does.
        plane
            .scan(|_| ())
            .map_err(|e| Error::from_io("cannot read the flows", e))?;
        plane.look_for_neighbours();
        if adopted && grace.wait(GRACE_AT_START).is_err() {
            tracing::warn!("what a predecessor freed last cannot be used yet: no grace period has passed");
        }
        undo.0 = None;
        Ok((plane, orphans))
    }

    /// Switches forwarding on for the loopback, which route look-ups of the kernel half need; no other interface changes.
    pub fn keep_lo_forwarding(&self) -> Result<(), Error> {
        forwarding::keep()
    }

    /// Puts back removed pins, and returns their number. Programs and maps work meanwhile, as this process holds them;
    /// without pins they would end with it.
    ///
    /// # Errors
    /// Returns an error if they cannot be put back now.
    pub fn mend_pins(&self) -> Result<usize, Error> {
        self.pins.mend()
    }

    /// Lets another process serve these pins. Keep to reading from now on.
    pub fn leave(&self) {
        self.pins.unlock();
    }

    /// Returns the maximum number of flows.
    pub fn max_flows(&self) -> u32 {
        self.max_flows
    }

    /// Returns the number of flows that have records now.
    pub fn flow_count(&self) -> u32 {
        self.count.get() / 2
    }

    /// Attaches the programs to an interface; again is no error. The first call for a device without Ethernet headers loads
    /// those for such devices.
    pub fn attach(&self, ifindex: u32, framing: Framing) -> Result<(), Error> {
        let programs = match framing {
            Framing::Ethernet => &self.programs,
            Framing::Bare => self.bare.programs(&self.pins, &self.maps.handshakes)?,
        };
        programs.attach(&self.pins, ifindex)
    }

    /// Returns true if the programs still stand on a watched interface. Another tool may take them off: [`Dataplane::attach`]
    /// puts them back.
    ///
    /// # Errors
    /// Returns those of the system: the interface may be gone.
    pub fn is_attached(&self, ifindex: u32) -> io::Result<bool> {
        attach::are_attached(&self.pins, ifindex)
    }

    /// Returns the programs of others that stand before ours on a watched interface.
    pub fn programs_before(&self, ifindex: u32) -> io::Result<Vec<Foreign>> {
        let ethernet = self.programs.before(ifindex)?;
        match self.bare.loaded().filter(|_| ethernet.is_empty()) {
            Some(bare) => bare.before(ifindex),
            None => Ok(ethernet),
        }
    }

    /// Detaches the programs from an interface, XDP, too.
    pub fn detach(&self, ifindex: u32) {
        self.detach_xdp(ifindex);
        self.programs.detach(&self.pins, ifindex);
    }

    /// Attaches the XDP program to a watched interface, or replaces a predecessor's; again is no error. The first call
    /// loads it.
    ///
    /// # Errors
    /// Returns an error if it cannot. The interface is as it was, and its segments are translated at tc.
    pub fn attach_xdp(&self, ifindex: u32, mode: XdpMode) -> Result<(), XdpError> {
        self.xdp.attach(&self.pins, ifindex, mode)
    }

    /// Detaches the XDP program, even a predecessor's.
    pub fn detach_xdp(&self, ifindex: u32) {
        self.xdp.detach(&self.pins, ifindex);
    }

    /// Returns true if frames that XDP redirects may leave by an interface now, by a new check: a driver may drop them
    /// without a report. Otherwise segments to that interface are translated at tc.
    pub fn open_exit(&self, ifindex: u32, mode: XdpMode) -> Result<bool, XdpError> {
        self.xdp.open_exit(&self.pins, ifindex, mode)
    }

    /// Returns the interfaces that a predecessor watched.
    pub fn linked_interfaces(&self) -> Vec<u32> {
        self.pins.interfaces("ingress")
    }

    /// Returns the state of the connection in the socket of a leg.
    pub fn inspect(&self, leg: Leg) -> io::Result<Inspection> {
        inspect::inspect(self.inspect.as_fd(), leg)
    }

    /// Returns the states of two legs' connections at once.
    pub fn inspect_both(&self, legs: PerSide<Leg>) -> io::Result<PerSide<Inspection>> {
        inspect::both(self.inspect.as_fd(), legs)
    }

    /// Takes options out of the SYNs of a socket: set it before `connect`, or on a listening socket, where it counts from
    /// the next SYN on. It ends with the socket. A SYN of any other socket is not changed.
    ///
    /// # Errors
    /// Returns those of the system; no option is withheld then.
    pub fn withhold(&self, socket: impl AsFd, withheld: Withheld) -> io::Result<()> {
        withhold::set(&self.maps.handshakes, socket.as_fd(), withheld)
    }

    /// Returns the MSS that the peer of a connected socket offered, if [`Dataplane::withhold`] was called for that socket
    /// before it connected. The socket itself knows no more than its own limit of the MSS.
    pub fn peer_mss(&self, socket: impl AsFd) -> Option<u32> {
        withhold::peer_mss(&self.maps.handshakes, socket.as_fd())
    }

    /// Returns a free slot for a flow that comes back, or `None`.
    pub fn take_slot(&self) -> Option<Slot> {
        Slot::take(&self.slots, 0)
    }

    /// Returns a free slot for a relayed flow, or `None`. An eighth of the slots, and at least one if there are two, is
    /// kept for flows that come back.
    pub fn take_spare_slot(&self) -> Option<Slot> {
        Slot::take(&self.slots, self.slots.reserve())
    }

    /// Returns the number of slots. Pins that were found keep theirs, whatever the options say.
    pub fn max_slots(&self) -> u32 {
        self.slots.len()
    }

    /// Returns the number of free slots.
    pub fn free_slots(&self) -> u32 {
        self.slots.free()
    }

    /// Returns true if hardly any slot is free: less than half of those that are kept for flows that come back.
    pub fn is_short_of_slots(&self) -> bool {
        self.free_slots() <= self.slots.reserve() / 2
    }

    /// Injects a packet at the ingress of an interface.
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

    /// Returns the reader of packets for user space. There is one reader for an instance.
    pub fn events(&self) -> io::Result<Ring<Event>> {
        Ring::open(&self.maps.events, Event::from_sample)
    }

    /// Returns the present state of both directions of the flow in a slot.
    pub fn directions(&self, slot: &Slot, legs: PerSide<Leg>) -> PerSide<Direction> {
        let (start_times, now) = (self.start_times.lock(), time::now());
        PerSide::from_fn(|side| {
            let (leg, far) = (legs[side], legs[side.other()]);
            Direction::new(side, leg, far, &slot.leg(side).rec, &start_times, now)
        })
    }

    /// Returns the kernel half's state of a leg.
    pub fn leg(&self, slot: &Slot, side: Side) -> LegState {
        LegState::of(&slot.leg(side), &slot.leg(side.other()).rec)
    }

    /// Runs the program of a hook over a packet (BPF_PROG_RUN), for tests and the speed test.
    pub fn run(&self, hook: Hook, packet: &[u8], repeat: u32) -> io::Result<Ran> {
        self.run_in(hook, packet, Context::default(), repeat)
    }

    /// Runs the program of a hook over a packet with a context.
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

    /// Returns the addresses of a flow that a predecessor left in a slot.
    pub fn legs(&self, slot: &Slot) -> PerSide<Leg> {
        slot.legs()
    }

    /// Returns the direction whose segments arrive on this leg, if its flow lives.
    pub fn direction(&self, leg: Leg) -> Option<Direction> {
        let (flow, side) = self.flows.find(leg)?;
        Direction::of_flow(&flow, &self.start_times.lock(), time::now())[side]
    }

    /// Returns both directions of the flow that has a leg, at one moment.
    pub fn both_directions(&self, leg: Leg) -> PerSide<Option<Direction>> {
        let found = self.flows.find(leg);
        found.map_or(PerSide::both(None), |(flow, _)| {
            Direction::of_flow(&flow, &self.start_times.lock(), time::now())
        })
    }

    /// Calls `each` for every direction of every flow, in no order.
    pub fn scan(&self, mut each: impl FnMut(Direction)) -> io::Result<()> {
        self.scan_flows(|directions| directions.into_iter().flatten().for_each(&mut each))
    }

    /// Calls `each` for every flow, with both directions at one moment.
    pub fn scan_flows(&self, mut each: impl FnMut(PerSide<Option<Direction>>)) -> io::Result<()> {
        let (start_times, now) = (self.start_times.lock().clone(), time::now());
        let look = {
            let mut serials = self.serials.lock();
            serials.wants_look().then(|| serials.begin_look())
        };
        let (walk, mut found) = (self.count.walk(), 0);
        self.flows.scan(|flow| {
            let directions = Direction::of_flow(flow, &start_times, now);
            found += directions.iter().flatten().count() as u32;
            if look.is_some() {
                let mut serials = self.serials.lock();
                directions.iter().flatten().for_each(|d| serials.note(d.serial));
            }
            each(directions);
        })?;
        self.count.found(walk, found);
        if let Some(to) = look {
            self.serials.lock().end_look(to);
        }
        Ok(())
    }

    /// Returns the last state of the flows that scans have found replaced by a SYN since the last call, some thousands at
    /// most.
    pub fn take_replaced(&self) -> Vec<PerSide<Direction>> {
        let (start_times, now) = (self.start_times.lock(), time::now());
        let replaced = self.flows.take_replaced();
        let last = |flow| Direction::of_element(flow, &start_times, now);
        replaced.iter().map(last).collect()
    }

    /// Returns both directions of the flow with this serial number, at one moment. Walks over all records up to it: there
    /// is no index by number.
    pub fn find_flow(&self, serial: u32) -> io::Result<PerSide<Option<Direction>>> {
        let found = self.flows.find_serial(serial)?;
        Ok(found.map_or(PerSide::both(None), |flow| {
            Direction::of_flow(&flow, &self.start_times.lock(), time::now())
        }))
    }

    /// Returns the counts of packets of flows, by the name of the verdict, since the programs were first loaded.
    pub fn verdicts(&self) -> BTreeMap<String, u64> {
        verdicts::read(&self.maps.verdicts)
    }

    /// Returns the counts of segments out of order, by serial and side, of detached flows whose translation changes nothing,
    /// as far as they had some lately.
    ///
    /// # Errors
    /// Returns an error if the kernel does not let the counts be read.
    pub fn disorders(&self) -> Result<Vec<(u32, Side, u32)>, Error> {
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            u32::from_ne_bytes(word.unwrap_or_default())
        };
        let all = self
            .maps
            .disorders
            .lookup_batch(DISORDERS_AT_ONCE, MapFlags::ANY, MapFlags::ANY)
            .map_err(|e| Error::from_bpf("cannot read the counts of segments out of order", &e))?;
        Ok(all
            .map(|(key, count)| {
                let side = Side::BOTH[(word(&key, 4) & 1) as usize];
                (word(&key, 0), side, word(&count, 0))
            })
            .collect())
    }

    /// Detaches the programs from every interface and removes the pins: each spliced flow is reset by its next segment.
    pub fn remove(&self) {
        for ifindex in self.linked_interfaces() {
            self.detach(ifindex);
        }
        // Other generations of this network namespace need it, too.
        if let Ok(meta) = read_meta(&self.maps.meta)
            && metas_of_namespace(&self.pins, meta.netns).is_empty()
        {
            forwarding::restore(meta.lo_forwarding);
        }
        self.pins.remove_all();
    }
}
