//! Simulates SIGKILL, and a successor.

use longsplice_model::{Direction, Mode, Placement, Segment, Side, Steps, Transfer, flag};

use super::{Daemon, Phase, TICK};
use crate::sim::{
    tcp::MS,
    world::{Event, World},
};

impl World {
    /// Kills the daemon by SIGKILL, if no program is running.
    pub fn kill_now(&mut self) {
        if self.daemon.alive && self.daemon.phase != Phase::Over && self.tasks.is_empty() {
            self.kill();
        }
    }

    /// Kills the daemon by SIGKILL.
    pub(super) fn kill(&mut self) {
        self.note(|| "SIGKILL".into());
        let phase = self.daemon.phase;
        self.stats
            .add(if self.is_slotted() && self.flow.slot.mode == Mode::Final {
                "killed while dormant"
            } else if phase == Phase::Detached {
                "killed while detached"
            } else {
                "killed with sockets in the path"
            });
        self.daemon.alive = false;
        self.daemon.held.clear();
        let first = self.rng.pick(&Side::BOTH);
        for side in [first, first.other()] {
            self.abort_local(side);
            if self.rng.chance(300) {
                self.backlog += 1;
                self.at(
                    self.now,
                    Event::ToLocal(
                        side,
                        Segment {
                            flags: flag::RST,
                            ..Segment::default()
                        },
                    ),
                );
            }
        }
        let dead = !matches!(
            self.flow.slot.mode,
            Mode::Final | Mode::Moved | Mode::Freeze | Mode::Free
        );
        if self.is_slotted() && dead || self.flow.placement(Side::Client).is_none() || phase == Phase::Alone {
            self.doomed = true;
        }
        let pause = self.rng.between(MS, 80 * MS);
        self.at(self.now + pause, Event::Successor);
    }

    /// Starts a daemon that finds the state that another one left.
    pub fn succeed(&mut self) {
        if !self.tasks.is_empty() {
            self.at(self.now + MS, Event::Successor);
            return;
        }
        self.flow.transition(Mode::Freeze, Mode::Final);
        let lost = self.is_slotted() && self.flow.slot.mode != Mode::Final;
        self.daemon = Daemon {
            cycles: self.daemon.cycles,
            ..Daemon::default()
        };
        if lost
            || self
                .flow
                .placement(Side::Client)
                .is_none_or(|p| p == Placement::Alone)
        {
            self.doomed = true;
            self.flow.unregister();
            self.enter_phase(Phase::Over, 0, 0);
            return;
        }
        self.stats.add("adopted");
        Transfer::new(Direction::Demote).run(&mut self.flow);
        self.enter_phase(Phase::Detached, MS, 50 * MS);
        self.at(self.now + TICK, Event::Daemon);
    }
}
