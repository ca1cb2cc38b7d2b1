//! Holds rules for incoming TCP packets in the kernel half (bpf/rules.bpf.c). They end with this value, and with the
//! process: they are not pinned.

mod encode;
mod index;
mod packets;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use longsplice_core::rules::{MAX_ENTRIES, Program};
use parking_lot::Mutex;

pub use packets::RulePacket;

use crate::{
    abi::{Leg, Pod},
    attach::Attached,
    dataplane::Dataplane,
    error::Error,
    load::{hold, load_programs, open_programs},
    pins::Pins,
    retry_load::retry_load,
    ring::Ring,
    run::{self, Context, Ran},
    skel::{
        RulesSkelBuilder,
        rule_types::{ls_rule_count, ls_rule_verdict as V},
    },
};

/// Name of every verdict, as users see it (docs/rules.md).
const NAMES: &[(V, &str)] = &[
    (V::LS_R_UNMATCHED, "unmatched"),
    (V::LS_R_PASSED, "passed"),
    (V::LS_R_DROPPED, "dropped"),
    (V::LS_R_OPENED, "opened"),
    (V::LS_R_FOLLOWED, "followed"),
    (V::LS_R_FOREIGN, "foreign"),
    (V::LS_R_OWN_ADDRESS, "own_address"),
    (V::LS_R_LOOPED, "looped"),
    (V::LS_R_NO_LISTENER, "no_listener"),
    (V::LS_R_TRANSLATED, "translated"),
    (V::LS_R_UNTRANSLATABLE, "untranslatable"),
    (V::LS_R_ASKED, "asked"),
    (V::LS_R_COPIED, "copied"),
    (V::LS_R_COPY_LOST, "copy_lost"),
    (V::LS_R_DROP_ASK, "drop_ask"),
    (V::LS_R_ASK_LOST, "ask_lost"),
    (V::LS_R_DROP_CHECKSUM, "drop_checksum"),
    (V::LS_R_ODD, "odd"),
];
// Require a name for each verdict: without it, a drop would be invisible.
const _: () = assert!(NAMES.len() == V::LS_R_COUNT.0 as usize);

/// Values of the map of awaited sockets (bpf/intercept.h): the next segment is awaited, or all are.
const AWAIT_NEXT: u32 = 1;
const AWAIT_ALL: u32 = 2;

/// Returns the key of a socket in a map of sockets.
fn key_of(socket: impl AsFd) -> [u8; 4] {
    socket.as_fd().as_raw_fd().to_ne_bytes()
}

/// Bits of a packet's mark (`skb->mark`) that route it to this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Value of the bits.
    pub value: u32,
    /// Mask of the bits.
    pub mask: u32,
}

/// Counters of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Packets; a GRO super-packet is one.
    pub packets: u64,
    /// Bytes of those packets, from the IP header on.
    pub bytes: u64,
}

/// Says if a new set counts from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counters {
    /// The new set counts from zero.
    Fresh,
    /// The rules are those of the set before, and keep their counters.
    Kept,
}

/// Holds the program, its maps, and its attachments.
#[derive(Debug)]
pub struct Rules {
    program: OwnedFd,
    sets: MapHandle,
    counts: MapHandle,
    verdicts: MapHandle,
    packets: MapHandle,
    awaited_sockets: MapHandle,
    awaited_tuples: MapHandle,
    awaiting_any: MapHandle,
    pins: Pins,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Half of the counters that the current set uses: 0 or 1.
    generation: u32,
    attached: HashMap<u32, Attached>,
}

impl Rules {
    /// Loads the program, with no rules, attached nowhere.
    ///
    /// # Errors
    /// Returns [`Error::Privileges`], [`Error::Unsupported`] if the verifier refuses it, [`Error::Interrupted`],
    /// [`Error::System`].
    pub fn load(plane: &Dataplane, mark: Mark) -> Result<Rules, Error> {
        retry_load(|| Rules::load_once(plane, mark))
    }

    fn load_once(plane: &Dataplane, mark: Mark) -> Result<Rules, Error> {
        let bpf = |what: &'static str| move |e: libbpf_rs::Error| Error::from_bpf(what, &e);
        let mut object = MaybeUninit::uninit();
        let mut open = open_programs::<RulesSkelBuilder>(&mut object, "cannot open the program of rules")?;
        let constants = open.maps.rodata_data.as_mut();
        let constants = constants.ok_or_else(|| Error::System {
            what: "the program of rules has no constants".into(),
            source: io::ErrorKind::InvalidData.into(),
        })?;
        (constants.mark, constants.mark_mask) = (mark.value & mark.mask, mark.mask);
        let share = bpf("cannot share the maps");
        open.maps
            .verdicts
            .reuse_fd(plane.maps.verdicts.as_fd())
            .map_err(&share)?;
        open.maps
            .handshakes
            .reuse_fd(plane.maps.handshakes.as_fd())
            .map_err(&share)?;
        // Headers that we include declare them; the program does not use them.
        for unused in [
            &mut open.maps.flows,
            &mut open.maps.buckets,
            &mut open.maps.slots,
            &mut open.maps.meta,
            &mut open.maps.events,
            &mut open.maps.route_cache,
        ] {
            unused.set_autocreate(false).map_err(&share)?;
        }
        let skel = load_programs(open, "cannot load the program of rules")?;
        let map = |m: &libbpf_rs::MapMut<'_>| MapHandle::try_from(&**m).map_err(bpf("cannot hold a map"));
        Ok(Rules {
            program: hold(&skel.progs.rules)?,
            sets: map(&skel.maps.rule_sets)?,
            counts: map(&skel.maps.rule_counts)?,
            verdicts: map(&skel.maps.rule_verdicts)?,
            packets: map(&skel.maps.rule_packets)?,
            awaited_sockets: map(&skel.maps.awaited_sockets)?,
            awaited_tuples: map(&skel.maps.awaited_tuples)?,
            awaiting_any: map(&skel.maps.awaiting_any)?,
            pins: plane.pins.clone(),
            state: Mutex::default(),
        })
    }

    /// Replaces the set atomically: a packet sees the old one or the new one. `ifindex` looks up interfaces by name; an
    /// entry whose interface is missing matches no packet. Returns when no packet sees the old set any more.
    ///
    /// # Errors
    /// Returns the call that failed; the old set is still in force.
    pub fn replace(
        &self,
        program: &Program,
        counters: Counters,
        ifindex: impl Fn(&str) -> Option<u32>,
    ) -> Result<(), Error> {
        let bpf = |what: &'static str| move |e: libbpf_rs::Error| Error::from_bpf(what, &e);
        let mut state = self.state.lock();
        let generation = match counters {
            Counters::Fresh => state.generation ^ 1,
            Counters::Kept => state.generation,
        };
        if counters == Counters::Fresh {
            self.clear_counts(generation)?;
        }
        let value = encode::set(program, generation, ifindex);
        let set = new_set(value.len()).map_err(bpf("cannot create a set of rules"))?;
        set.update(&KEY, &value, MapFlags::ANY)
            .map_err(bpf("cannot write the rules"))?;
        // The kernel waits here for every program that may look at the old set.
        self.sets
            .update(&KEY, &set.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("cannot put the rules in force"))?;
        state.generation = generation;
        Ok(())
    }

    /// Returns the counters of the first `rules` rules of the set.
    pub fn counts(&self, rules: usize) -> Vec<Count> {
        let half = self.state.lock().generation;
        (0..rules.min(MAX_ENTRIES)).map(|n| self.count(half, n)).collect()
    }

    fn count(&self, half: u32, rule: usize) -> Count {
        let cpus = self.counts.lookup_percpu(&place(half, rule), MapFlags::ANY);
        let mut sum = Count::default();
        for cpu in cpus.ok().flatten().unwrap_or_default() {
            let one = ls_rule_count::from_bytes(&cpu).unwrap_or_default();
            sum.packets += one.packets;
            sum.bytes += one.bytes;
        }
        sum
    }

    fn clear_counts(&self, half: u32) -> Result<(), Error> {
        let cpus =
            libbpf_rs::num_possible_cpus().map_err(|e| Error::from_bpf("cannot count the CPUs", &e))?;
        let zeros = vec![ls_rule_count::default().bytes().to_vec(); cpus];
        for rule in 0..MAX_ENTRIES {
            self.counts
                .update_percpu(&place(half, rule), &zeros, MapFlags::ANY)
                .map_err(|e| Error::from_bpf("cannot clear the counters of rules", &e))?;
        }
        Ok(())
    }

    /// Returns the counts of TCP packets, by the verdict's name, since the program was loaded.
    pub fn verdicts(&self) -> BTreeMap<String, u64> {
        crate::verdicts::sums(
            &self.verdicts,
            NAMES.iter().map(|(verdict, name)| (verdict.0, *name)),
        )
    }

    /// Returns the reader of packets that rules send to a program. There is one reader.
    ///
    /// # Errors
    /// Returns an error if the ring cannot be mapped.
    pub fn packets(&self) -> io::Result<Ring<RulePacket>> {
        Ring::open(&self.packets, RulePacket::from_sample)
    }

    /// Puts a copy of the next segment that reaches this socket by a rule into the ring ([`Rules::packets`]).
    ///
    /// # Errors
    /// Returns an error if the kernel has no memory for it.
    pub fn await_segment(&self, socket: impl AsFd) -> Result<(), Error> {
        self.set_awaited(socket, AWAIT_NEXT)
    }

    /// Puts copies of all segments that reach this socket by a rule into the ring, until [`Rules::forget_segments`].
    ///
    /// # Errors
    /// Returns an error if the kernel has no memory for it.
    pub fn await_segments(&self, socket: impl AsFd) -> Result<(), Error> {
        self.set_awaited(socket, AWAIT_ALL)
    }

    /// Awaits no segment of this socket any more.
    pub fn forget_segments(&self, socket: impl AsFd) {
        // There is no mark if the awaited segment has come.
        let _ = self.awaited_sockets.delete(&key_of(socket));
    }

    fn set_awaited(&self, socket: impl AsFd, awaits: u32) -> Result<(), Error> {
        self.awaited_sockets
            .update(&key_of(socket), &awaits.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::from_bpf("cannot await the segment of a socket", &e))
    }

    /// Puts a copy of the next acknowledgement on the way from `leg.peer` to `leg.local` into the ring, if it meets a rule
    /// that delivers or follows and there is no socket for it. At most 4,096 connections are awaited at a time.
    ///
    /// # Errors
    /// Returns an error if there are too many.
    pub fn await_segment_of(&self, leg: Leg) -> Result<(), Error> {
        self.awaited_tuples
            .update(leg.tuple().bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::from_bpf("cannot await a segment of a connection", &e))
    }

    /// Awaits no segment of this connection any more.
    pub fn forget_segment_of(&self, leg: Leg) {
        // There is none if it has come.
        let _ = self.awaited_tuples.delete(leg.tuple().bytes());
    }

    /// Sets whether the kernel half looks for connections that are awaited.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses that.
    pub fn set_awaiting(&self, awaiting: bool) -> Result<(), Error> {
        self.awaiting_any
            .update(&KEY, &u32::from(awaiting).to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::from_bpf("cannot await connections", &e))
    }

    /// Attaches the program to these interfaces, and detaches it from others. Returns those that failed, with the reason.
    /// Passes over interfaces that are gone: they need no rule.
    pub fn watch(&self, interfaces: &BTreeSet<u32>) -> Vec<(u32, Error)> {
        let mut state = self.state.lock();
        state.attached.retain(|ifindex, _| interfaces.contains(ifindex));
        let mut failed = Vec::new();
        for ifindex in interfaces {
            if !state.attached.contains_key(ifindex) {
                match Attached::last(self.program.as_fd(), *ifindex, &self.pins) {
                    Ok(attached) => drop(state.attached.insert(*ifindex, attached)),
                    Err(error) if error.is_of_gone_interface() => {}
                    Err(error) => failed.push((*ifindex, error)),
                }
            }
        }
        failed
    }

    /// Attaches the program again to interfaces that another tool has taken it off. Returns those, with the reason that it
    /// could not be: such an interface is no longer watched.
    pub fn put_back(&self) -> Vec<(u32, Result<(), Error>)> {
        let mut state = self.state.lock();
        let is_gone = |attached: &mut Attached| !attached.is_there().unwrap_or(true);
        // End the old ones first: the filter that one removes at its end has the name of the new one.
        let gone = state.attached.extract_if(|_, attached| is_gone(attached));
        let gone: Vec<u32> = gone.map(|(ifindex, _)| ifindex).collect();
        let mut put = |ifindex| {
            let attached = Attached::last(self.program.as_fd(), ifindex, &self.pins)?;
            state.attached.insert(ifindex, attached);
            Ok(())
        };
        gone.into_iter().map(|ifindex| (ifindex, put(ifindex))).collect()
    }

    /// Returns the interfaces whose packets are looked at.
    pub fn watched(&self) -> BTreeSet<u32> {
        self.state.lock().attached.keys().copied().collect()
    }

    /// Runs the program over a packet (BPF_PROG_RUN), for tests and the speed test.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses such a packet.
    pub fn run(&self, packet: &[u8], context: Context, repeat: u32) -> io::Result<Ran> {
        run::over_packet(self.program.as_fd(), packet, context, repeat)
    }
}

/// Key of the only element.
const KEY: [u8; 4] = [0; 4];

/// Returns the index of a rule's counter.
fn place(half: u32, rule: usize) -> [u8; 4] {
    (half * MAX_ENTRIES as u32 + rule as u32).to_ne_bytes()
}

fn new_set(size: usize) -> libbpf_rs::Result<MapHandle> {
    // SAFETY: integers, for which zero is a value; libbpf requires zeros in unused fields.
    let mut opts: libbpf_sys::bpf_map_create_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as libbpf_sys::size_t;
    MapHandle::create(MapType::Array, Some("rule_set"), 4, size as u32, 1, &opts)
}
