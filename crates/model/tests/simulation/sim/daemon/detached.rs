//! Detaches a flow from its sockets, and gives it new ones.

use longsplice_core::seq::Seq;
use longsplice_model::{Direction, Mode, Rebuilt, Side, Steps, Transfer, seen, slot_flag};

use super::Phase;
use crate::sim::{
    tcp::{MS, Tcp},
    world::{Task, World},
};

impl World {
    pub(super) fn over(&self) -> bool {
        let seen_of = |s| self.flow.record(s).map_or(0, |r| r.seen);
        let (a, b) = (seen_of(Side::Client), seen_of(Side::Server));
        (a | b) & seen::RST != 0 || a & b & seen::FIN != 0
    }

    pub(super) fn dormant(&mut self, due: bool, mode: Mode) {
        if mode != Mode::Final {
            return;
        }
        let wakeable = self.flow.slot.flags & slot_flag::WAKEABLE != 0;
        if self.rng.chance(30) {
            self.random_trap();
        }
        // A segment met a trap while the sockets had no room for all that their peers were promised.
        let trapped = wakeable && !self.daemon.held.is_empty() && self.tasks.is_empty();
        if trapped && !self.over() {
            self.stats.add("woken for what was held");
            self.wake(Mode::Final);
            return;
        }
        if !due && wakeable {
            return;
        }
        if !wakeable || self.over() || self.rng.chance(self.scenario.detach) {
            self.tasks.push(Task::Transfer(Transfer::new(Direction::Demote)));
            self.enter_phase(Phase::Releasing, 0, 0);
        } else if self.rng.chance(self.scenario.capture) {
            self.start_capture();
        } else {
            self.wake(Mode::Final);
        }
    }

    pub fn transferred(&mut self) {
        match self.daemon.phase {
            Phase::Releasing if self.is_slotted() => {
                self.stats.add("demote lost to a wake");
                self.enter_phase(Phase::Dormant, 10 * MS, 20 * MS);
            }
            Phase::Releasing => {
                for side in Side::BOTH {
                    self.replace_local(side, None);
                }
                self.daemon.pump = Default::default();
                self.stats.add("detached");
                self.enter_phase(Phase::Detached, 5 * MS, 100 * MS);
            }
            Phase::Attaching => {
                self.enter_phase(Phase::Frozen, 0, 0);
                if self.rng.chance(500) {
                    self.rebuild();
                }
            }
            _ => {}
        }
    }

    pub(super) fn detached(&mut self, due: bool) {
        let trapped = !self.daemon.held.is_empty();
        if !self.tasks.is_empty() || !(due || trapped) || !self.daemon.alive {
            return;
        }
        if self.flow.slot.mode != Mode::Free {
            // Merge what a segment noted in the slot while the flow left it.
            Transfer::new(Direction::Demote).run(&mut self.flow);
            self.flow.slot = Default::default();
            return;
        }
        if self.over() || self.flow.placement(Side::Client).is_none() {
            self.enter_phase(Phase::Over, 0, 0);
            return;
        }
        if !trapped && (self.stopping || self.fins()) {
            if self.fins() {
                self.disarm();
            }
            self.stopping = true;
            return;
        }
        self.flow.slot.mode = Mode::Final;
        self.tasks.push(Task::Transfer(Transfer::new(Direction::Promote)));
        self.enter_phase(Phase::Attaching, 0, 0);
    }

    /// Builds two sockets where the segments stopped.
    pub(super) fn rebuild(&mut self) {
        use Rebuilt;
        let mut rebuilt = Vec::new();
        let records = Side::BOTH.map(|s| self.flow.leg(s).rec);
        let base = records.map(|r| r.rx_end);
        for side in Side::BOTH {
            let j = side.other();
            let snd = base[j] + records[j].seq_off;
            // The window field cannot announce more.
            let most = base[side] + (65_535 << self.scenario.locals[side].our_scale);
            let promised = (records[j].rx_edge + records[j].ack_off).min(most);
            let edge = if promised.after(base[side]) {
                promised
            } else {
                base[side]
            };
            let mut config = self.scenario.locals[side];
            if let Some(last) = self.last_ts[side] {
                let clock = Seq::new((self.now / MS) as u32);
                config.ts_offset = ((last + 2) - clock) as u32;
                self.scenario.locals[side].ts_offset = config.ts_offset;
            }
            let window = i64::from((records[side].rx_edge - snd).max(0));
            let room = i64::from(edge - base[side]);
            let socket = Tcp::rebuilt(config, snd, base[side], window, room, self.now);
            self.replace_local(side, Some(socket));
            rebuilt.push(Rebuilt {
                rcv_nxt: base[side],
                rcv_edge: edge,
                snd_nxt: snd,
            });
        }
        self.daemon.pump = Default::default();
        if let [a, b] = rebuilt[..] {
            self.flow.rebuilt(&[a, b]);
        }
        self.stats.add("rebuilt");
        self.enter_phase(Phase::Dormant, 0, 0);
        if self.rng.chance(700) {
            self.wake(Mode::Final);
        }
    }
}
