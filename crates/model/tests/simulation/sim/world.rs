//! Simulates two ends, the forwarder between them, and time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use longsplice_core::seq::{Offset, Seq};
use longsplice_model::{
    Finish, Flow, Freeze, Passage, Placement, Segment, Side, Start, Steps, TakeOver, Transfer, Wake, traits,
};

use super::{
    daemon::Daemon,
    rng::Rng,
    scenario::Scenario,
    tcp::{MS, Tcp, Time},
};

#[derive(Debug, Clone, Copy)]
pub enum Event {
    ToForwarder(Side, Segment),
    /// The segment comes in once more, for its acknowledgement only.
    Acknowledge(Side, Segment),
    ToEnd(Side, Segment),
    ToLocal(Side, Segment),
    EndTimer(Side),
    LocalTimer(Side, u32),
    App(Side),
    Daemon,
    Forge,
    Successor,
}

/// Program that a CPU is running.
#[derive(Debug, Clone, Copy)]
pub enum Task {
    Packet(Passage),
    Wake(Wake),
    Finish(Finish),
    Freeze(Freeze),
    TakeOver(TakeOver),
    Transfer(Transfer),
}

#[derive(Debug, Default, Clone)]
pub struct Stats {
    pub counts: BTreeMap<&'static str, u64>,
}

impl Stats {
    pub fn of(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    pub fn add(&mut self, name: &'static str) {
        self.add_n(name, 1);
    }

    pub fn add_n(&mut self, name: &'static str, n: u64) {
        *self.counts.entry(name).or_default() += n;
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct App {
    pub read: i64,
    pub asleep_until: Time,
}

pub struct World {
    pub rng: Rng,
    pub scenario: Scenario,
    pub now: Time,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    pending: BTreeMap<u64, Event>,
    next_event: u64,
    pub ends: [Tcp; 2],
    pub locals: [Option<Tcp>; 2],
    /// Number of sockets that a leg has had: a timer of an old one is ignored.
    pub generation: [u32; 2],
    pub apps: [App; 2],
    pub flow: Flow,
    pub tasks: Vec<Task>,
    pub(super) early: u32,
    pub daemon: Daemon,
    pub stopping: bool,
    /// True if both ends must see a reset in the end.
    pub doomed: bool,
    pub violation: Option<String>,
    pub stats: Stats,
    pub trace: Option<VecDeque<String>>,
    pub last_ts: [Option<Seq>; 2],
    /// Lowest right edge that a coupling offered to an end that may not have heard of it, as a position of its stream,
    /// and the time of the last such offer.
    pub coupled: [Option<(i64, Time)>; 2],
    /// True if segments come in the order in which they were sent, from beginning to end.
    pub orderly: bool,
    /// Ends of the payload that the local sockets have taken, as positions of the streams.
    pub taken: [u64; 2],
    /// Number of segments on their way from tc to a local socket.
    pub backlog: u32,
    /// Begin of the payload of a side that must not be forwarded while its trap is armed.
    pub trap_floor: [Option<Seq>; 2],
    pub(super) timers: [[Option<Time>; 2]; 2],
}

impl World {
    pub fn new(seed: u64, trace: bool) -> World {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::draw(&mut rng);
        World::with(rng, scenario, trace)
    }

    pub fn with(rng: Rng, scenario: Scenario, trace: bool) -> World {
        let s = &scenario;
        let pair = |i: usize| {
            let [out, back] = s.isn[i];
            let window =
                |c: &super::tcp::Config| c.room.min(65_535 << c.our_scale) >> c.our_scale << c.our_scale;
            let mut end = Tcp::new(s.ends[i], out, back, window(&s.locals[i]), 0);
            let mut local = Tcp::new(s.locals[i], back, out, window(&s.ends[i]), 0);
            // The handshake told the ends these timestamps.
            end.ts_recent = Some(Seq::new(s.locals[i].ts_offset));
            local.ts_recent = Some(Seq::new(s.ends[i].ts_offset));
            (end, local)
        };
        let ((a, la), (b, lb)) = (pair(0), pair(1));
        let mut world = World {
            rng,
            now: MS,
            events: BinaryHeap::new(),
            pending: BTreeMap::new(),
            next_event: 0,
            ends: [a, b],
            locals: [Some(la), Some(lb)],
            generation: [0; 2],
            apps: [App::default(); 2],
            flow: Flow::default(),
            tasks: Vec::new(),
            early: 0,
            daemon: Daemon::default(),
            stopping: false,
            doomed: false,
            violation: None,
            stats: Stats::default(),
            trace: trace.then(VecDeque::new),
            last_ts: [None; 2],
            coupled: [None; 2],
            orderly: scenario.is_calm() && scenario.interleave == 0,
            backlog: 0,
            taken: [0; 2],
            trap_floor: [None; 2],
            timers: [[None; 2]; 2],
            scenario,
        };
        world.register([[Offset::default(); 2]; 2]);
        for side in Side::BOTH {
            world.at(world.now, Event::App(side));
        }
        world.at(world.now, Event::Daemon);
        if world.scenario.forge > 0 {
            world.at(world.now + 5 * MS, Event::Forge);
        }
        world
    }

    /// Puts the pair into the table. `adj`: the mapping of each side's leg.
    pub fn register(&mut self, adj: [[Offset; 2]; 2]) {
        let (Some(a), Some(b)) = (&self.locals[0], &self.locals[1]) else {
            return;
        };
        let states = [a.state(), b.state()];
        // The next byte to be read from the sender is the next to be written to the far end.
        let (ca, wa) = (a.copied() - adj[0][0], a.snd_seq(a.write) - adj[0][1]);
        let (cb, wb) = (b.copied() - adj[1][0], b.snd_seq(b.write) - adj[1][1]);
        let held = self.daemon.held_bytes();
        let offsets = [
            Offset::between(ca, wb + held[0]),
            Offset::between(cb, wa + held[1]),
        ];
        let mut starts = [Start::default(); 2];
        for side in Side::BOTH {
            let j = side.other();
            let (own, far) = (&self.scenario.locals[side], &self.scenario.locals[j]);
            let start = &mut starts[side];
            start.socket = states[side];
            if let Some(ts) = self.daemon.rx_ts[side] {
                let known = start.socket.ts_recent;
                start.socket.ts_recent = if known.raw() == 0 { ts } else { known.max(ts) };
            }
            [start.adj_seq, start.adj_ack] = adj[side];
            start.record.seq_off = offsets[side];
            start.record.ack_off = -offsets[j];
            start.record.wscale_in = own.peer_scale;
            start.record.wscale_out = far.our_scale;
            start.record.traits = if own.timestamps { traits::TIMESTAMPS } else { 0 }
                | if own.sack { traits::SACK } else { 0 }
                | if own.sack && !far.sack {
                    traits::BLANK_SACK
                } else {
                    0
                };
            start.ts_high = self.last_ts[side].unwrap_or(self.ts_clock(side));
        }
        self.flow = Flow::register(&starts);
    }

    pub(super) fn ts_clock(&self, side: Side) -> Seq {
        Seq::new(self.scenario.locals[side].ts_offset)
    }

    pub fn at(&mut self, time: Time, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((time, self.next_event)));
        self.pending.insert(self.next_event, event);
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push_back(format!("{:>9} {}", now, text()));
            if trace.len() > 100_000 {
                trace.pop_front();
            }
        }
    }

    pub fn fail(&mut self, what: String) {
        if self.violation.is_none() {
            self.note(|| format!("VIOLATION {what}"));
            self.violation = Some(what);
        }
    }

    /// Takes one step of the world. Returns false if nothing will happen any more.
    pub fn step(&mut self) -> bool {
        if !self.tasks.is_empty() && (self.tasks.len() > 2 || self.early > 6 || self.rng.chance(600)) {
            self.step_task();
            return true;
        }
        let Some(Reverse((time, id))) = self.events.pop() else {
            return false;
        };
        if self.tasks.is_empty() {
            self.early = 0;
            self.now = self.now.max(time);
        } else {
            // Another CPU runs it meanwhile: time stands still.
            self.early += 1;
        }
        let Some(event) = self.pending.remove(&id) else {
            return true;
        };
        self.handle(event);
        true
    }

    pub(super) fn step_task(&mut self) {
        let i = self.rng.below(self.tasks.len() as u64) as usize;
        let mut task = self.tasks[i];
        match &mut task {
            Task::Packet(p) => {
                if let Some(outcome) = p.step(&mut self.flow) {
                    self.tasks.remove(i);
                    let (side, segment) = p.segment();
                    self.outcome(side, &segment, outcome);
                    return;
                }
            }
            Task::Wake(w) => {
                if let Some(mode) = w.step(&mut self.flow) {
                    self.tasks.remove(i);
                    self.note(|| format!("wake by user space: {mode:?}"));
                    return;
                }
            }
            Task::Finish(f) => {
                if let Some(mode) = f.step(&mut self.flow) {
                    self.tasks.remove(i);
                    self.note(|| format!("finish: {mode:?}"));
                    self.finished(mode);
                    return;
                }
            }
            Task::Freeze(f) => {
                if let Some(mode) = f.step(&mut self.flow) {
                    self.tasks.remove(i);
                    self.note(|| format!("freeze: {mode:?}"));
                    return;
                }
            }
            Task::TakeOver(t) => {
                if let Some(mode) = t.step(&mut self.flow) {
                    self.tasks.remove(i);
                    self.note(|| format!("take over: {mode:?}"));
                    self.taken_over(mode);
                    return;
                }
            }
            Task::Transfer(t) => {
                if t.step(&mut self.flow).is_some() {
                    self.tasks.remove(i);
                    self.transferred();
                    return;
                }
            }
        }
        self.tasks[i] = task;
    }

    pub(super) fn handle(&mut self, event: Event) {
        let mut out = Vec::new();
        match event {
            Event::ToForwarder(side, s) => self.enter(side, s, Passage::new(side, &s)),
            Event::Acknowledge(side, s) => self.enter(side, s, Passage::acknowledgement(side, &s)),
            Event::ToEnd(side, s) => {
                let end = &mut self.ends[side];
                let was_dead = end.dead;
                let (una, edge) = (end.una, end.snd_edge);
                end.on_segment(self.now, &s, &mut out);
                if end.dead && !was_dead {
                    self.note(|| format!("end {side:?} was reset by {s:?}"));
                }
                self.check_promise(side, una, edge);
                self.end_says(side, out);
            }
            Event::ToLocal(side, s) => {
                self.backlog -= 1;
                self.give_to_local(side, &s);
            }
            Event::EndTimer(side) => {
                self.timers[0][side] = None;
                self.ends[side].on_timer(self.now, &mut out);
                self.end_says(side, out);
            }
            Event::LocalTimer(side, generation) => {
                self.timers[1][side] = None;
                if generation == self.generation[side]
                    && let Some(local) = &mut self.locals[side]
                {
                    local.on_timer(self.now, &mut out);
                }
                self.local_says(side, out);
            }
            Event::App(side) => self.app(side),
            Event::Daemon => self.daemon_tick(),
            Event::Forge => {
                let next = self.rng.between(MS, 20 * MS);
                if !self.stopping {
                    self.at(self.now + next, Event::Forge);
                }
                self.forge();
            }
            Event::Successor => self.succeed(),
        }
    }

    pub fn is_slotted(&self) -> bool {
        self.flow.placement(Side::Client) == Some(Placement::Slotted)
    }
}

/// Formats a segment as tcpdump would.
pub fn show(s: &Segment) -> String {
    let flags: String = [(1, 'F'), (2, 'S'), (4, 'R'), (8, 'P'), (16, '.')]
        .iter()
        .filter(|f| s.flags & f.0 != 0)
        .map(|f| f.1)
        .collect();
    let sack: Vec<String> = s.sack.iter().map(|(l, r)| format!("{l}-{r}")).collect();
    format!(
        "[{flags} {}+{} ack {} win {} @{} sack {sack:?}]",
        s.seq, s.len, s.ack, s.window, s.at
    )
}
