//! The kernel half as this process holds it.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    abi::{Leg, Pod, Side, ls_leg, ls_record, ls_release},
    attach::Programs,
    error::Error,
    flows::{Direction, Flows},
    load::{LO_FORWARDING, META_KEY, init_meta, load, read_meta, refuse_foreign},
    peek::{self, Peek},
    pins::Pins,
    run::{self, Context, Ran},
    skel::types::{ls_placement, ls_seen, ls_trait},
    slots::{Mode, Slot, SlotTable},
    time, verdicts,
};

/// The loopback's interface index, in every namespace: where routes to our own addresses lead.
const LOOPBACK: u32 = 1;
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
}

/// What is known of one leg when its flow is registered (see `ls_leg` in bpf/abi.h for the meaning of each).
#[derive(Debug, Clone, Copy)]
pub struct LegStart {
    /// Addresses.
    pub leg: Leg,
    /// Sequence number of the peer + this = of the same byte toward the far end.
    pub seq_off: u32,
    /// TSval of the peer + this = toward the far end.
    pub tsval_off: u32,
    /// Scale of the peer's window field.
    pub wscale_in: u8,
    /// Scale that the far end applies.
    pub wscale_out: u8,
    /// The far end did not permit SACK.
    pub blank_sack: bool,
    /// The peer has sent its FIN, and it was passed on.
    pub ended: bool,
    /// What the socket knows.
    pub peek: Peek,
    /// Highest TSval sent to the far end.
    pub ts_high: u32,
}

/// The kernel half: programs loaded and attached, maps open. Everything outlives this value, pinned.
#[derive(Debug)]
pub struct Dataplane {
    pins: Pins,
    programs: Programs,
    peek: OwnedFd,
    release: OwnedFd,
    flows: Flows,
    verdicts: MapHandle,
    meta: MapHandle,
    slots: Arc<SlotTable>,
    max_flows: u32,
    serial: Mutex<(u32, u32)>,
    records: AtomicU32,
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
        let loaded = load(&pins, options)?;
        let slots = SlotTable::map(loaded.slots.as_fd(), loaded.slots.max_entries())
            .map_err(|e| Error::from_io("cannot map the slots", e))?;
        let meta = init_meta(&loaded.meta)?;
        let orphans = slots.take_over();
        let plane = Dataplane {
            pins,
            programs: loaded.programs,
            peek: loaded.peek,
            release: loaded.release,
            max_flows: loaded.flows.max_entries() / 2,
            flows: Flows { map: loaded.flows },
            verdicts: loaded.verdicts,
            meta: loaded.meta,
            slots,
            serial: Mutex::new((meta.next_serial, meta.next_serial)),
            records: AtomicU32::new(0),
        };
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
        let fail = |e| Error::from_io(format!("cannot set {LO_FORWARDING}"), e);
        if fs::read_to_string(LO_FORWARDING).map_err(fail)?.trim() != "1" {
            fs::write(LO_FORWARDING, "1").map_err(fail)?;
        }
        Ok(())
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

    /// Stops to watch it.
    pub fn detach(&self, ifindex: u32) {
        self.programs.detach(&self.pins, ifindex);
    }

    /// Interfaces that a predecessor watched.
    pub fn linked_interfaces(&self) -> Vec<u32> {
        self.pins.linked_interfaces()
    }

    /// What the socket of a leg knows of its connection.
    pub fn peek(&self, leg: Leg) -> io::Result<Peek> {
        peek::peek(self.peek.as_fd(), leg)
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
        serial
    }

    /// Whether a tuple carries a flow: its port must not be used for another connection.
    pub fn in_use(&self, leg: Leg) -> bool {
        self.flows.get(leg).is_some()
    }

    /// Installs both directions of a flow, or none; from then on its packets are noted (mode Track).
    pub fn register(
        &self,
        slot: &Slot,
        serial: u32,
        timestamps: bool,
        start: &[LegStart; 2],
    ) -> io::Result<()> {
        let now = time::now();
        let legs = Side::BOTH.map(|side| {
            let (x, o) = (&start[side.index()], &start[side.other().index()]);
            start_leg(side, x, o, slot.index(), serial, timestamps, now)
        });
        slot.fill(serial, legs, Mode::Track);
        self.flows.insert(start[0].leg, &legs[0].rec)?;
        self.flows
            .insert(start[1].leg, &legs[1].rec)
            .inspect_err(|_| self.flows.remove(start[0].leg))?;
        self.records.fetch_add(2, Ordering::Relaxed);
        Ok(())
    }

    /// Removes both directions.
    pub fn unregister(&self, legs: [Leg; 2]) {
        for leg in legs {
            self.flows.remove(leg);
        }
        self.records.fetch_sub(2, Ordering::Relaxed);
    }

    /// Removes the record of one direction: what is left of an interrupted installation.
    pub fn remove_record(&self, leg: Leg) {
        self.flows.remove(leg);
    }

    /// Sets the number of records after a scan: the kernel half removes some itself.
    pub fn set_record_count(&self, records: u32) {
        self.records.store(records, Ordering::Relaxed);
    }

    /// Moves a spliced flow from its slot into its records; `where` are the interfaces toward the far ends, hints. Call
    /// it again later, before the slot is dropped. `NotFound`: a new connection has taken the flow's place.
    pub fn release(&self, slot: &Slot, legs: [Leg; 2], toward: [u32; 2]) -> io::Result<()> {
        let argument = ls_release {
            key: legs.map(Leg::tuple),
            slot: slot.index(),
            r#where: toward,
        };
        match run::with_argument(self.release.as_fd(), argument.bytes())? {
            0 => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the flow's records are gone",
            )),
        }
    }

    /// Both directions of the flow in a slot, as they are now.
    pub fn directions(&self, slot: &Slot, legs: [Leg; 2]) -> [Direction; 2] {
        let now = time::now();
        Side::BOTH.map(|side| Direction::of_slot(legs[side.index()], &slot.leg(side), now))
    }

    /// What the kernel half has noted of a leg.
    pub fn leg(&self, slot: &Slot, side: Side) -> LegState {
        let (l, back) = (slot.leg(side), slot.leg(side.other()).rec);
        LegState {
            cut: l.cut,
            peer_ts: l.rx_ts,
            rx_end: l.rec.rx_end,
            rx_ack: l.rec.rx_ack,
            rx_edge: l.rec.rx_edge,
            tx_edge: l.tx_edge,
            loc_end: l.loc_end,
            loc_edge: l.loc_edge,
            tx_ack: l.tx_ack,
            ts_sent: back.ts_high,
            scale_out: back.wscale_out,
            seq_off: l.rec.seq_off,
            ack_off: l.rec.ack_off,
        }
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
        };
        run::over_packet(program.as_fd(), packet, context, repeat)
    }

    /// The addresses of a flow that a predecessor left in a slot.
    pub fn legs(&self, slot: &Slot) -> [Leg; 2] {
        slot.legs()
    }

    /// The direction whose segments arrive on this leg, if its flow lives.
    pub fn direction(&self, leg: Leg) -> Option<Direction> {
        self.flows.direction(leg, time::now())
    }

    /// Every direction of every flow, in no order.
    pub fn scan(&self, each: impl FnMut(Direction)) -> io::Result<()> {
        self.flows.scan(time::now(), each)
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
        if let Ok(meta) = read_meta(&self.meta)
            && meta.lo_forwarding == 0
        {
            let _ = fs::write(LO_FORWARDING, "0");
        }
        self.pins.remove_all();
    }
}

/// What the kernel half has noted of a leg: sequence numbers of the peer's stream (`rx_end`, `cut`, `tx_edge`) and of
/// the stream toward it (`rx_ack`, `rx_edge`, `loc_end`).
#[derive(Debug, Clone, Copy, Default)]
pub struct LegState {
    /// End of what was shown to the local socket.
    pub cut: u32,
    /// The peer's highest TSval.
    pub peer_ts: u32,
    /// End of what the peer sent.
    pub rx_end: u32,
    /// What the peer acknowledged.
    pub rx_ack: u32,
    /// Right edge of the window that the peer offers.
    pub rx_edge: u32,
    /// Right edge of the window that was offered to the peer.
    pub tx_edge: u32,
    /// End of what the local socket sent.
    pub loc_end: u32,
    /// Right edge of the window that the local socket itself offers to the peer.
    pub loc_edge: u32,
    /// Highest acknowledgement sent to the peer.
    pub tx_ack: u32,
    /// Highest TSval sent to the peer.
    pub ts_sent: u32,
    /// Scale of the window field in what is sent to the peer.
    pub scale_out: u8,
    /// Translation of the peer's sequence numbers.
    pub seq_off: u32,
    /// Translation of its acknowledgements.
    pub ack_off: u32,
}

fn start_leg(side: Side, x: &LegStart, o: &LegStart, slot: u32, serial: u32, ts: bool, now: u32) -> ls_leg {
    let far = o.leg.tuple();
    let mut traits = 0;
    for (on, flag) in [
        (side == Side::Server, ls_trait::LS_SIDE_SERVER),
        (ts, ls_trait::LS_TIMESTAMPS),
        (x.blank_sack, ls_trait::LS_BLANK_SACK),
        (o.peek.ifindex == LOOPBACK, ls_trait::LS_FAR_LOCAL),
    ] {
        traits |= if on { flag.0 as u8 } else { 0 };
    }
    let p = &x.peek;
    ls_leg {
        rec: ls_record {
            saddr: far.daddr,
            daddr: far.saddr,
            sport: far.dport,
            dport: far.sport,
            seq_off: x.seq_off,
            ack_off: o.seq_off.wrapping_neg(),
            tsval_off: x.tsval_off,
            tsecr_off: o.tsval_off.wrapping_neg(),
            wscale_in: x.wscale_in,
            wscale_out: x.wscale_out,
            traits,
            placement: ls_placement::LS_SLOTTED.0 as u8,
            r#where: slot,
            last_seen: now,
            born: now,
            serial,
            seen: if x.ended { ls_seen::LS_SEEN_FIN.0 as u8 } else { 0 },
            rx_end: p.rcv_nxt,
            rx_ack: p.snd_una,
            rx_edge: p.peer_edge,
            ts_high: x.ts_high,
            ..Default::default()
        },
        cut: p.rcv_nxt,
        rx_ts: p.ts_recent,
        loc_acked: p.snd_una,
        loc_end: p.snd_nxt,
        loc_edge: p.offered_edge,
        tx_ack: p.rcv_nxt,
        tx_edge: p.offered_edge,
        room: 0,
    }
}
