//! Adopts the flows of generations whose processes have ended, while segments pass (docs/decisions/0034).
//!
//! Our programs are attached before theirs: from the instant at which a flow is in our table, ours serve it. What theirs
//! noted until then is passed on once they have let go of it, a grace period later.

use std::{io, os::fd::AsFd, time::Duration};

use super::Dataplane;
use crate::{
    abi::{Leg, PerSide, Pod, Side, ls_catch_up, ls_flow, ls_record},
    error::Error,
    flows::{Direction, is_alone, is_present},
    foreign::{Element, Foreign},
    load::pinned_meta,
    pins::{Pins, network_namespace},
    run,
    table::number,
    time,
};

/// Number of flows that are moved before the wait for a grace period.
const CHUNK: usize = 4096;

/// Longest wait for a grace period.
const GRACE: Duration = Duration::from_secs(1);

/// Result of an adoption.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Number of spliced flows that this process serves now.
    pub flows: u64,
    /// Number of flows that ended with the sockets of their process.
    pub lost: u64,
    /// Legs whose sockets the kernel may still be closing.
    pub alone: Vec<Leg>,
    /// Number of flows that this version cannot serve: they run on as they are, with the predecessor's programs.
    pub left: u64,
}

/// Flow that is in both tables.
#[derive(Debug)]
struct Moved {
    theirs: u32,
    ours: u32,
    /// Record as it was copied.
    copy: Box<ls_flow>,
}

impl Dataplane {
    /// Returns true if another process serves a generation of this instance.
    pub fn has_served_siblings(&self) -> bool {
        self.pins.siblings().iter().any(Pins::is_served)
    }

    /// Adopts the flows of this instance's generations that no process serves any more, and removes generations that
    /// have none left. `is_over` tells if a flow that cannot be adopted has ended. Call it after the programs are
    /// attached.
    ///
    /// # Errors
    /// Returns the errors of the system; what was adopted before them stays.
    pub fn adopt_predecessors(
        &self,
        is_over: impl Fn(&Direction, &Direction) -> bool,
    ) -> Result<Adopted, Error> {
        let mut adopted = Adopted::default();
        let namespace = network_namespace()?;
        for pins in Pins::unserved(self.pins.instance()) {
            if pinned_meta(&pins).is_ok_and(|meta| meta.netns != namespace) {
                continue;
            }
            let left = adopted.left;
            self.adopt_generation(&pins, &is_over, &mut adopted)?;
            if adopted.left == left {
                self.remove_generation(&pins);
            }
        }
        Ok(adopted)
    }

    fn adopt_generation(
        &self,
        pins: &Pins,
        is_over: &impl Fn(&Direction, &Direction) -> bool,
        adopted: &mut Adopted,
    ) -> Result<(), Error> {
        if !pins.is_readable() {
            return Ok(());
        }
        let foreign = Foreign::open(pins, self.flows.map())?;
        let mut moved = Vec::new();
        foreign.scan(|index, value| match foreign.state(value) {
            Element::Vacant => {}
            Element::Lost => {
                adopted.lost += 1;
                foreign.clear(index);
            }
            Element::Unknown(flow) => adopted.left += u64::from(!self.is_over(&flow, is_over)),
            Element::Flow(flow) => {
                match self.take_in(&flow) {
                    Ok(ours) => moved.push(Moved {
                        theirs: index,
                        ours,
                        copy: flow,
                    }),
                    // A new connection has its tuple.
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => foreign.clear(index),
                    Err(error) => {
                        tracing::debug!(%error, "a predecessor's flow stays as it is");
                        adopted.left += 1;
                    }
                }
                if moved.len() >= CHUNK {
                    self.settle(&foreign, &mut moved, adopted);
                }
            }
        })?;
        self.settle(&foreign, &mut moved, adopted);
        Ok(())
    }

    /// Returns true if a flow that this version cannot serve has ended.
    fn is_over(&self, flow: &ls_flow, is_over: &impl Fn(&Direction, &Direction) -> bool) -> bool {
        let directions = Direction::of_flow(flow, &self.start_times.lock(), time::now());
        // The sockets of single legs went with their process.
        directions.complete().is_none_or(|(a, b)| is_over(&a, &b))
    }

    /// Adds a flow to our table, or finds it there if an adoption was cut off. Returns its element.
    fn take_in(&self, flow: &ls_flow) -> io::Result<u32> {
        let sides = || {
            Side::BOTH
                .into_iter()
                .filter(|&side| is_present(&flow.from[side].rec))
        };
        let added = self.flows.take_in(flow);
        match &added {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            _ => {
                let counted = sides().filter(|&side| !is_alone(&flow.from[side].rec)).count();
                self.count.add(counted as u32);
                sides().for_each(|side| self.serials.lock().note(flow.from[side].rec.serial));
                return added;
            }
        }
        let is_its = |rec: &ls_record, side: Side| rec.serial == flow.from[side].rec.serial;
        let numbers = PerSide::from_fn(|side| {
            self.flows
                .number_of(Leg::from_tuple(&flow.from[side].key), |rec| is_its(rec, side))
        });
        match (numbers.client, numbers.server) {
            (Some(client), Some(server)) if server == client + 1 => return Ok((client - 1) / 2),
            (None, None) => return added,
            _ => {}
        }
        // Only one direction was added before.
        for side in Side::BOTH {
            let leg = Leg::from_tuple(&flow.from[side].key);
            self.flows.remove(leg, |rec| is_its(rec, side));
        }
        self.flows.take_in(flow)
    }

    /// Passes on what was noted in the old records since they were copied, and clears them.
    fn settle(&self, foreign: &Foreign, moved: &mut Vec<Moved>, adopted: &mut Adopted) {
        if moved.is_empty() {
            return;
        }
        if self.flows.wait_for_grace(GRACE).is_err() {
            tracing::warn!(
                "no grace period has passed: a predecessor's program may not have come to its end"
            );
        }
        for Moved { theirs, ours, copy } in moved.drain(..) {
            let now = foreign.read(theirs).map(|value| foreign.state(&value));
            let mut is_flow = false;
            for side in Side::BOTH {
                let then = &copy.from[side].rec;
                if is_alone(then) {
                    adopted.alone.push(Leg::from_tuple(&copy.from[side].key));
                } else {
                    is_flow |= is_present(then);
                }
                let Some(Element::Flow(now)) = &now else { continue };
                let rec = now.from[side].rec;
                if rec.bytes() == then.bytes() || !is_present(then) {
                    continue;
                }
                let argument = ls_catch_up {
                    number: number(ours, side),
                    bytes: rec.bytes_low.wrapping_sub(then.bytes_low),
                    rec,
                };
                if let Err(error) = run::with_argument(self.moves.catch_up.as_fd(), argument.bytes()) {
                    tracing::warn!(%error, "a predecessor's last notes of a flow are lost");
                }
            }
            foreign.clear(theirs);
            adopted.flows += u64::from(is_flow);
        }
    }

    /// Detaches the programs of a generation, and removes its pins.
    fn remove_generation(&self, pins: &Pins) {
        self.programs.detach_rules(pins);
        for hook in ["ingress", "egress"] {
            for ifindex in pins.interfaces(hook) {
                self.programs.detach(pins, ifindex);
            }
        }
        self.xdp.detach_generation(pins);
        tracing::debug!(path = %pins.root().display(), "a predecessor's programs and pins are removed");
        pins.remove_all();
        self.neighbours.forget(pins);
    }
}
