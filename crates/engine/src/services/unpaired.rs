//! Keeps sockets in control mode that were spliced before: their numbers differ from those on the wire, and the kernel
//! half maps the one to the other for as long as they live.
//!
//! While bytes that bypassed the sockets are unacknowledged, both legs share their flow's slot. Then they part: each has
//! a record of its own, which stays until the kernel has forgotten the connection.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use longsplice_core::patience::Waiter;
use longsplice_dataplane::{Dataplane, Leg, PerSide};
use parking_lot::Mutex;
use tokio::{net::TcpStream, time::Instant};

use crate::flow::{Flow, assess::Place};

/// Time that the slot of a pair is kept after it came back: the pair may be spliced again at once.
pub(crate) const SHARE: Duration = Duration::from_millis(100);

/// Time that sockets are kept open after their owner has closed them, while bytes are unacknowledged.
const HOLD: Duration = Duration::from_secs(3);

/// First interval between two looks for a leg's socket, and the longest one, while it lives.
const LOOK: Duration = Duration::from_secs(1);
const LONGEST_LOOK: Duration = Duration::from_secs(16);

/// Time for which the end of the process waits for what bypassed the sockets to be acknowledged, and interval of its looks.
const LAST_WAIT: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_millis(5);

/// State of a flow whose sockets a caller has.
#[derive(Debug)]
struct Awake {
    flow: Flow,
    since: Instant,
    /// Time of the next look for the sockets, once they are held no longer.
    looks_at: Instant,
    /// Duplicates that keep the sockets open until the bytes that bypassed them are acknowledged: the peers still need
    /// their answers.
    sockets: Vec<OwnedFd>,
    /// Time at which its ends were reset, and those that lacked bytes then: they may take that reset for a stray one.
    given_up: Option<(Instant, PerSide<bool>)>,
}

impl Awake {
    /// Returns true if its legs have nothing to do with each other any more.
    fn is_quiescent(&self) -> bool {
        self.given_up.is_none() && self.flow.is_quiescent()
    }

    /// Looks for its sockets now and then, once they are held no longer. Returns true if both are closed.
    fn is_abandoned(&mut self, now: Instant) -> bool {
        if now < self.looks_at {
            return false;
        }
        self.looks_at = now + LOOK;
        let plane = self.flow.plane();
        let is_gone = |leg: Leg| {
            plane
                .inspect(leg)
                .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        };
        self.flow.legs().into_iter().all(is_gone)
    }

    /// Resets both ends, if one of them will never acknowledge the bytes that bypassed the sockets.
    fn give_up(&mut self, now: Instant) {
        let is_hopeless = self.flow.is_hopeless(now, Waiter::Handler);
        let flow = self.flow.serial();
        if is_hopeless {
            tracing::info!(
                flow,
                "an end does not acknowledge what passed by: both ends are reset"
            );
        } else if self.flow.is_cut_off() {
            tracing::debug!(
                flow,
                "an end was reset before all that passed by was acknowledged"
            );
        } else if self.is_abandoned(now) {
            tracing::debug!(
                flow,
                "its sockets were closed before all that passed by was acknowledged"
            );
        } else {
            return;
        }
        self.reset(now);
    }

    /// Removes it, once both ends were reset.
    fn end(self) {
        let lacking = self.given_up.map(|(_, lacking)| lacking);
        self.flow.end_by_questions(lacking.unwrap_or_default());
    }

    /// Resets both ends, once.
    fn reset(&mut self, now: Instant) {
        if self.given_up.is_none() {
            self.given_up = Some((now, self.flow.lacking()));
            self.sockets.clear();
            self.flow.reset_all();
        }
    }
}

/// State of a leg that stands alone.
#[derive(Debug)]
struct Watched {
    looked: Instant,
    /// Time from that look to the next one.
    wait: Duration,
    gone: Option<Instant>,
}

impl Watched {
    fn new(now: Instant) -> Watched {
        Watched {
            looked: now,
            wait: LOOK,
            gone: None,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.looked) >= self.wait
    }

    /// Notes whether a look has found its socket. Returns true once it has had none for `record_ttl`.
    fn note(&mut self, lives: bool, now: Instant, record_ttl: Duration) -> bool {
        self.looked = now;
        if lives {
            // A socket lives for as long as its connection does: each look is rarer.
            self.wait = (2 * self.wait).min(LONGEST_LOOK);
            self.gone = None;
            return false;
        }
        self.wait = LOOK;
        now.duration_since(*self.gone.get_or_insert(now)) >= record_ttl
    }
}

/// Holds all sockets that were spliced before.
#[derive(Debug, Default)]
pub(crate) struct UnpairedLegs {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    awake: HashMap<u32, Awake>,
    /// Number of each leg's flow.
    flows: HashMap<Leg, u32>,
    alone: HashMap<Leg, Watched>,
}

impl UnpairedLegs {
    /// Keeps the mapping of a flow whose sockets go to a caller.
    pub(crate) fn keep(&self, flow: Flow, sockets: PerSide<&TcpStream>, now: Instant) {
        let held = match flow.is_quiescent() {
            true => Vec::new(),
            false => sockets
                .iter()
                .filter_map(|s| s.as_fd().try_clone_to_owned().ok())
                .collect(),
        };
        let mut table = self.table.lock();
        for leg in flow.legs() {
            table.flows.insert(leg, flow.serial());
        }
        table.awake.insert(
            flow.serial(),
            Awake {
                flow,
                since: now,
                looks_at: now + HOLD + LOOK,
                sockets: held,
                given_up: None,
            },
        );
    }

    /// Takes the flow that two legs share, if they still do.
    pub(crate) fn take(&self, legs: PerSide<Leg>) -> Option<Flow> {
        let mut table = self.table.lock();
        let serial = *table.flows.get(&legs.client)?;
        table
            .awake
            .get(&serial)
            .filter(|awake| awake.flow.legs() == legs && awake.given_up.is_none())?;
        Some(table.take(serial)?.flow)
    }

    /// Lets go of a flow's sockets, whatever is unacknowledged: its ends are to be reset.
    pub(crate) fn let_go(&self, serial: u32) {
        if let Some(awake) = self.table.lock().awake.get_mut(&serial) {
            awake.sockets.clear();
        }
    }

    /// Returns true if a caller has a flow's sockets, and the flow its slot.
    pub(crate) fn has(&self, serial: u32) -> bool {
        self.table.lock().awake.contains_key(&serial)
    }

    /// Returns the state of a leg for a new flow, and parts it from an old one if that is possible now.
    pub(crate) fn place(&self, plane: &Dataplane, leg: Leg) -> Place {
        let mut table = self.table.lock();
        if !table.part_leg(leg) {
            return Place::Unsettled;
        }
        // The record belongs to the new flow from then on, or is removed with it.
        match table.alone.contains_key(&leg).then(|| plane.alone(leg)).flatten() {
            Some(alone) => Place::Alone(alone),
            None => Place::Plain,
        }
    }

    /// Parts a leg from the other one of its flow, if that is settled. Returns true if it stands alone.
    pub(crate) fn part_leg(&self, leg: Leg) -> bool {
        self.table.lock().part_leg(leg)
    }

    /// Returns true if a leg was parted from its flow, and lives.
    pub(crate) fn is_alone(&self, leg: Leg) -> bool {
        self.table.lock().alone.contains_key(&leg)
    }

    /// Parts the legs of a settled flow whose pair is relayed on: the slot is for others.
    pub(crate) fn part(&self, flow: Flow) {
        self.table.lock().stand_alone(flow);
    }

    /// Forgets a leg that has become part of a flow.
    pub(crate) fn forget(&self, leg: Leg) {
        self.table.lock().alone.remove(&leg);
    }

    /// Adds a predecessor's leg: its socket died with it, but perhaps not the connection.
    pub(crate) fn add_alone(&self, leg: Leg, now: Instant) {
        self.table.lock().watch(leg, now);
    }

    /// Parts settled flows, and removes records of legs that have had no socket for `record_ttl`.
    pub(crate) fn tend(&self, plane: &Dataplane, record_ttl: Duration) {
        let now = Instant::now();
        let mut table = self.table.lock();
        let due: Vec<u32> = table
            .awake
            .iter()
            .filter(|(_, a)| now.duration_since(a.since) >= SHARE && a.is_quiescent())
            .map(|(serial, _)| *serial)
            .collect();
        for awake in table.awake.values_mut() {
            if now.duration_since(awake.since) >= HOLD {
                awake.sockets.clear();
            }
            if awake.given_up.is_none() && !awake.flow.is_quiescent() {
                awake.give_up(now);
            }
        }
        let told = |awake: &Awake| {
            awake
                .given_up
                .is_some_and(|(at, _)| now.duration_since(at) >= SHARE)
        };
        let told: Vec<u32> = table
            .awake
            .values()
            .filter(|a| told(a))
            .map(|a| a.flow.serial())
            .collect();
        // Dropping them removes their records.
        let given_up: Vec<Awake> = told.iter().filter_map(|serial| table.take(*serial)).collect();
        let alone = table.alone.iter().filter(|(_, alone)| alone.is_due(now));
        let alone: Vec<Leg> = alone.map(|(leg, _)| *leg).collect();
        drop(table);
        for awake in given_up {
            awake.end();
        }
        // Lock for one flow at a time: a task that asks for a leg must not wait for all of them.
        for serial in due {
            let mut table = self.table.lock();
            if table.awake.get(&serial).is_some_and(Awake::is_quiescent) {
                table.part(serial);
            }
        }
        for leg in alone {
            let lives = plane.inspect(leg).is_ok();
            self.note_alone(plane, leg, lives, now, record_ttl);
        }
    }

    /// Notes whether a leg that stands alone has a socket; removes its record once it has had none for `record_ttl`.
    fn note_alone(&self, plane: &Dataplane, leg: Leg, lives: bool, now: Instant, record_ttl: Duration) {
        let mut table = self.table.lock();
        let alone = table.alone.get_mut(&leg);
        if alone.is_some_and(|alone| alone.note(lives, now, record_ttl)) {
            table.alone.remove(&leg);
            plane.remove_alone(leg);
        }
    }

    /// Returns true if it holds no flow and no leg.
    pub(crate) fn is_empty(&self) -> bool {
        let table = self.table.lock();
        table.awake.is_empty() && table.alone.is_empty()
    }

    /// Parts all flows that settle in a moment, as the process ends, and resets both ends of the others: a leg that stands alone
    /// acknowledges bytes that the far end may lack. Blocks for up to [`LAST_WAIT`] and [`SHARE`].
    pub(crate) fn part_all(&self) {
        let until = Instant::now() + LAST_WAIT;
        while !self.part_settled() && Instant::now() < until {
            std::thread::sleep(LAST_LOOK);
        }
        let mut unsettled: Vec<Awake> = self.table.lock().take_all();
        if unsettled.is_empty() {
            return;
        }
        for awake in &mut unsettled {
            awake.reset(Instant::now());
        }
        std::thread::sleep(SHARE);
        for awake in unsettled {
            awake.end();
        }
    }

    /// Parts the flows that are settled. Returns true if no other one is left.
    fn part_settled(&self) -> bool {
        let mut table = self.table.lock();
        let settled = table.awake.iter().filter(|(_, awake)| awake.is_quiescent());
        let settled: Vec<u32> = settled.map(|(serial, _)| *serial).collect();
        for serial in settled {
            table.part(serial);
        }
        table.awake.is_empty()
    }
}

impl Table {
    /// Removes a flow and returns it.
    fn take(&mut self, serial: u32) -> Option<Awake> {
        let awake = self.awake.remove(&serial)?;
        for leg in awake.flow.legs() {
            self.flows.remove(&leg);
        }
        Some(awake)
    }

    /// Removes all flows and returns them.
    fn take_all(&mut self) -> Vec<Awake> {
        let all: Vec<u32> = self.awake.keys().copied().collect();
        all.iter().filter_map(|serial| self.take(*serial)).collect()
    }

    /// Parts a leg from the other one of its flow, if that is settled. Returns true if it stands alone.
    fn part_leg(&mut self, leg: Leg) -> bool {
        let Some(serial) = self.flows.get(&leg).copied() else {
            return true;
        };
        let parts = self.awake.get(&serial).is_none_or(Awake::is_quiescent);
        if parts {
            self.part(serial);
        }
        parts
    }

    fn part(&mut self, serial: u32) {
        if let Some(awake) = self.take(serial) {
            self.stand_alone(awake.flow);
        }
    }

    /// Begins to look for the socket of a leg that stands alone.
    fn watch(&mut self, leg: Leg, now: Instant) {
        self.alone.insert(leg, Watched::new(now));
    }

    /// Gives each leg of a flow a record of its own, and frees the slot.
    fn stand_alone(&mut self, flow: Flow) {
        let now = Instant::now();
        for leg in flow.legs() {
            // Insert it mapped or not: even without a drain, the kernel half may hold the TSval that its peer was sent.
            self.watch(leg, now);
        }
        flow.part();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_socket_that_lives_is_looked_for_ever_less_often_and_one_that_is_gone_every_second() {
        let begun = Instant::now();
        let mut leg = Watched::new(begun);
        let at = |seconds: u32| begun + seconds * SECOND;
        let due = |leg: &Watched| (0..).find(|&seconds| leg.is_due(at(seconds)));
        for next in [1, 3, 7, 15, 31, 47, 63] {
            assert_eq!(due(&leg), Some(next));
            assert!(!leg.note(true, at(next), SECOND * 2));
        }
        for next in [79, 80] {
            assert_eq!(due(&leg), Some(next));
            assert!(!leg.note(false, at(next), SECOND * 2));
        }
        // Another socket may have its addresses by then.
        assert!(!leg.note(true, at(81), SECOND * 2));
        assert_eq!(due(&leg), Some(83));
        for (next, is_over) in [(83, false), (84, false), (85, true)] {
            assert_eq!(leg.note(false, at(next), SECOND * 2), is_over, "{next}");
        }
    }
}
