//! Keeps what rules say of spliced flows where the kernel half finds it (docs/decisions/0040).

use std::{io, os::fd::AsFd};

use libbpf_rs::{MapCore, MapFlags};
use longsplice_core::limit::{Rate, RateLimit};

use super::Dataplane;
use crate::{
    abi::{Leg, PerSide, Pod, ls_mark, ls_ruled, ls_ruling},
    flows::to_io,
    run, time,
};

/// Verdict of rules on a spliced flow. It holds while the flow is dormant or detached, without a process, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ruling {
    /// True if all segments of both ends are dropped.
    pub drop: bool,
    /// Limits of the payload that each side sends, beside those of the flow itself.
    pub limit: RateLimit,
}

/// Counts of the segments of one direction of a flow with a ruling, since the ruling was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuledCounts {
    /// Segments that could be the sender's; a GRO super-packet is one.
    pub packets: u64,
    /// Bytes of these segments, from the IP header on.
    pub bytes: u64,
    /// Segments among them that the ruling dropped.
    pub dropped: u64,
}

impl Dataplane {
    /// Sets the ruling on a spliced flow, with counts that begin at zero. Returns false if the flow is gone.
    ///
    /// # Errors
    /// Returns an error if the kernel has no memory for it: no ruling holds then.
    pub fn rule_flow(&self, leg: Leg, serial: u32, ruling: &Ruling) -> io::Result<bool> {
        let [client, server] = self.ruling(serial).unwrap_or_default().from;
        let before = RateLimit {
            client: rate_of(&client),
            server: rate_of(&server),
        };
        // Keep the account: a replacement of rules must not give each flow another burst.
        let paid = PerSide::new(client.tat, server.tat);
        let paid = ruling.limit.carry_over(&before, paid, time::monotonic());
        let side = |rate: Option<Rate>, tat: u64| ls_ruled {
            tat,
            rate: rate.map_or(0, Rate::per_second),
            burst: rate.map_or(0, Rate::burst),
            ..ls_ruled::default()
        };
        let element = ls_ruling {
            from: [
                side(ruling.limit.client, paid.client),
                side(ruling.limit.server, paid.server),
            ],
            drop: ruling.drop.into(),
            ..ls_ruling::default()
        };
        // Store the ruling before a packet looks for it.
        self.maps
            .rulings
            .update(&serial.to_ne_bytes(), element.bytes(), MapFlags::ANY)
            .map_err(to_io)?;
        let is_there = self.mark_ruled(leg, serial, true)?;
        if !is_there {
            self.forget_ruling(serial);
        }
        Ok(is_there)
    }

    /// Lets a ruling hold again for a flow whose own limit was set since. Returns false if the flow is gone.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub fn hold_ruling(&self, leg: Leg, serial: u32) -> io::Result<bool> {
        self.mark_ruled(leg, serial, true)
    }

    /// Lifts the ruling on a flow.
    ///
    /// # Errors
    /// Returns the error of the system; the flow has no ruling either, but its packets still look for one.
    pub fn lift_ruling(&self, leg: Leg, serial: u32) -> io::Result<()> {
        let marked = self.mark_ruled(leg, serial, false);
        self.forget_ruling(serial);
        marked.map(drop)
    }

    /// Removes the ruling on a flow that has ended.
    pub fn forget_ruling(&self, serial: u32) {
        // It may be gone already.
        let _ = self.maps.rulings.delete(&serial.to_ne_bytes());
    }

    /// Returns the serial numbers of all flows that have a ruling, those of a predecessor's included.
    pub fn ruled_flows(&self) -> Vec<u32> {
        let numbers = self.maps.rulings.keys();
        numbers
            .filter_map(|key| key.first_chunk().map(|key| u32::from_ne_bytes(*key)))
            .collect()
    }

    /// Returns the counts of a flow with a ruling, by the side that sends.
    pub fn ruled_counts(&self, serial: u32) -> Option<PerSide<RuledCounts>> {
        let ruling = self.ruling(serial)?;
        let counts = |ruled: &ls_ruled| RuledCounts {
            packets: ruled.packets,
            bytes: ruled.bytes,
            dropped: ruled.dropped,
        };
        Some(PerSide::new(counts(&ruling.from[0]), counts(&ruling.from[1])))
    }

    fn ruling(&self, serial: u32) -> Option<ls_ruling> {
        let value = self
            .maps
            .rulings
            .lookup(&serial.to_ne_bytes(), MapFlags::ANY)
            .ok()??;
        ls_ruling::from_bytes(&value)
    }

    /// Marks both directions of a flow, or unmarks them. Returns false if it is gone.
    fn mark_ruled(&self, leg: Leg, serial: u32, is_ruled: bool) -> io::Result<bool> {
        let argument = ls_mark {
            key: leg.tuple(),
            serial,
            is_ruled: is_ruled.into(),
        };
        // No flow moves between its slot and its records meanwhile.
        let gone =
            (self.flows).at_rest(|| run::with_argument(self.moves.mark_ruled.as_fd(), argument.bytes()))?;
        Ok(gone == 0)
    }
}

fn rate_of(ruled: &ls_ruled) -> Option<Rate> {
    Rate::new(ruled.rate.into()).map(|rate| rate.with_burst(ruled.burst))
}
