//! Goes from relay to splice: couple, drain, finish.

use longsplice_core::{
    drain::{DirectionSnapshot, contradicted, drained, parkable},
    seq::Offset,
};
use longsplice_model::{Finish, Mode, Segment, Side, Timestamps, flag, slot_flag, window_field};

use super::Phase;
use crate::sim::{
    tcp::MS,
    world::{Task, World},
};

impl World {
    pub(super) fn couple(&mut self, due: bool) {
        self.pump();
        let mut ready = true;
        let mut announce = Vec::new();
        for side in Side::BOTH {
            let (from, to) = (self.flow.leg(side), self.flow.leg(side.other()));
            let allowed = to.rec.rx_edge + to.rec.ack_off;
            let eof = self.daemon.pump[side].shut;
            if (!eof && from.tx_edge.after(allowed)) || from.rec.rx_end.after(allowed) {
                ready = false;
            }
            if from.tx_edge.after(allowed)
                || (from.tx_edge.before(allowed) && from.tx_edge - from.rec.rx_end < 2000)
            {
                announce.push(side);
            }
        }
        if self.daemon.pump.iter().any(|p| p.eof) && self.rng.chance(200) || self.stopping {
            ready = false;
        }
        for side in announce {
            if self.rng.chance(200) {
                self.announce(side);
            }
        }
        if ready && self.rng.chance(300) {
            self.start_drain();
        } else if due || self.stopping {
            self.flow.slot.flags = 0;
            self.disarm();
            self.stats.add("coupling given up");
            self.enter_phase(Phase::Relay, 0, 50 * MS);
        }
    }

    /// Sends an empty segment in the socket's name: egress sets the right window.
    pub(super) fn announce(&mut self, side: Side) {
        let from = *self.flow.leg(side);
        let to = self.flow.leg(side.other());
        let s = Segment {
            seq: from.loc_end + from.adj_ack,
            // Use the socket's own numbers: egress translates them.
            ack: from.loc_ack + from.adj_seq,
            window: window_field(from.loc_edge, from.loc_ack, to.rec.wscale_out),
            flags: flag::ACK,
            ts: self.scenario.locals[side].timestamps.then_some(Timestamps {
                val: to.rec.ts_high,
                ecr: from.rx_ts,
            }),
            ..Segment::default()
        };
        self.local_says(side, vec![s]);
    }

    pub(super) fn start_drain(&mut self) {
        for side in Side::BOTH {
            if let Some(local) = &self.locals[side] {
                let received = local.rcv_seq(local.rcv_nxt) - self.flow.leg(side).adj_seq;
                self.flow.note_received(side, received, local.got_fin());
            }
        }
        let mut offsets = [Offset::default(); 2];
        for side in Side::BOTH {
            if let Some(to) = &self.locals[side.other()] {
                let now = self.now + 1;
                offsets[side] = Offset::between(self.flow.leg(side).rx_ts, to.clock(now));
            }
        }
        let flags = match (self.scenario.keep, self.scenario.pause) {
            (false, _) => 0,
            (true, false) => slot_flag::KEEP,
            (true, true) => slot_flag::KEEP | slot_flag::PAUSE,
        };
        if self.flow.start_drain(offsets, flags) {
            (self.daemon.drained_at, self.daemon.doubted_at) = (None, None);
            self.enter_phase(Phase::Drain, 0, 0);
            for side in Side::BOTH {
                self.announce(side);
            }
        }
    }

    pub(super) fn snapshot(&self, side: Side) -> Option<DirectionSnapshot> {
        let (from, to) = (self.flow.leg(side), self.flow.leg(side.other()));
        let local = self.locals[side].as_ref()?;
        let far = self.locals[side.other()].as_ref()?;
        let held: i64 = self.daemon.pump[side].held.iter().map(|r| r.len).sum();
        Some(DirectionSnapshot {
            held: held as u64,
            unread: local.unread as u32,
            copied: local.copied() - from.adj_seq,
            cut: from.cut,
            acknowledged: to.rec.rx_ack,
            offset: from.rec.seq_off,
            send_queue: far.unacknowledged() as u32,
        })
    }

    /// Lowers the noted acknowledgements to those that the sockets accepted, so that the drain waits for the rest.
    fn believe_sockets(&mut self) {
        self.stats.add("sockets believed");
        self.daemon.doubted_at = None;
        for side in Side::BOTH {
            let Some(una) = self.locals[side].as_ref().map(|l| l.state().snd_una) else {
                continue;
            };
            let una = una - self.flow.leg(side).adj_ack;
            self.flow.disbelieve(side, una);
        }
    }

    pub(super) fn drain(&mut self) {
        self.pump();
        if self.flow.slot.mode != Mode::Drain {
            return;
        }
        let snapshots: Vec<_> = Side::BOTH.iter().filter_map(|&s| self.snapshot(s)).collect();
        let [a, b] = snapshots[..] else { return };
        // Bytes out of order in a socket would be elsewhere in the stream after a wake.
        let early = self.locals.iter().flatten().any(|l| l.has_early());
        for (side, d) in [(Side::Client, a), (Side::Server, b)] {
            if d.held == 0 && d.unread == 0 && !early && d.send_queue == 0 {
                self.flow.slot.leg[side].delivered = d.copied;
            }
        }
        let ends = self.daemon.pump.iter().all(|p| p.eof == p.shut);
        if !contradicted(&a) && !contradicted(&b) {
            self.daemon.doubted_at = None;
        } else if self.now > *self.daemon.doubted_at.get_or_insert(self.now) + 20 * MS {
            self.believe_sockets();
        }
        if ends && drained(&a) && drained(&b) {
            let at = *self.daemon.drained_at.get_or_insert(self.now);
            if !early && parkable(&a) && parkable(&b) {
                self.tasks.push(Task::Finish(Finish::new([a.cut, b.cut], true)));
                self.enter_phase(Phase::Finishing, 60 * MS, 60 * MS);
            } else if self.now > at + 20 * MS {
                self.tasks.push(Task::Finish(Finish::new([a.cut, b.cut], false)));
                self.enter_phase(Phase::Finishing, 0, 0);
            }
            return;
        }
        self.inject();
        if self.rng.chance(20) {
            self.random_trap();
        } else if self.rng.chance(20) {
            self.wake(Mode::Drain);
        }
    }

    pub fn finished(&mut self, mode: Mode) {
        if mode != Mode::Final {
            self.stats.add("finish refused");
            self.enter_phase(Phase::Drain, 0, 0);
            return;
        }
        let wakeable = self.flow.slot.flags & slot_flag::WAKEABLE != 0;
        self.stats.add(if wakeable {
            "parked"
        } else {
            "drained, not parkable"
        });
        self.check_parked();
        self.enter_phase(Phase::Dormant, 0, if wakeable { 60 * MS } else { 0 });
    }
}
