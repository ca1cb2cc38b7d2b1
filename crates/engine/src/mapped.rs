//! Sockets in control mode that were spliced before: they count otherwise than the wire, and the kernel half maps the one
//! to the other for as long as they live.
//!
//! While something that passed by the sockets is unacknowledged, both legs share their flow's slot. Then they part: each
//! has a record of its own, which stays until the kernel has forgotten the connection.

use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use longsplice_dataplane::{Alone, Dataplane, Leg};
use tokio::{net::TcpStream, time::Instant};

use crate::flow::{Flow, Settling};

/// A pair that has just come back may be spliced again at once: its slot is kept for so long.
const SHARE: Duration = Duration::from_millis(100);

/// How long sockets that their owner has closed are kept open for what is unacknowledged.
const HOLD: Duration = Duration::from_secs(3);

/// How often a leg's socket is looked for.
const LOOK: Duration = Duration::from_secs(1);

/// A flow whose sockets are in somebody's hands.
#[derive(Debug)]
struct Awake {
    flow: Flow,
    since: Instant,
    /// Keeps the sockets from being closed before what passed by them is acknowledged: the peers still need their answers.
    sockets: Vec<OwnedFd>,
}

/// Of a leg that stands alone.
#[derive(Debug)]
struct Watched {
    looked: Instant,
    gone: Option<Instant>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    awake: HashMap<u32, Awake>,
    /// By leg, which flow it has.
    flows: HashMap<Leg, u32>,
    alone: HashMap<Leg, Watched>,
}

/// What is known of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It counts as the wire does.
    Plain,
    /// It was spliced before.
    Alone(Alone),
    /// What passed by its socket is not acknowledged yet.
    Unsettled,
}

impl Mapped {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the mapping of a flow whose sockets are given away.
    pub(crate) fn keep(&self, flow: Flow, sockets: [&TcpStream; 2], now: Instant) {
        let held = match flow.is_settled() {
            true => Vec::new(),
            false => sockets
                .iter()
                .filter_map(|s| s.as_fd().try_clone_to_owned().ok())
                .collect(),
        };
        let mut table = self.table();
        for leg in flow.legs() {
            table.flows.insert(leg, flow.serial());
        }
        table.awake.insert(
            flow.serial(),
            Awake {
                flow,
                since: now,
                sockets: held,
            },
        );
    }

    /// The flow that two legs had together, if they still have it.
    pub(crate) fn take(&self, legs: [Leg; 2]) -> Option<Flow> {
        let mut table = self.table();
        let serial = *table.flows.get(&legs[0])?;
        let awake = table.awake.remove(&serial)?;
        if awake.flow.legs() != legs {
            table.awake.insert(serial, awake);
            return None;
        }
        for leg in legs {
            table.flows.remove(&leg);
        }
        Some(awake.flow)
    }

    /// Whether a flow's sockets are in somebody's hands, with its slot.
    pub(crate) fn has(&self, serial: u32) -> bool {
        self.table().awake.contains_key(&serial)
    }

    /// Where a leg is, for a new flow; parts it from an old one if that can be done now.
    pub(crate) fn place(&self, plane: &Dataplane, leg: Leg, left: &mut Vec<Settling>) -> Place {
        let mut table = self.table();
        if let Some(serial) = table.flows.get(&leg).copied() {
            match table.awake.get(&serial) {
                Some(awake) if !awake.flow.is_settled() => return Place::Unsettled,
                _ => table.part(serial, left),
            }
        }
        // The record is the new flow's then, or is removed with it.
        match table.alone.contains_key(&leg).then(|| plane.alone(leg)).flatten() {
            Some(alone) => Place::Alone(alone),
            None => Place::Plain,
        }
    }

    /// A leg has become part of a flow.
    pub(crate) fn forget(&self, leg: Leg) {
        self.table().alone.remove(&leg);
    }

    /// A predecessor's leg; its socket died with it, but not the connection, perhaps.
    pub(crate) fn add_alone(&self, leg: Leg, now: Instant) {
        self.table().alone.insert(
            leg,
            Watched {
                looked: now,
                gone: None,
            },
        );
    }

    /// Parts what is settled, and removes what nobody needs for `linger` now.
    pub(crate) fn tend(&self, plane: &Dataplane, linger: Duration, left: &mut Vec<Settling>) {
        let now = Instant::now();
        let mut table = self.table();
        let due: Vec<u32> = table
            .awake
            .iter()
            .filter(|(_, a)| now.duration_since(a.since) >= SHARE && a.flow.is_settled())
            .map(|(serial, _)| *serial)
            .collect();
        for awake in table.awake.values_mut() {
            if now.duration_since(awake.since) >= HOLD {
                awake.sockets.clear();
            }
        }
        let looked_long_ago = |alone: &Watched| now.duration_since(alone.looked) >= LOOK;
        let alone = table.alone.iter().filter(|(_, alone)| looked_long_ago(alone));
        let alone: Vec<Leg> = alone.map(|(leg, _)| *leg).collect();
        drop(table);
        // One at a time: whoever asks for a leg meanwhile does not wait for all of them.
        for serial in due {
            let mut table = self.table();
            if table.awake.get(&serial).is_some_and(|a| a.flow.is_settled()) {
                table.part(serial, left);
            }
        }
        for leg in alone {
            let lives = plane.peek(leg).is_ok();
            self.note_alone(plane, leg, lives, now, linger);
        }
    }

    /// Notes whether a leg that stands alone has a socket; removes its record once it has had none for `linger`.
    fn note_alone(&self, plane: &Dataplane, leg: Leg, lives: bool, now: Instant, linger: Duration) {
        let mut table = self.table();
        let Some(alone) = table.alone.get_mut(&leg) else {
            return;
        };
        alone.looked = now;
        if lives {
            alone.gone = None;
        } else if now.duration_since(*alone.gone.get_or_insert(now)) >= linger {
            table.alone.remove(&leg);
            plane.remove_alone(leg);
        }
    }

    /// Whether nobody has anything here.
    pub(crate) fn is_empty(&self) -> bool {
        let table = self.table();
        table.awake.is_empty() && table.alone.is_empty()
    }

    /// Parts everything, settled or not: the process ends.
    pub(crate) fn part_all(&self, left: &mut Vec<Settling>) {
        let mut table = self.table();
        let all: Vec<u32> = table.awake.keys().copied().collect();
        for serial in all {
            table.part(serial, left);
        }
    }
}

impl Table {
    fn part(&mut self, serial: u32, left: &mut Vec<Settling>) {
        let Some(awake) = self.awake.remove(&serial) else {
            return;
        };
        let legs = awake.flow.legs();
        let now = Instant::now();
        for leg in legs {
            self.flows.remove(&leg);
            // Mapped or not: of a flow that was never drained the kernel half may keep what TSval its peer was sent.
            self.alone.insert(
                leg,
                Watched {
                    looked: now,
                    gone: None,
                },
            );
        }
        left.push(awake.flow.part());
    }
}
