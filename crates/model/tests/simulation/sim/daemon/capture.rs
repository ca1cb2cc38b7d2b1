//! Returns by the second way: collects copies of forwarded segments until they cover all unacknowledged bytes; then the
//! sockets take those over.

use longsplice_core::seq::Seq;
use longsplice_model::{Freeze, Mode, Segment, Side, TakeOver, slot_flag};

use super::Phase;
use crate::sim::{
    tcp::{MS, Run},
    world::{Task, World},
};

/// Bytes that the far end of a direction may lack: their first number, and the bytes, of the end's stream.
type Outstanding = (Seq, Vec<Run>);

/// Returns all bytes from one number to another one, if the copies have them.
fn range(copies: &[Segment], start: Seq, to: Seq) -> Option<Vec<Run>> {
    let (mut at, mut runs) = (start, Vec::new());
    while at.before(to) {
        let copy = copies
            .iter()
            .find(|c| c.seq.at_or_before(at) && at.before(c.seq + c.len))?;
        let end = (copy.seq + copy.len).min(to);
        runs.push(Run {
            at: copy.at + u64::from(at.bytes_since(copy.seq)),
            len: i64::from(end - at),
        });
        at = end;
    }
    Some(runs)
}

impl World {
    /// Begins to bring parked sockets back so that no bytes are left to the ends.
    pub(super) fn start_capture(&mut self) {
        self.daemon.copies = Default::default();
        self.flow.slot.flags &= !slot_flag::WAKEABLE;
        self.flow.slot.flags |= slot_flag::COPY;
        self.enter_phase(Phase::Collecting, 20 * MS, 2000 * MS);
    }

    /// Returns the outstanding bytes in the direction from a side, up to `end`; `None` while copies are missing.
    fn outstanding(&self, side: Side, end: Seq) -> Option<Outstanding> {
        let to = self.flow.leg(side.other());
        let start = (to.rec.rx_ack + to.rec.ack_off).min(end);
        Some((start, range(&self.daemon.copies[side], start, end)?))
    }

    pub(super) fn collect_copies(&mut self, due: bool) {
        if self.flow.slot.mode != Mode::Final {
            return;
        }
        let complete = Side::BOTH
            .iter()
            .all(|&s| self.outstanding(s, self.flow.leg(s).rec.rx_end).is_some());
        if complete && !self.fins() {
            self.tasks.push(Task::Freeze(Freeze::default()));
            self.enter_phase(Phase::Freezing, 20 * MS, 20 * MS);
        } else if due || self.fins() || self.over() {
            self.stats.add("a capture given up");
            self.leave_to_the_ends(Mode::Final);
        }
    }

    /// Takes the first way instead.
    fn leave_to_the_ends(&mut self, from: Mode) {
        self.flow.slot.flags &= !slot_flag::COPY;
        self.flow.slot.flags |= slot_flag::WAKEABLE;
        self.enter_phase(Phase::Dormant, 20 * MS, 60 * MS);
        if !self.over() || from == Mode::Freeze {
            self.wake(from);
        }
    }

    pub(super) fn take_over(&mut self, due: bool) {
        if self.flow.slot.mode != Mode::Freeze || !self.tasks.is_empty() {
            return;
        }
        self.keep_promises();
        let found = Side::BOTH.map(|s| self.outstanding(s, self.flow.leg(s).base));
        // A forwarded FIN is acknowledged together with the bytes before it: a socket that has not sent the FIN refuses
        // that.
        let ended = self.fins();
        let [Some(a), Some(b)] = found.map(|f| f.filter(|_| !ended)) else {
            if due || ended {
                self.stats.add("a freeze given up");
                self.leave_to_the_ends(Mode::Freeze);
            }
            return;
        };
        let mut acked = [Seq::default(); 2];
        for (side, (start, runs)) in [(Side::Client, a), (Side::Server, b)] {
            let far = side.other();
            acked[far] = start + self.flow.leg(side).rec.seq_off;
            if !runs.is_empty() {
                self.stats.add("bytes taken over");
            }
            let (base, from) = (self.flow.leg(side).base, &self.ends[side]);
            let taken = (from.una + i64::from(base - from.snd_seq(from.una))) as u64;
            if let Some(local) = &mut self.locals[far] {
                local.seed(self.now, runs);
            }
            if let Some(local) = &mut self.locals[side] {
                local.taken_to = local.taken_to.max(taken);
            }
            self.set_timers(far);
        }
        self.tasks.push(Task::TakeOver(TakeOver::new(acked)));
        self.enter_phase(Phase::TakingOver, 0, 0);
    }

    /// Goes on after the sockets have taken everything over.
    pub fn taken_over(&mut self, mode: Mode) {
        if mode == Mode::Track {
            self.stats.add("captured");
            self.woken();
            for side in Side::BOTH {
                self.announce(side);
            }
        }
    }
}
