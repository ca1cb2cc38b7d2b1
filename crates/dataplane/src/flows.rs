//! The records of spliced flows: both directions of each, by what is seen on ingress.

use std::io;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    abi::{Leg, Pod, Side, ls_leg, ls_record, ls_tuple, socket_addr},
    births::Births,
    skel::types::{ls_placement, ls_seen, ls_trait},
    time::TICK,
};

/// How many records a system call brings during a scan.
const BATCH: u32 = 1024;

/// One direction as its record tells.
#[derive(Debug, Clone, Copy)]
pub struct Direction {
    /// The leg that its segments arrive on.
    pub leg: Leg,
    /// The leg that they leave on.
    pub far: Leg,
    /// Whose segments they are.
    pub side: Side,
    /// The flow's serial number, the same in both directions.
    pub serial: u32,
    /// The slot that has the truth, while the flow has one.
    pub slot: Option<u32>,
    /// A FIN of this side's peer passed.
    pub fin: bool,
    /// A RST of this side's peer passed, in place.
    pub reset: bool,
    /// End of the highest payload that passed.
    pub end: u32,
    /// The end of the stream, behind its FIN if that passed, as the far end acknowledges it.
    pub end_at_far: u32,
    /// Highest acknowledgement of this side's peer.
    pub ack: u32,
    /// Payload bytes translated.
    pub bytes: u64,
    /// What is added to sequence numbers, modulo 2^32.
    pub seq_off: u32,
    /// Whether the translation changes nothing but the time to live (papers' section III-F).
    pub identity: bool,
    /// How long the flow has had a record, as far as this process knows: at least so long, where a predecessor made it.
    pub age: std::time::Duration,
    /// How long nothing has passed in this direction; a tick (about a second) exact.
    pub idle: std::time::Duration,
}

impl Direction {
    fn new(key: &ls_tuple, r: &ls_record, births: &Births, now: u32) -> Direction {
        let since = |tick: u32| TICK * now.saturating_sub(tick);
        Direction {
            leg: Leg::from_tuple(key),
            far: Leg {
                peer: socket_addr(r.daddr, r.dport),
                local: socket_addr(r.saddr, r.sport),
            },
            side: if has(r.traits, ls_trait::LS_SIDE_SERVER.0) {
                Side::Server
            } else {
                Side::Client
            },
            serial: r.serial,
            slot: (placement(r) == ls_placement::LS_SLOTTED).then_some(r.r#where),
            fin: has(r.seen, ls_seen::LS_SEEN_FIN.0),
            reset: has(r.seen, ls_seen::LS_SEEN_RST.0),
            end: r.rx_end,
            end_at_far: (r.rx_end)
                .wrapping_add(u32::from(has(r.seen, ls_seen::LS_SEEN_FIN.0)))
                .wrapping_add(r.seq_off),
            ack: r.rx_ack,
            bytes: u64::from(r.bytes_high) << 32 | u64::from(r.bytes_low),
            seq_off: r.seq_off,
            identity: is_identity(key, r),
            age: since(births.of(r.serial)),
            idle: since(r.last_seen),
        }
    }

    pub(crate) fn of_slot(leg: Leg, l: &ls_leg, births: &Births, now: u32) -> Direction {
        Direction::new(&leg.tuple(), &l.rec, births, now)
    }
}

/// Whether what goes out is what came in. An offset of timestamps means nothing where there are none.
pub(crate) fn is_identity(key: &ls_tuple, r: &ls_record) -> bool {
    let addresses = (r.saddr, r.sport, r.daddr, r.dport) == (key.saddr, key.sport, key.daddr, key.dport);
    let clocks = !has(r.traits, ls_trait::LS_TIMESTAMPS.0) || r.tsval_off | r.tsecr_off == 0;
    let windows = r.scales & 15 == r.scales >> 4;
    let sack = !has(r.traits, ls_trait::LS_BLANK_SACK.0);
    addresses && clocks && windows && sack && r.seq_off | r.ack_off == 0
}

/// Where the truth about a direction is.
pub(crate) fn placement(rec: &ls_record) -> ls_placement {
    ls_placement(u32::from(rec.placement) & !ls_placement::LS_ARMED.0)
}

fn is_alone(rec: &ls_record) -> bool {
    placement(rec) == ls_placement::LS_ALONE
}

fn has(flags: u8, flag: u32) -> bool {
    u32::from(flags) & flag != 0
}

/// The map of records.
#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) map: MapHandle,
}

impl Flows {
    /// Adds a record; `AlreadyExists` if the tuple has one, `OutOfMemory`-like errors if the table is full.
    pub(crate) fn insert(&self, leg: Leg, rec: &ls_record) -> io::Result<()> {
        self.map
            .update(leg.tuple().bytes(), rec.bytes(), MapFlags::NO_EXIST)
            .map_err(to_io)
    }

    /// Puts a record in the place of another one, or adds it.
    pub(crate) fn replace(&self, leg: Leg, rec: &ls_record) -> io::Result<()> {
        self.map
            .update(leg.tuple().bytes(), rec.bytes(), MapFlags::ANY)
            .map_err(to_io)
    }

    /// Removes a record; that it is gone already is no error.
    pub(crate) fn remove(&self, leg: Leg) {
        if let Err(e) = self.map.delete(leg.tuple().bytes())
            && e.kind() != libbpf_rs::ErrorKind::NotFound
        {
            tracing::warn!(?leg, error = %e, "cannot remove a record");
        }
    }

    /// The record of a tuple.
    pub(crate) fn get(&self, leg: Leg) -> Option<ls_record> {
        let mut value = [0; size_of::<ls_record>()];
        match self
            .map
            .lookup_into(leg.tuple().bytes(), &mut value, MapFlags::ANY)
        {
            Ok(true) => ls_record::from_bytes(&value),
            _ => None,
        }
    }

    /// The record of a tuple, as a direction.
    pub(crate) fn direction(&self, leg: Leg, births: &Births, now: u32) -> Option<Direction> {
        self.get(leg)
            .filter(|rec| !is_alone(rec))
            .map(|rec| Direction::new(&leg.tuple(), &rec, births, now))
    }

    /// Every record of a flow, in no order; one that is added or removed meanwhile may be missed or seen twice.
    pub(crate) fn scan(&self, births: &Births, now: u32, mut each: impl FnMut(Direction)) -> io::Result<()> {
        let batches = self
            .map
            .lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)
            .map_err(to_io)?;
        for (key, value) in batches {
            if let (Some(key), Some(rec)) = (ls_tuple::from_bytes(&key), ls_record::from_bytes(&value))
                && !is_alone(&rec)
            {
                each(Direction::new(&key, &rec, births, now));
            }
        }
        Ok(())
    }

    /// Every leg that belongs to no flow but has a mapping.
    pub(crate) fn alone(&self) -> io::Result<Vec<Leg>> {
        let batches = self
            .map
            .lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)
            .map_err(to_io)?;
        Ok(batches
            .filter(|(_, value)| ls_record::from_bytes(value).is_some_and(|rec| is_alone(&rec)))
            .filter_map(|(key, _)| ls_tuple::from_bytes(&key))
            .map(|key| Leg::from_tuple(&key))
            .collect())
    }
}

/// libbpf-rs keeps the cause inside; what callers match on is the kind.
pub(crate) fn to_io(e: libbpf_rs::Error) -> io::Error {
    let kind = match e.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
        libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{e:#}"))
}
