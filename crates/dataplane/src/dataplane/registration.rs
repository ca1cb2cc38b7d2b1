//! Installs the records of flows, keeps those of single legs, and removes them.

use std::{io, time::Duration};

use longsplice_core::seq::Offset;

use super::Dataplane;
use crate::{
    abi::{Leg, Mapping, PerSide, ls_record},
    flows::is_alone,
    leg::{LegStart, start_leg},
    mode::Mode,
    skel::types::{ls_placement, ls_trait},
    slot::Slot,
    table::Entry,
    time,
};

/// State of a leg that belongs to no flow, but was spliced before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alone {
    /// Offset of its socket's numbers from those on the wire.
    pub mapping: Mapping,
    /// Highest TSval that was sent to its peer.
    pub sent: u32,
    /// Highest TSval of the peer.
    pub heard: u32,
}

impl Dataplane {
    /// Returns true if a tuple carries a flow, of this instance or of another one in this network namespace: its port
    /// must not be used for another connection.
    pub fn in_use(&self, leg: Leg) -> bool {
        self.flows.find(leg).is_some() || self.neighbours.have(leg)
    }

    /// Returns when [`Dataplane::ask_neighbours`] may find more than the last time; `None`: it would be of no use.
    pub fn may_ask_neighbours_in(&self) -> Option<Duration> {
        self.neighbours.may_know_more().then(|| self.neighbours.rest())
    }

    /// Looks for other instances that have pins now. It takes milliseconds if a new one is found.
    pub fn look_for_neighbours(&self) {
        self.neighbours.look(&self.pins, self.flows.map());
    }

    /// Looks for other instances, and copies the tables of those of another layout, which cannot be asked for each leg. It
    /// takes milliseconds.
    pub fn ask_neighbours(&self) {
        self.look_for_neighbours();
        self.neighbours.copy();
    }

    /// Installs both directions of a flow, or none; from then on its packets are noted (mode Track). The legs may be of
    /// different versions of IP.
    pub fn register(
        &self,
        slot: &Slot,
        serial: u32,
        timestamps: bool,
        start: &PerSide<LegStart>,
    ) -> io::Result<()> {
        let now = time::now();
        let legs = PerSide::from_fn(|side| {
            let (x, o) = (&start[side], &start[side.other()]);
            start_leg(side, x, o, slot.index(), serial, timestamps, now)
        });
        self.serials.lock().note(serial);
        slot.fill(serial, legs, Mode::Track);
        self.flows.add(PerSide::from_fn(|side| {
            let start = &start[side];
            Entry {
                leg: start.leg,
                rec: legs[side].rec,
                replace: start.alone,
            }
        }))?;
        self.count.add(2);
        Ok(())
    }

    /// Ends the flow of two legs, but not their connections: keeps the offset of each socket's numbers. Packets must find
    /// no other use for the slot than they did (mode Track, or Undrain with all settled). Even a socket without an offset
    /// may be behind the TSval that its peer was sent.
    pub fn part(&self, slot: &Slot, legs: PerSide<Leg>) {
        let records = PerSide::from_fn(|side| {
            let back = slot.leg(side.other()).rec;
            let timestamps = u32::from(back.traits) & ls_trait::LS_TIMESTAMPS.0 != 0;
            let mapping = slot.mapping(side);
            (!mapping.is_none() || timestamps).then(|| ls_record {
                placement: ls_placement::LS_ALONE.0 as u8,
                seq_off: mapping.seq.raw(),
                ack_off: mapping.ack.raw(),
                ts_high: back.ts_high,
                tsval_off: slot.leg(side).rx_ts,
                ..Default::default()
            })
        });
        match self.flows.part(slot.serial(), legs, records) {
            Ok(true) => self.count.remove(2),
            // A new connection has taken its place, or that of one leg.
            Ok(false) => drop(self.unregister(slot.serial(), legs)),
            Err(error) => {
                tracing::error!(%error, ?legs, "cannot keep the sequence numbers of two legs: they will stall");
            }
        }
    }

    /// Returns the legs that belong to no flow but whose numbers have an offset.
    pub fn legs_alone(&self) -> io::Result<Vec<Leg>> {
        let mut legs = Vec::new();
        self.flows.scan(|flow| {
            let alone = flow.from.iter().filter(|d| is_alone(&d.rec));
            legs.extend(alone.map(|d| Leg::from_tuple(&d.key)));
        })?;
        Ok(legs)
    }

    /// Returns the offset of a leg that belongs to no flow, and the highest TSvals of both ends.
    pub fn alone(&self, leg: Leg) -> Option<Alone> {
        let (flow, side) = self.flows.find(leg)?;
        let rec = flow.from[side].rec;
        is_alone(&rec).then_some(Alone {
            mapping: Mapping {
                seq: Offset::new(rec.seq_off),
                ack: Offset::new(rec.ack_off),
            },
            sent: rec.ts_high,
            heard: rec.tsval_off,
        })
    }

    /// Removes the present directions of the flow with this serial number, and returns their number. Another flow that
    /// has been given a tuple meanwhile is not touched.
    pub fn unregister(&self, serial: u32, legs: PerSide<Leg>) -> u32 {
        let is_its = |rec: &ls_record| rec.serial == serial && !is_alone(rec);
        let removed = legs.into_iter().filter(|&leg| self.flows.remove(leg, is_its));
        let removed = removed.count() as u32;
        self.count.remove(removed);
        removed
    }

    /// Removes the record of a leg that belongs to no flow. If it has become part of one meanwhile, it stays.
    pub fn remove_alone(&self, leg: Leg) {
        self.flows.remove(leg, is_alone);
    }
}
