//! Which flows there are: their records are installed, kept for one leg, and removed.

use std::{io, sync::atomic::Ordering};

use super::Dataplane;
use crate::{
    abi::{Leg, Mapping, Side, ls_record},
    flows::is_alone,
    leg::{LegStart, start_leg},
    skel::types::{ls_placement, ls_trait},
    slot::{Mode, Slot},
    table::Entry,
    time,
};

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

impl Dataplane {
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
}
