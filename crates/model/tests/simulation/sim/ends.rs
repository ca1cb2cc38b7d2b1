//! Simulates the ends' applications, and a forger.

use longsplice_core::seq::Seq;
use longsplice_model::{Segment, Side};

use super::{
    scenario::Habit,
    tcp::{FORGED, MS, Run},
    world::{Event, World},
};

impl World {
    pub(super) fn app(&mut self, side: Side) {
        let mut out = Vec::new();
        let other = self.ends[side.other()].write;
        let habit = self.scenario.habits[side];
        let (n, asleep) = (self.rng.below(30) as i64, self.now < self.apps[side].asleep_until);
        if self.scenario.slow[side] && !asleep && !self.stopping && self.rng.chance(30) {
            self.apps[side].asleep_until = self.now + self.rng.below(400 * MS);
        }
        let end = &mut self.ends[side];
        if !asleep || self.stopping {
            let runs = end.read(self.now, self.scenario.reads[side], &mut out);
            self.apps[side].read += runs.iter().map(|r| r.len).sum::<i64>();
        }
        let write = match habit {
            _ if self.stopping || end.dead => 0,
            Habit::Random if n < 8 => 1 + n * n * 100,
            Habit::Bulk => 20_000,
            Habit::Turns
                if end.received() == other && (side == Side::Client || end.received() > end.write) =>
            {
                50 + n * n * 20
            }
            _ => 0,
        };
        let write = write.min(end.can_write());
        if write > 0 {
            end.write(
                self.now,
                Run {
                    at: end.write as u64,
                    len: write,
                },
                &mut out,
            );
        }
        let close = self.stopping || self.rng.chance(self.scenario.early_fin);
        let end = &mut self.ends[side];
        if close && !end.fin && !end.dead {
            end.shutdown(self.now, &mut out);
            self.stats.add(if self.stopping {
                "closed"
            } else {
                "half-closed early"
            });
        }
        if !self.stopping && self.rng.chance(self.scenario.reset) {
            self.ends[side].abort(self.now, &mut out);
            self.doomed = true;
            self.stats.add("reset by an end");
        }
        self.end_says(side, out);
        let pause = self.rng.between(500, 4 * MS);
        self.at(self.now + pause, Event::App(side));
    }

    /// Sends a forged segment with guessed numbers.
    pub fn forge(&mut self) {
        let side = self.rng.pick(&Side::BOTH);
        let Some(rec) = self.flow.record(side).copied() else {
            return;
        };
        let back = self.flow.record(side.other()).copied().unwrap_or_default();
        let from = self.flow.leg(side);
        let mut edge = back.rx_edge + back.ack_off;
        if self.is_slotted() {
            edge = edge.max(from.loc_edge).max(from.tx_edge);
        }
        let far = self.rng.between(300_000, 1 << 30) as u32;
        // Forge no segment that an end itself would accept: it is out of the window, or its ACK is.
        let in_window = self.rng.chance(300);
        let seq = match () {
            () if in_window => {
                rec.rx_end + 1 + self.rng.below(u64::from(edge.bytes_since(rec.rx_end)).max(1)) as u32
            }
            () if self.rng.chance(500) => edge + 2 + far,
            () => rec.rx_end - far,
        };
        let odd = (1 << 22) + self.rng.below((1 << 31) - (1 << 23)) as u32;
        let ack = match () {
            () if in_window => rec.rx_ack - odd,
            () if self.rng.chance(500) => rec.rx_ack,
            () => Seq::new(self.rng.next() as u32),
        };
        let flags = self.rng.pick(&[0x04, 0x14, 0x02, 0x12, 0x11, 0x10, 0x10]);
        // A reset within the window must not become exact on its way.
        let roomy = edge.bytes_since(rec.rx_end) > 50_000;
        let seq = if in_window && flags & 0x04 != 0 {
            if roomy {
                edge - self.rng.below(40) as u32
            } else {
                edge + 2 + far
            }
        } else {
            seq
        };
        let s = Segment {
            seq,
            ack,
            len: if self.rng.chance(300) { 100 } else { 0 },
            window: self.rng.below(65_536) as u32,
            flags,
            at: FORGED,
            ts: None,
            sack: Default::default(),
        };
        self.stats.add("forged");
        self.at(self.now, Event::ToForwarder(side, s));
    }
}
