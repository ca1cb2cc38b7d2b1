//! What user space does: it relays, splices and takes back.

use std::collections::VecDeque;

use longsplice_core::{
    drain::{DirectionSnapshot, drained, parkable},
    machine::{Finish, Mode, Placement, Segment, Side, Transfer, Wake, flag, owed, seen, slot_flag},
    seq::{Offset, Seq},
};

use super::{
    tcp::{MS, Run, Time},
    world::{Event, Task, World, show},
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
    /// UNDRAIN.
    Awake,
    /// In nobody's table: each leg for itself.
    Alone,
    Over,
}

/// One direction of the relay.
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
    pub drained_at: Option<Time>,
    pub cycles: u32,
    pub adj: [Offset; 4],
    /// The peers' timestamps: a rebuilt socket does not know its peer's.
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
            drained_at: None,
            cycles: 0,
            adj: [Offset::default(); 4],
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
/// What the relay holds at most in a direction.
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

    fn enter_phase(&mut self, phase: Phase, low: Time, high: Time) {
        self.note(|| format!("daemon: {phase:?}"));
        self.daemon.phase = phase;
        self.daemon.until = self.now + self.rng.between(low, high);
    }

    fn tick_phase(&mut self) {
        let mode = self.flow.slot.mode;
        if self.is_slotted() && mode == Mode::Aborted {
            self.give_up();
            return;
        }
        if self.is_slotted()
            && mode == Mode::Undrain
            && matches!(self.daemon.phase, Phase::Drain | Phase::Dormant)
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
            Phase::Awake => self.awake(),
            Phase::Alone => {
                self.pump();
                // What a socket holds out of order was not noted.
                let early = self.locals.iter().flatten().any(|l| l.has_early());
                if due && !early && self.backlog == 0 && !self.locals.iter().flatten().any(|l| l.dead) {
                    self.register(self.daemon.adj);
                    self.enter_phase(Phase::Relay, 0, 20 * MS);
                }
            }
            Phase::Finishing | Phase::Releasing | Phase::Attaching | Phase::Over => {}
        }
    }

    /// A socket was reset: so is the other.
    fn give_up(&mut self) {
        self.doomed = true;
        for side in Side::BOTH {
            self.abort_local(side);
        }
        self.flow.unregister();
        self.enter_phase(Phase::Over, 0, 0);
    }

    fn abort_local(&mut self, side: Side) {
        let mut out = Vec::new();
        if let Some(local) = &mut self.locals[side.index()] {
            local.abort(self.now, &mut out);
        }
        self.replace_local(side, None);
        self.local_says(side, out);
    }

    /// Moves what can be moved.
    pub fn pump(&mut self) {
        for side in Side::BOTH {
            let (i, j) = (side.index(), side.other().index());
            let (mut said, mut read) = (Vec::new(), Vec::new());
            let (Some(x), Some(o)) = (self.locals[i].clone(), self.locals[j].clone()) else {
                return;
            };
            if x.dead || o.dead {
                self.give_up();
                return;
            }
            let (mut x, mut o) = (x, o);
            let d = &mut self.daemon.pump[i];
            loop {
                while let Some(run) = d.held.front().copied() {
                    let n = o.can_write().min(run.len);
                    if n == 0 {
                        break;
                    }
                    o.write(self.now, Run { at: run.at, len: n }, &mut said);
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
                let runs = x.read(self.now, HELD, &mut read);
                d.eof |= x.eof;
                if runs.is_empty() {
                    break;
                }
                d.held.extend(runs);
            }
            if d.eof && d.held.is_empty() && !d.shut {
                d.shut = true;
                o.shutdown(self.now, &mut said);
            }
            self.locals[i] = Some(x);
            self.locals[j] = Some(o);
            self.local_says(side.other(), said);
            self.local_says(side, read);
        }
    }

    fn relay(&mut self, due: bool) {
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
            self.flow.slot.leg[side.index()].room = room;
        }
        self.flow.slot.flags = slot_flag::COUPLE;
        self.random_trap();
        self.enter_phase(Phase::Coupling, 200 * MS, 600 * MS);
    }

    fn fins(&self) -> bool {
        Side::BOTH
            .iter()
            .any(|&s| self.flow.record(s).is_some_and(|r| r.seen & seen::FIN != 0))
    }

    fn part(&mut self) {
        let legs = self.flow.slot.leg;
        if !self.tasks.is_empty() {
            return;
        }
        self.daemon.rx_ts = legs.map(|x| Some(x.rx_ts));
        self.daemon.adj = [legs[0].adj_seq, legs[0].adj_ack, legs[1].adj_seq, legs[1].adj_ack];
        self.disarm();
        self.flow.part();
        self.stats.add("legs alone");
        self.enter_phase(Phase::Alone, MS, 30 * MS);
    }

    fn couple(&mut self, due: bool) {
        self.pump();
        let mut ready = true;
        let mut announce = Vec::new();
        for side in Side::BOTH {
            let (x, o) = (self.flow.leg(side), self.flow.leg(side.other()));
            let allowed = o.rec.rx_edge + o.rec.ack_off;
            let eof = self.daemon.pump[side.index()].shut;
            if (!eof && x.tx_edge.after(allowed)) || x.rec.rx_end.after(allowed) {
                ready = false;
            }
            if x.tx_edge.after(allowed) || (x.tx_edge.before(allowed) && x.tx_edge - x.rec.rx_end < 2000) {
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

    /// An empty segment in the socket's name: egress puts the right window in.
    fn announce(&mut self, side: Side) {
        let x = *self.flow.leg(side);
        let o = self.flow.leg(side.other());
        let s = Segment {
            seq: x.loc_end + x.adj_ack,
            ack: x.tx_ack + x.adj_seq,
            window: longsplice_core::machine::window_field(x.loc_edge, x.tx_ack, o.rec.wscale_out),
            flags: flag::ACK,
            ts: self.scenario.locals[side.index()].timestamps.then_some(
                longsplice_core::machine::Timestamps {
                    val: o.rec.ts_high,
                    ecr: x.rx_ts,
                },
            ),
            ..Segment::default()
        };
        self.local_says(side, vec![s]);
    }

    fn start_drain(&mut self) {
        let mut offsets = [Offset::default(); 2];
        for side in Side::BOTH {
            if let Some(o) = &self.locals[side.other().index()] {
                let now = self.now + 1;
                offsets[side.index()] = Offset::between(self.flow.leg(side).rx_ts, o.clock(now));
            }
        }
        let keep = if self.scenario.keep { slot_flag::KEEP } else { 0 };
        if self.flow.start_drain(offsets, keep) {
            self.daemon.drained_at = None;
            self.enter_phase(Phase::Drain, 0, 0);
            for side in Side::BOTH {
                self.announce(side);
            }
        }
    }

    fn snapshot(&self, side: Side) -> Option<DirectionSnapshot> {
        let (x, o) = (self.flow.leg(side), self.flow.leg(side.other()));
        let local = self.locals[side.index()].as_ref()?;
        let far = self.locals[side.other().index()].as_ref()?;
        let held: i64 = self.daemon.pump[side.index()].held.iter().map(|r| r.len).sum();
        Some(DirectionSnapshot {
            held: held as u64,
            unread: local.unread as u32,
            copied: local.copied() - x.adj_seq,
            cut: x.cut,
            acknowledged: o.rec.rx_ack,
            offset: x.rec.seq_off,
            send_queue: far.unacknowledged() as u32,
        })
    }

    fn drain(&mut self) {
        self.pump();
        if self.flow.slot.mode != Mode::Drain {
            return;
        }
        let snapshots: Vec<_> = Side::BOTH.iter().filter_map(|&s| self.snapshot(s)).collect();
        let [a, b] = snapshots[..] else { return };
        // What stands out of order in a socket would stand elsewhere in the stream after a wake.
        let early = self.locals.iter().flatten().any(|l| l.has_early());
        for (side, d) in [(Side::Client, a), (Side::Server, b)] {
            if d.held == 0 && d.unread == 0 && !early && d.send_queue == 0 {
                self.flow.slot.leg[side.index()].read_to = d.copied;
            }
        }
        let ends = self.daemon.pump.iter().all(|p| p.eof == p.shut);
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
            self.tasks.push(Task::Wake(Wake::from(Mode::Drain)));
        }
    }

    fn over(&self) -> bool {
        let seen_of = |s| self.flow.record(s).map_or(0, |r| r.seen);
        let (a, b) = (seen_of(Side::Client), seen_of(Side::Server));
        (a | b) & seen::RST != 0 || a & b & seen::FIN != 0
    }

    fn dormant(&mut self, due: bool, mode: Mode) {
        if mode != Mode::Final {
            return;
        }
        let wakeable = self.flow.slot.flags & slot_flag::WAKEABLE != 0;
        if self.rng.chance(30) {
            self.random_trap();
        }
        if !due && wakeable {
            return;
        }
        if !wakeable || self.over() || self.rng.chance(self.scenario.detach) {
            self.tasks.push(Task::Transfer(Transfer::new(
                longsplice_core::machine::Direction::Release,
            )));
            self.enter_phase(Phase::Releasing, 0, 0);
        } else {
            self.tasks.push(Task::Wake(Wake::from(Mode::Final)));
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

    pub fn transferred(&mut self) {
        match self.daemon.phase {
            Phase::Releasing if self.is_slotted() => {
                self.stats.add("release lost to a wake");
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

    fn detached(&mut self, due: bool) {
        let trapped = !self.daemon.held.is_empty();
        if !self.tasks.is_empty() || !(due || trapped) || !self.daemon.alive {
            return;
        }
        if self.flow.slot.mode != Mode::Free {
            // What a segment noted in the slot while it was left.
            Transfer::new(longsplice_core::machine::Direction::Release).run(&mut self.flow);
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
        self.tasks.push(Task::Transfer(Transfer::new(
            longsplice_core::machine::Direction::Attach,
        )));
        self.enter_phase(Phase::Attaching, 0, 0);
    }

    /// Two sockets where the segments stopped.
    fn rebuild(&mut self) {
        use longsplice_core::machine::Rebuilt;
        let mut rebuilt = Vec::new();
        let records = Side::BOTH.map(|s| self.flow.leg(s).rec);
        let base = records.map(|r| {
            if r.seen & seen::FIN != 0 {
                r.rx_end - 1
            } else {
                r.rx_end
            }
        });
        for side in Side::BOTH {
            let (i, j) = (side.index(), side.other().index());
            let snd = base[j] + records[j].seq_off;
            let promised = records[j].rx_edge + records[j].ack_off;
            let edge = if promised.after(base[i]) {
                promised
            } else {
                base[i]
            };
            let mut config = self.scenario.locals[i];
            if let Some(last) = self.last_ts[i] {
                let clock = Seq::new((self.now / MS) as u32);
                config.ts_offset = ((last + 2) - clock) as u32;
                self.scenario.locals[i].ts_offset = config.ts_offset;
            }
            let window = i64::from((records[i].rx_edge - snd).max(0));
            let room = i64::from(edge - base[i]);
            let socket = super::tcp::Tcp::rebuilt(config, snd, base[i], window, room, self.now);
            self.replace_local(side, Some(socket));
            rebuilt.push(Rebuilt {
                rcv_nxt: base[i],
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
            self.tasks.push(Task::Wake(Wake::from(Mode::Final)));
        }
    }

    /// The pair is back in control mode.
    fn woken(&mut self) {
        self.daemon.cycles += 1;
        self.stats.add("cycles");
        self.disarm();
        self.enter_phase(Phase::Awake, 0, 0);
        for side in Side::BOTH {
            let x = *self.flow.leg(side);
            if x.owed & owed::FIN != 0 {
                let s = Segment {
                    seq: x.base,
                    ack: x.rec.rx_ack,
                    window: longsplice_core::machine::window_field(
                        x.rec.rx_edge,
                        x.rec.rx_ack,
                        x.rec.wscale_in,
                    ),
                    flags: flag::FIN | flag::ACK,
                    ts: self.scenario.locals[side.index()].timestamps.then_some(
                        longsplice_core::machine::Timestamps {
                            val: x.rx_ts,
                            ecr: Seq::default(),
                        },
                    ),
                    ..Segment::default()
                };
                self.stats.add("a forwarded FIN given to a socket");
                self.at(self.now, Event::ToForwarder(side, s));
            }
        }
    }

    fn awake(&mut self) {
        self.inject();
        self.pump();
        if self.flow.slot.mode == Mode::Undrain && self.daemon.held.is_empty() && self.flow.undrained() {
            let pause = if self.rng.chance(300) { 0 } else { 40 * MS };
            self.enter_phase(Phase::Relay, 0, pause);
        }
    }

    pub fn hold(&mut self, side: Side, s: Segment) {
        if self.daemon.held.len() < 200 && self.daemon.alive {
            self.daemon.held.push((side, s));
        }
    }

    /// What was held comes in once more.
    fn inject(&mut self) {
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

    fn random_trap(&mut self) {
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

    /// Arms a trap for what a side sends, beyond so many bytes more.
    pub fn trap(&mut self, side: Side, ahead: u64) {
        let Some(rec) = self.flow.record(side).copied() else {
            return;
        };
        if !self.daemon.alive || rec.placement == Placement::Alone {
            return;
        }
        let at = rec.rx_end + 1 + ahead as u32;
        self.flow.arm(side, at);
        let sure = self.tasks.iter().all(|t| !matches!(t, Task::Packet(_)));
        self.trap_floor[side.index()] = sure.then_some(at - 1);
        self.note(|| format!("trap for {side:?} at {at}"));
        self.stats.add("traps");
    }

    /// SIGKILL, if no program is running.
    pub fn kill_now(&mut self) {
        if self.daemon.alive && self.daemon.phase != Phase::Over && self.tasks.is_empty() {
            self.kill();
        }
    }

    fn disarm(&mut self) {
        for side in Side::BOTH {
            self.flow.disarm(side);
            self.trap_floor[side.index()] = None;
        }
    }

    /// SIGKILL.
    fn kill(&mut self) {
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

    /// A daemon that finds what another one left.
    pub fn succeed(&mut self) {
        if !self.tasks.is_empty() {
            self.at(self.now + MS, Event::Successor);
            return;
        }
        self.flow.switch(Mode::Freeze, Mode::Final);
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
        Transfer::new(longsplice_core::machine::Direction::Release).run(&mut self.flow);
        self.enter_phase(Phase::Detached, MS, 50 * MS);
        self.at(self.now + TICK, Event::Daemon);
    }
}
