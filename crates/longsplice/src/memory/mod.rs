//! Watches the memory of the process: refuses connections before it runs out, and resets the newest ones as a last
//! resort.
//!
//! The kernel kills a process that exceeds the limit of its control group, and all connections with it. So the usage is
//! read a few times a second, and each connection that is accepted in between counts with the memory of a relayed one.
//! If memory runs short, parked sockets are released early, then new connections are refused, and in the end the newest
//! connections are reset.

mod source;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::MemoryLimit;
use source::{Groups, Reading};

/// Estimated memory of a connection that was just accepted, in bytes: two sockets in the kernel, and a task. Measured:
/// 24 KB.
const CONNECTION: u64 = 32 << 10;

/// Part of it that two sockets take in the kernel, in bytes; the resident size of a process does not include it.
const SOCKETS: u64 = 8 << 10;

/// Limits the use of a reading, in time and in number of connections.
const FRESH: Duration = Duration::from_millis(250);
const FRESH_FOR: u64 = 64;

/// Interval of readings, apart from new connections.
pub(crate) const PERIOD: Duration = Duration::from_millis(200);

/// Divisor for the share of connections that is reset at once as a last resort; at least one is reset.
const SHED: usize = 20;

/// Percentages of a limit at which measures are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thresholds {
    detach: u64,
    refuse: u64,
    shed: u64,
}

/// Thresholds for a limit of this process or its control group.
const OWN: Thresholds = Thresholds {
    detach: 75,
    refuse: 90,
    shed: 96,
};

/// Thresholds for the machine's memory: other processes may have taken it, so connections are not reset.
const MACHINE: Thresholds = Thresholds {
    detach: 95,
    refuse: 98,
    shed: u64::MAX,
};

/// Memory of a process.
#[derive(Debug)]
pub(crate) struct Memory {
    groups: Option<Groups>,
    state: Mutex<State>,
    refused: AtomicU64,
    shed: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    limit: MemoryLimit,
    read_at: Option<Instant>,
    readings: Vec<(Reading, Thresholds)>,
    /// Number of connections that were accepted since the last reading.
    pending: u64,
    /// True if the last connection was refused, and the log shows it.
    short: bool,
}

/// Status of the memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The limit with the least room, in bytes: of the process, its control group or the machine.
    pub limit: u64,
    /// Memory in use under that limit, in bytes.
    pub used: u64,
    /// Number of connections that were refused for lack of memory.
    pub refused_total: u64,
    /// Number of connections that were reset for lack of memory.
    pub shed_total: u64,
}

/// Measures that a reading asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measures {
    /// True if parked sockets are released early.
    pub(crate) detach: bool,
    /// Number of the newest connections to reset, as a last resort.
    pub(crate) shed: Option<usize>,
}

impl Memory {
    /// Creates the state for this process, without a limit by configuration.
    pub(crate) fn of_this_process() -> Memory {
        Memory {
            groups: Groups::of_this_process(),
            state: Mutex::default(),
            refused: AtomicU64::new(0),
            shed: AtomicU64::new(0),
        }
    }

    /// Applies the limit of a configuration.
    pub(crate) fn configure(&self, limit: MemoryLimit) {
        let mut state = self.state.lock();
        state.limit = limit;
        state.read_at = None;
    }

    fn read(&self, limit: MemoryLimit, open: usize) -> Vec<(Reading, Thresholds)> {
        let machine = || source::machine().map(|reading| (reading, MACHINE));
        let group = || Some((self.groups.as_ref()?.read()?, OWN));
        let own = |limit| {
            let used = source::resident()? + SOCKETS * open as u64;
            Some((Reading { limit, used }, OWN))
        };
        match limit {
            MemoryLimit::None => Vec::new(),
            MemoryLimit::Auto => [machine(), group()].into_iter().flatten().collect(),
            MemoryLimit::Bytes(limit) => [machine(), group(), own(limit)].into_iter().flatten().collect(),
        }
    }

    fn look(&self, state: &mut State, open: usize) {
        state.readings = self.read(state.limit, open);
        state.read_at = Some(Instant::now());
        state.pending = 0;
    }

    /// Returns whether there is memory for one more connection, beside `open` connections. One that finds none is refused,
    /// and counted.
    pub(crate) fn admits(&self, open: usize) -> bool {
        let admits = self.has_room(open, "new connections are refused");
        if !admits {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        admits
    }

    /// Returns whether there is memory to take one more connection over, beside `open` connections. One that finds none
    /// passes through.
    pub(crate) fn admits_taken_over(&self, open: usize) -> bool {
        self.has_room(open, "connections pass through")
    }

    /// Counts one more connection if there is memory for it. `consequence`: what the log says of others.
    fn has_room(&self, open: usize, consequence: &str) -> bool {
        let mut state = self.state.lock();
        let is_old = state.read_at.is_none_or(|at| at.elapsed() >= FRESH);
        if is_old || state.pending >= FRESH_FOR {
            self.look(&mut state, open);
        }
        let there_is = state.has_room();
        state.pending += u64::from(there_is);
        if std::mem::replace(&mut state.short, !there_is) == there_is {
            state.tell(there_is, consequence);
        }
        there_is
    }

    /// Reads the usage, and returns the measures that it asks for, beside `open` connections. `of_listeners` of them may be
    /// reset.
    pub(crate) fn measures(&self, open: usize, of_listeners: usize) -> Measures {
        let mut state = self.state.lock();
        self.look(&mut state, open);
        Measures {
            detach: state.has_come_to(|t| t.detach),
            shed: state.has_come_to(|t| t.shed).then(|| of_listeners.div_ceil(SHED)),
        }
    }

    /// Counts connections that were reset for lack of memory, of `open` connections.
    pub(crate) fn note_shed(&self, ended: usize, open: usize) {
        self.shed.fetch_add(ended as u64, Ordering::Relaxed);
        tracing::warn!(
            connections = ended,
            of = open,
            "memory runs out: the newest connections are reset"
        );
    }

    /// Returns the status; `None` if there is no limit.
    pub(crate) fn status(&self, open: usize) -> Option<MemoryStatus> {
        let limit = self.state.lock().limit;
        let readings = self.read(limit, open);
        let (reading, _) = readings.iter().max_by_key(|(reading, _)| reading.percent())?;
        Some(MemoryStatus {
            limit: reading.limit,
            used: reading.used,
            refused_total: self.refused.load(Ordering::Relaxed),
            shed_total: self.shed.load(Ordering::Relaxed),
        })
    }
}

impl State {
    /// Returns whether one more connection stays below all limits.
    fn has_room(&self) -> bool {
        let wanted = CONNECTION * (self.pending + 1);
        self.readings.iter().all(|(reading, thresholds)| {
            let used = reading.used.saturating_add(wanted);
            Reading { used, ..*reading }.percent() < thresholds.refuse
        })
    }

    fn tell(&self, there_is: bool, consequence: &str) {
        let tightest = self.readings.iter().max_by_key(|(reading, _)| reading.percent());
        let (limit, used) = tightest.map_or((0, 0), |(reading, _)| (reading.limit, reading.used));
        match there_is {
            true => tracing::info!(limit, used, "there is memory again: connections are accepted"),
            false => tracing::warn!(
                limit,
                used,
                "memory runs short: {consequence} (raise the limit of the control group, or `memory`)"
            ),
        }
    }

    fn has_come_to(&self, threshold: impl Fn(&Thresholds) -> u64) -> bool {
        let reached =
            |(reading, thresholds): &(Reading, Thresholds)| reading.percent() >= threshold(thresholds);
        self.readings.iter().any(reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(used: u64, pending: u64) -> State {
        let reading = Reading {
            limit: 100 << 20,
            used,
        };
        State {
            readings: vec![(reading, OWN)],
            pending,
            ..State::default()
        }
    }

    #[test]
    fn what_was_accepted_since_the_last_look_counts() {
        assert!(State::default().has_room(), "there is no limit");
        assert!(state(50 << 20, 0).has_room());
        assert!(!state(90 << 20, 0).has_room());
        let room_for = (0..)
            .find(|&pending| !state(80 << 20, pending).has_room())
            .unwrap();
        assert_eq!(room_for, (10 << 20) / CONNECTION - 1);
    }

    #[test]
    fn each_thing_is_done_from_its_share_on() {
        let done = |percent: u64| {
            let state = state(percent << 20, 0);
            [state.has_come_to(|t| t.detach), state.has_come_to(|t| t.shed)]
        };
        assert_eq!(
            [74, 75, 95, 96].map(done),
            [[false; 2], [true, false], [true, false], [true; 2]]
        );
    }

    #[test]
    fn a_configured_limit_holds_for_the_process() {
        let memory = Memory::of_this_process();
        memory.configure(MemoryLimit::Bytes(1 << 40));
        assert!(memory.admits(10));
        memory.configure(MemoryLimit::Bytes(1 << 20));
        assert!(!memory.admits(10), "a test program is larger");
        assert_eq!(memory.status(10).unwrap().refused_total, 1);
        memory.configure(MemoryLimit::None);
        assert!(memory.admits(10) && memory.status(10).is_none());
    }
}
