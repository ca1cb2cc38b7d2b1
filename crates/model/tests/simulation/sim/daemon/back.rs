//! Goes from splice to relay: wakes, held segments, traps.

use longsplice_core::{coupling::LEAST_WINDOW, seq::Seq};
use longsplice_model::{
    Mode, Placement, Segment, Side, Timestamps, Wake, bypassed, flag, slot_flag, window_field,
};

use super::Phase;
use crate::sim::{
    tcp::MS,
    world::{Event, Task, World, show},
};

impl World {
    /// Wakes the pair by user space.
    pub fn wake(&mut self, from: Mode) {
        self.keep_promises();
        self.tasks.push(Task::Wake(Wake::from(from)));
    }

    /// Gives the sockets room for all that their peers were promised because they pause at a trap.
    pub(super) fn keep_promises(&mut self) {
        if self.flow.slot.flags & slot_flag::PAUSE == 0 {
            return;
        }
        for side in Side::BOTH {
            let (from, to) = (*self.flow.leg(side), *self.flow.leg(side.other()));
            let Some(local) = &mut self.locals[side] else {
                continue;
            };
            let promised = match from.rec.armed {
                true => (to.rec.rx_edge + to.rec.ack_off)
                    .min(from.rec.trap + LEAST_WINDOW)
                    .max(from.tx_edge),
                false => from.tx_edge,
            };
            let missing = (promised - from.rec.rx_end.max(from.cut)) - (from.loc_edge - from.cut);
            if missing > 0 {
                local.rcv_edge += i64::from(missing);
                let leg = &mut self.flow.slot.leg[side];
                leg.loc_edge = leg.loc_edge + missing as u32;
                self.stats.add("windows widened");
            }
        }
    }

    /// Returns the pair to control mode.
    pub(super) fn woken(&mut self) {
        self.daemon.cycles += 1;
        self.stats.add("cycles");
        self.disarm();
        self.enter_phase(Phase::Awake, 0, 0);
        for side in Side::BOTH {
            let from = *self.flow.leg(side);
            if from.bypassed & bypassed::FIN != 0 {
                let s = Segment {
                    seq: from.base,
                    ack: from.rec.rx_ack,
                    window: window_field(from.rec.rx_edge, from.rec.rx_ack, from.rec.wscale_in),
                    flags: flag::FIN | flag::ACK,
                    ts: self.scenario.locals[side].timestamps.then_some(Timestamps {
                        val: from.rx_ts,
                        ecr: Seq::default(),
                    }),
                    ..Segment::default()
                };
                self.stats.add("a forwarded FIN given to a socket");
                self.at(self.now, Event::ToForwarder(side, s));
            }
        }
    }

    pub(super) fn awake(&mut self) {
        self.inject();
        self.pump();
        let mode = self.flow.slot.mode;
        let undrained = mode == Mode::Undrain && self.daemon.held.is_empty() && self.flow.undrained();
        if undrained || mode == Mode::Track {
            let pause = if self.rng.chance(300) { 0 } else { 40 * MS };
            self.enter_phase(Phase::Relay, 0, pause);
        }
    }

    pub fn hold(&mut self, side: Side, s: Segment) {
        if self.daemon.held.len() < 200 && self.daemon.alive {
            self.daemon.held.push((side, s));
        }
    }

    /// Lets the held segments come in once more.
    pub(super) fn inject(&mut self) {
        for (side, s) in std::mem::take(&mut self.daemon.held) {
            let base = self.flow.leg(side).base;
            self.stats.add("injected");
            match s.split(base) {
                Some((low, high)) if self.flow.slot.mode == Mode::Undrain => {
                    self.note(|| format!("split {}", show(&s)));
                    self.at(self.now, Event::ToForwarder(side, low));
                    self.at(self.now, Event::ToForwarder(side, high));
                }
                _ => self.at(self.now, Event::ToForwarder(side, s)),
            }
        }
    }

    pub(super) fn random_trap(&mut self) {
        if !self.rng.chance(self.scenario.trap) {
            return;
        }
        let side = self.rng.pick(&Side::BOTH);
        let ahead = if self.rng.chance(500) {
            0
        } else {
            self.rng.below(20_000)
        };
        self.trap(side, ahead);
    }

    /// Arms a trap for the stream of a side, `ahead` bytes beyond its end.
    pub fn trap(&mut self, side: Side, ahead: u64) {
        let Some(rec) = self.flow.record(side).copied() else {
            return;
        };
        // Arm no trap while user space moves the flow, as in the product.
        let moving = self.tasks.iter().any(|t| matches!(t, Task::Transfer(_)));
        if !self.daemon.alive || rec.placement == Placement::Alone || moving {
            return;
        }
        let at = rec.rx_end + 1 + ahead as u32;
        self.flow.arm(side, at);
        let sure = self.tasks.iter().all(|t| !matches!(t, Task::Packet(_)));
        self.trap_floor[side] = sure.then_some(at - 1);
        self.note(|| format!("trap for {side:?} at {at}"));
        self.stats.add("traps");
    }

    pub(super) fn disarm(&mut self) {
        for side in Side::BOTH {
            self.flow.disarm(side);
            self.trap_floor[side] = None;
        }
    }
}
