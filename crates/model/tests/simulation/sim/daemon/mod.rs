//! Simulates user space: it relays, splices and takes back.

mod back;
mod capture;
mod crash;
mod detached;
mod relay;
mod splice;

use std::collections::VecDeque;

use longsplice_core::seq::{Offset, Seq};
use longsplice_model::{Mode, Segment, Side};

use super::{
    tcp::{MS, Run, Time},
    world::{Event, World},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    #[default]
    Relay,
    Coupling,
    Drain,
    Finishing,
    Dormant,
    Releasing,
    /// The sockets are gone; the slot is kept for a moment.
    Detached,
    Attaching,
    Frozen,
    /// Copies are collected.
    Collecting,
    Freezing,
    TakingOver,
    /// UNDRAIN.
    Awake,
    /// The flow is in no table: each leg is by itself.
    Alone,
    Over,
}

/// State of one direction of the relay.
#[derive(Debug, Clone, Default)]
pub struct Pump {
    pub held: VecDeque<Run>,
    pub eof: bool,
    pub shut: bool,
}

#[derive(Debug, Clone)]
pub struct Daemon {
    pub alive: bool,
    pub phase: Phase,
    pub until: Time,
    pub pump: [Pump; 2],
    pub held: Vec<(Side, Segment)>,
    /// Copies of forwarded segments.
    pub copies: [Vec<Segment>; 2],
    pub drained_at: Option<Time>,
    /// Time since which a socket has held bytes that the programs count as acknowledged.
    pub doubted_at: Option<Time>,
    pub cycles: u32,
    pub adj: [[Offset; 2]; 2],
    /// Timestamps of the peers: a rebuilt socket does not know its peer's.
    pub rx_ts: [Option<Seq>; 2],
}

impl Default for Daemon {
    fn default() -> Daemon {
        Daemon {
            alive: true,
            phase: Phase::Relay,
            until: 10 * MS,
            pump: Default::default(),
            held: Vec::new(),
            copies: Default::default(),
            drained_at: None,
            doubted_at: None,
            cycles: 0,
            adj: [[Offset::default(); 2]; 2],
            rx_ts: [None; 2],
        }
    }
}

impl Daemon {
    pub fn held_bytes(&self) -> [u32; 2] {
        [0, 1].map(|i| self.pump[i].held.iter().map(|r| r.len as u32).sum())
    }
}

const TICK: Time = 2 * MS;
/// Limit of the bytes that the relay holds in a direction.
const HELD: i64 = 8000;

impl World {
    pub fn daemon_tick(&mut self) {
        if !self.daemon.alive || self.daemon.phase == Phase::Over {
            return;
        }
        if !self.stopping && self.rng.chance(self.scenario.kill) && self.tasks.is_empty() {
            self.kill();
            return;
        }
        self.tick_phase();
        self.at(self.now + TICK, Event::Daemon);
    }

    pub(super) fn enter_phase(&mut self, phase: Phase, low: Time, high: Time) {
        self.note(|| format!("daemon: {phase:?}"));
        self.daemon.phase = phase;
        self.daemon.until = self.now + self.rng.between(low, high);
    }

    pub(super) fn tick_phase(&mut self) {
        let mode = self.flow.slot.mode;
        if mode == Mode::Replaced {
            // The tuple has a new owner: the sockets are closed in silence.
            for side in Side::BOTH {
                self.replace_local(side, None);
            }
            self.doomed = true;
            self.enter_phase(Phase::Over, 0, 0);
            return;
        }
        if self.is_slotted() && mode == Mode::Aborted {
            self.give_up();
            return;
        }
        if self.is_slotted()
            && mode == Mode::Undrain
            && matches!(
                self.daemon.phase,
                Phase::Drain | Phase::Dormant | Phase::Collecting | Phase::Freezing
            )
        {
            self.woken();
        }
        let due = self.now >= self.daemon.until;
        match self.daemon.phase {
            Phase::Relay => self.relay(due),
            Phase::Coupling => self.couple(due),
            Phase::Drain => self.drain(),
            Phase::Dormant => self.dormant(due, mode),
            Phase::Detached => self.detached(due),
            Phase::Frozen => self.rebuild(),
            Phase::Collecting => self.collect_copies(due),
            Phase::Freezing => self.take_over(due),
            Phase::Awake => self.awake(),
            Phase::Alone => {
                self.pump();
                // The programs did not note bytes that a socket holds out of order.
                let early = self.locals.iter().flatten().any(|l| l.has_early());
                if due && !early && self.backlog == 0 && !self.locals.iter().flatten().any(|l| l.dead) {
                    // A socket that has come back by copies and not heard its peer since assumes a window that is too
                    // large by the bytes that went past it, and announces it.
                    self.orderly &= self.scenario.capture == 0;
                    self.register(self.daemon.adj);
                    self.enter_phase(Phase::Relay, 0, 20 * MS);
                }
            }
            Phase::TakingOver | Phase::Finishing | Phase::Releasing | Phase::Attaching | Phase::Over => {}
        }
    }
}
