//! Simulates the relay, and a leg by itself.

use longsplice_model::{Mode, Side, seen, slot_flag};

use super::{HELD, Phase};
use crate::sim::{
    tcp::{MS, Run},
    world::World,
};

impl World {
    /// Resets the other socket after one was reset.
    pub(super) fn give_up(&mut self) {
        self.doomed = true;
        for side in Side::BOTH {
            self.abort_local(side);
        }
        self.flow.unregister();
        self.enter_phase(Phase::Over, 0, 0);
    }

    pub(super) fn abort_local(&mut self, side: Side) {
        let mut out = Vec::new();
        if let Some(local) = &mut self.locals[side] {
            local.abort(self.now, &mut out);
        }
        self.replace_local(side, None);
        self.local_says(side, out);
    }

    /// Moves the bytes that can be moved.
    pub fn pump(&mut self) {
        for side in Side::BOTH {
            let j = side.other();
            let (mut said, mut read) = (Vec::new(), Vec::new());
            let (Some(from), Some(to)) = (self.locals[side].clone(), self.locals[j].clone()) else {
                return;
            };
            if from.dead || to.dead {
                self.give_up();
                return;
            }
            let (mut from, mut to) = (from, to);
            let d = &mut self.daemon.pump[side];
            loop {
                while let Some(run) = d.held.front().copied() {
                    let n = to.can_write().min(run.len);
                    if n == 0 {
                        break;
                    }
                    to.write(self.now, Run { at: run.at, len: n }, &mut said);
                    d.held.pop_front();
                    if n < run.len {
                        d.held.push_front(Run {
                            at: run.at + n as u64,
                            len: run.len - n,
                        });
                    }
                }
                if !d.held.is_empty() || d.eof {
                    break;
                }
                let runs = from.read(self.now, HELD, &mut read);
                d.eof |= from.eof;
                if runs.is_empty() {
                    break;
                }
                d.held.extend(runs);
            }
            if d.eof && d.held.is_empty() && !d.shut {
                d.shut = true;
                to.shutdown(self.now, &mut said);
            }
            self.locals[side] = Some(from);
            self.locals[j] = Some(to);
            self.local_says(side.other(), said);
            self.local_says(side, read);
        }
    }

    pub(super) fn relay(&mut self, due: bool) {
        self.pump();
        let ended = self.daemon.pump.iter().any(|p| p.eof) || self.fins();
        let through = self
            .locals
            .iter()
            .flatten()
            .filter(|l| l.is_through() && l.got_fin())
            .count()
            == 2;
        if through {
            self.enter_phase(Phase::Over, 0, 0);
            return;
        }
        if !due || ended || self.stopping || self.flow.slot.mode != Mode::Track {
            return;
        }
        if self.daemon.cycles >= self.scenario.cycles {
            self.stopping = true;
            return;
        }
        if self.rng.chance(80) {
            self.part();
            return;
        }
        for side in Side::BOTH {
            let room = if self.rng.chance(500) {
                0
            } else {
                self.rng.between(4000, 100_000) as u32
            };
            self.flow.slot.leg[side].max_inflight = room;
        }
        self.flow.slot.flags = slot_flag::COUPLE;
        self.random_trap();
        self.enter_phase(Phase::Coupling, 200 * MS, 600 * MS);
    }

    pub(super) fn fins(&self) -> bool {
        Side::BOTH
            .iter()
            .any(|&s| self.flow.record(s).is_some_and(|r| r.seen & seen::FIN != 0))
    }

    pub(super) fn part(&mut self) {
        let legs = self.flow.slot.leg;
        if !self.tasks.is_empty() {
            return;
        }
        self.daemon.rx_ts = legs.map(|from| Some(from.rx_ts));
        self.daemon.adj = legs.map(|from| [from.adj_seq, from.adj_ack]);
        self.disarm();
        self.flow.part();
        self.stats.add("legs alone");
        self.enter_phase(Phase::Alone, MS, 30 * MS);
    }
}
