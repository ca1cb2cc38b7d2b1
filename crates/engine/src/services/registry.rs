//! Lists the pairs that this process holds, and passes requests to them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use longsplice_core::{reason::RelayReason, seq::Offset};
use longsplice_dataplane::{Direction, Leg, PerSide, Side};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{
    api::{DirectionInfo, FlowId, FlowInfo, FlowState, LegInfo},
    relay::pump::Pump,
};

/// Describes a pair to other tasks.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: FlowId,
    client: LegInfo,
    server: LegInfo,
    since: Instant,
    seen: Mutex<Seen>,
    asked_back: AtomicBool,
    to_end: AtomicBool,
    ask: Notify,
    /// Bytes that have passed before this call.
    earlier: PerSide<u64>,
    relayed: PerSide<AtomicU64>,
    /// Round-trip times of the legs, in microseconds; 0: not known.
    round_trips: PerSide<AtomicU64>,
}

#[derive(Debug)]
struct Seen {
    state: FlowState,
    reason: Option<RelayReason>,
    active: Instant,
    translated: PerSide<DirectionInfo>,
    /// True if a splice is asked for, whatever the policy.
    asked: bool,
    /// Channels to the tasks that wait for its outcome.
    waiting: Vec<oneshot::Sender<Attempt>>,
}

/// Outcome of a splice that was asked for: the drain has begun, or the reason that it has not.
pub(crate) type Attempt = Result<(), RelayReason>;

impl Entry {
    /// Describes a pair that was handed over first at `since`. `earlier`: the bytes that have passed before this call.
    pub(crate) fn new(
        id: FlowId,
        PerSide { client, server }: PerSide<LegInfo>,
        since: Instant,
        earlier: PerSide<u64>,
    ) -> Entry {
        let now = Instant::now();
        let seen = Seen {
            state: FlowState::Relay,
            reason: None,
            active: now,
            translated: Default::default(),
            asked: false,
            waiting: Vec::new(),
        };
        Entry {
            id,
            client,
            server,
            since,
            seen: Mutex::new(seen),
            asked_back: AtomicBool::new(false),
            to_end: AtomicBool::new(false),
            ask: Notify::new(),
            earlier,
            relayed: Default::default(),
            round_trips: Default::default(),
        }
    }

    pub(crate) fn set_state(&self, state: FlowState) {
        self.seen.lock().state = state;
    }

    pub(crate) fn state(&self) -> FlowState {
        self.seen.lock().state
    }

    pub(crate) fn set_reason(&self, reason: Option<RelayReason>) {
        self.seen.lock().reason = reason;
    }

    pub(crate) fn reason(&self) -> Option<RelayReason> {
        self.seen.lock().reason
    }

    /// Notes the bytes that the pump has moved.
    pub(crate) fn note_relayed(&self, pump: &Pump) {
        for side in Side::BOTH {
            self.relayed[side].store(pump.bytes(side), Ordering::Relaxed);
        }
        self.seen.lock().active = Instant::now();
    }

    /// Notes the round-trip times of the legs; zero: not known.
    pub(crate) fn note_round_trips(&self, times: PerSide<Duration>) {
        for side in Side::BOTH {
            let micros = u64::try_from(times[side].as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
            self.round_trips[side].store(micros, Ordering::Relaxed);
        }
    }

    /// Notes the kernel half's counts of a dormant flow, relayed bytes included.
    pub(crate) fn note_translated(&self, directions: &PerSide<Direction>) {
        let mut seen = self.seen.lock();
        for (info, d) in seen.translated.iter_mut().zip(directions) {
            *info = direction_info(d);
        }
        let PerSide { client, server } = directions.map(|d| d.idle);
        let active = Instant::now().checked_sub(client.min(server));
        seen.active = active.map_or(seen.active, |active| active.max(seen.active));
    }

    /// Asks for a splice now, whatever the pair's policy.
    pub(crate) fn ask(&self) {
        self.seen.lock().asked = true;
        self.ask.notify_one();
    }

    /// Asks for a splice now and returns a channel for the outcome. `None`: it is spliced, or its drain has begun.
    pub(crate) fn ask_and_wait(&self) -> Option<oneshot::Receiver<Attempt>> {
        let mut seen = self.seen.lock();
        if !matches!(
            seen.state,
            FlowState::Relay | FlowState::Undraining | FlowState::Coupling
        ) {
            return None;
        }
        let (tell, told) = oneshot::channel();
        seen.waiting.retain(|one| !one.is_closed());
        seen.waiting.push(tell);
        seen.asked = true;
        drop(seen);
        self.ask.notify_one();
        Some(told)
    }

    /// Returns true if a splice was asked for, and has no outcome yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.seen.lock().asked
    }

    /// Tells the tasks that asked for a splice why there is none now.
    pub(crate) fn refuse(&self, reason: RelayReason) {
        self.seen.lock().answer(Err(reason));
    }

    /// Notes that the drain has begun, and tells the tasks that asked for it.
    pub(crate) fn begin_drain(&self) {
        let mut seen = self.seen.lock();
        seen.state = FlowState::Draining;
        seen.reason = None;
        seen.answer(Ok(()));
    }

    /// Asks the pair to come back from its splice.
    pub(crate) fn ask_back(&self) {
        self.asked_back.store(true, Ordering::SeqCst);
        self.ask.notify_one();
    }

    /// Returns true if a task has asked for that since the last call.
    pub(crate) fn take_ask_back(&self) -> bool {
        self.asked_back.swap(false, Ordering::SeqCst)
    }

    /// Asks the pair to come back from its splice, and to reset both ends.
    pub(crate) fn end(&self) {
        self.to_end.store(true, Ordering::SeqCst);
        self.ask_back();
    }

    /// Returns true if a task has asked for that.
    pub(crate) fn is_to_end(&self) -> bool {
        self.to_end.load(Ordering::SeqCst)
    }

    pub(crate) async fn asked(&self) {
        self.ask.notified().await;
    }

    /// Returns the time at which the pair was handed over first.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Returns the bytes that have passed before this call.
    pub(crate) fn earlier(&self) -> PerSide<u64> {
        self.earlier
    }

    pub(crate) fn info(&self) -> FlowInfo {
        let seen = self.seen.lock();
        let direction = |side: Side| {
            let mut translated = seen.translated[side];
            if seen.state == FlowState::Relay {
                (translated.seq_offset, translated.identity) = (Offset::default(), false);
            }
            let relayed = self.earlier[side] + self.relayed[side].load(Ordering::Relaxed);
            DirectionInfo {
                bytes: translated.bytes.max(relayed),
                ..translated
            }
        };
        let round_trip =
            |side: Side| Some(self.round_trips[side].load(Ordering::Relaxed)).filter(|&time| time > 0);
        FlowInfo {
            id: self.id,
            client: self.client,
            server: self.server,
            state: seen.state,
            reason: seen.reason,
            to_server: direction(Side::Client),
            to_client: direction(Side::Server),
            age_seconds: self.since.elapsed().as_secs_f64(),
            idle_seconds: Some(seen.active.elapsed().as_secs_f64()),
            client_round_trip_us: round_trip(Side::Client),
            server_round_trip_us: round_trip(Side::Server),
            rules: Vec::new(),
            ruled: None,
        }
    }
}

impl Seen {
    fn answer(&mut self, attempt: Attempt) {
        self.asked = false;
        for one in self.waiting.drain(..) {
            // The receiver may have stopped waiting.
            let _ = one.send(attempt);
        }
    }
}

/// Returns a record's counters.
pub(crate) fn direction_info(d: &Direction) -> DirectionInfo {
    DirectionInfo {
        bytes: d.bytes,
        fin: d.fin,
        seq_offset: d.seq_off,
        identity: d.identity,
    }
}

/// Holds all pairs.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: Mutex<HashMap<FlowId, Arc<Entry>>>,
}

impl Registry {
    /// Adds an entry until the guard is dropped.
    pub(crate) fn add(&self, entry: Entry) -> Registered<'_> {
        let entry = Arc::new(entry);
        self.entries.lock().insert(entry.id, entry.clone());
        Registered {
            registry: self,
            entry,
        }
    }

    pub(crate) fn get(&self, id: FlowId) -> Option<Arc<Entry>> {
        self.entries.lock().get(&id).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Returns every pair, with the leg of its client.
    pub(crate) fn list(&self) -> Vec<(FlowId, Leg)> {
        let entries = self.entries.lock();
        let one = |e: &Arc<Entry>| (e.id, Leg::new(e.client.peer, e.client.local));
        entries.values().map(one).collect()
    }
}

/// Keeps an entry listed.
#[derive(Debug)]
pub(crate) struct Registered<'a> {
    registry: &'a Registry,
    entry: Arc<Entry>,
}

impl std::ops::Deref for Registered<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        &self.entry
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.registry.entries.lock().remove(&self.entry.id);
        // Dropping the channels tells the tasks that still wait.
        self.entry.seen.lock().waiting.clear();
    }
}
