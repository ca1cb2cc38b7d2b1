//! Holds the state that all states of a call share.

use std::{io, sync::Arc, time::Duration};

use longsplice_core::{
    advisor::{Period, QueueWatch},
    policy::{DetachPolicy, SplicePolicy},
    seq::Seq,
};
use longsplice_dataplane::{Direction, Mapping, PerSide, Side, monotonic};
use longsplice_repair::options;
use tokio::time::{Instant, sleep_until};

use super::exit::Exit;
use crate::{
    api::{
        Acceleration, FlowId, FlowState, LegInfo, Outstanding, Pair,
        handle::FlowHandle,
        until::{Trap, Until},
    },
    context::Context,
    flow::{Flow, assess},
    kernel::socket::{cookies, prepare_socket},
    relay::{
        gate::Gate,
        idle::Idleness,
        meter::{FullBuffers, Meter},
        pump::{Pump, TURN},
        queue::QueueLimit,
        throttle::Throttle,
        traps::{Distance, Traps},
        yielding::Yielding,
    },
    services::{
        registry::{Entry, Registered},
        stats::Stats,
    },
};

/// Number of rounds of a busy relay before it yields to other connections of the thread.
const ROUNDS: u32 = 16;

/// Event that ends a wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A socket can be read or written, or a deadline has come.
    Proceed,
    /// The process shuts down.
    Stop,
}

/// Step on the way to the parting of two legs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parting {
    pub(super) at: Instant,
    /// True once both ends were told what their sockets take.
    pub(super) is_announced: bool,
}

/// Holds a pair and the state that all states of its call share.
pub(super) struct Session<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) entry: Registered<'a>,
    pub(super) pump: Pump,
    pub(super) gate: Gate,
    pub(super) traps: Traps,
    pub(super) throttle: Throttle,
    pub(super) idle: Idleness,
    /// Time at which bytes passed last, in this call or one before.
    pub(super) active: Instant,
    pub(super) acceleration: Option<Acceleration>,
    pub(super) splice_min: Option<u64>,
    /// Round-trip times of the legs, of their handshakes or as measured before, as far as they are known: for sockets that
    /// have measured none.
    pub(super) round_trips: PerSide<Option<Duration>>,
    /// Limit of the relay's queues, for an accelerated pair.
    pub(super) queue: Option<QueueLimit>,
    pub(super) meter: Meter,
    /// Flow in the kernel half, of a pair that was spliced before, or was to be.
    pub(super) flow: Option<Flow>,
    /// Time at which the legs of that flow part, once it is settled.
    pub(super) parting: Option<Parting>,
    pub(super) splice: SplicePolicy,
    pub(super) detach: DetachPolicy,
    pub(super) outstanding: Outstanding,
    pub(super) one_clock: bool,
    pub(super) legs: PerSide<LegInfo>,
    /// `SO_COOKIE` of both sockets, if they are known.
    pub(super) cookies: Option<PerSide<u64>>,
    /// True for a side whose FIN was passed to the other end.
    pub(super) half_closed: PerSide<bool>,
    /// State of `SO_KEEPALIVE` of the sockets before they were parked.
    pub(super) keepalive: PerSide<bool>,
    /// Rate for the advisor, over whole round trips: a burst or the wait for a window must not count as the stream's
    /// rate.
    pub(super) pace: Meter,
    /// Present period of a pair that is not accelerated, for the advisor.
    pub(super) period: Period,
    /// True if the pair carried little at the last look, and is looked at again when it begins to stream.
    pub(super) is_quiet: bool,
    /// Times at which our buffers were full, for the advisor.
    pub(super) full_buffers: FullBuffers,
    /// Round trips of the legs of an accelerated pair, for the advisor.
    pub(super) queues: PerSide<QueueWatch>,
    /// Part of the pair in a full bottleneck.
    pub(super) yielding: Yielding<'a>,
    pub(super) since: Instant,
    pub(super) rounds: u32,
    /// True if the pair was ever spliced; `spliced_here`: in this call.
    pub(super) spliced: bool,
    pub(super) spliced_here: bool,
    /// Offsets between the sockets' numbers and those on the wire when the splice began.
    pub(super) mappings: PerSide<Mapping>,
    pub(super) handle: Option<FlowHandle>,
    /// True if no data follows behind its traps before the caller has the pair back.
    pub(super) pauses: bool,
    /// See [`Pair::for_trial`].
    pub(super) is_trial: bool,
    /// Bytes that the records have counted of earlier calls.
    pub(super) base_bytes: Option<PerSide<u64>>,
    /// Relayed bytes that have been added to the records.
    pub(super) recorded: PerSide<u64>,
    /// Bytes that have passed without being in the records: those of earlier calls, or in the records of a flow whose legs
    /// have parted.
    pub(super) unrecorded: PerSide<u64>,
    /// End of both streams and of their acknowledgements at the last look.
    pub(super) seen: [Seq; 4],
}

impl<'a> Session<'a> {
    pub(super) fn new(context: &'a Arc<Context>, pair: Pair, until: Until) -> io::Result<Session<'a>> {
        // A replaced socket makes it another pair.
        let before = pair
            .before
            .filter(|b| cookies(&pair.client, &pair.server).is_ok_and(|c| c == b.cookies));
        for socket in [&pair.client, &pair.server] {
            match before {
                Some(_) => options::set_reset_on_close(socket, true)?,
                None => prepare_socket(socket)?,
            }
        }
        let legs = match &before {
            Some(before) => before.legs,
            None => PerSide {
                client: assess::addresses(&pair.client)?,
                server: assess::addresses(&pair.server)?,
            },
        };
        let flow = before.and_then(|_| context.unpaired.take(assess::both(&legs).ok()?));
        let id = match (&flow, &before) {
            (Some(flow), _) => FlowId(flow.serial()),
            (None, Some(before)) if context.is_still_its(before.id) => before.id,
            _ => context.next_id(),
        };
        let paid = before.map_or(pair.paid, |b| {
            (pair.rate_limit).carry_over(&b.rate_limit, b.paid, monotonic())
        });
        let now = Instant::now();
        let mut session = Session {
            context,
            entry: context.registry.add(Entry::new(
                id,
                legs,
                before.map_or(now, |b| b.since),
                before.map_or(PerSide::both(0), |b| b.counted),
            )),
            legs,
            cookies: before.map(|b| b.cookies),
            gate: Gate::new(pair.splice, now)
                .of_length(pair.length)
                .asking_after(pair.splice_min),
            pump: Pump::new(pair.client, pair.server),
            traps: Traps::new(until, pair.successor, now),
            throttle: Throttle::new(pair.rate_limit, paid),
            idle: Idleness::new(pair.idle, now),
            active: before.map_or(now, |b| b.active(now)),
            acceleration: pair.acceleration,
            splice_min: pair.splice_min,
            round_trips: before.map_or(PerSide::both(None), |b| b.round_trips),
            queue: pair.acceleration.map(|a| QueueLimit::new(a.queue, now)),
            meter: Meter::new(now),
            flow,
            parting: None,
            splice: pair.splice,
            detach: pair.detach,
            outstanding: pair.outstanding,
            one_clock: pair.one_clock,
            handle: pair.handle,
            pauses: pair.length.is_some(),
            is_trial: pair.is_trial,
            base_bytes: None,
            pace: Meter::new(now),
            period: Period::default(),
            is_quiet: false,
            full_buffers: FullBuffers::default(),
            queues: Default::default(),
            yielding: Yielding::default(),
            since: now,
            rounds: 0,
            spliced: before.is_some_and(|b| b.spliced),
            spliced_here: false,
            half_closed: before.map_or(PerSide::both(false), |b| b.half_closed),
            keepalive: PerSide::both(false),
            mappings: Default::default(),
            recorded: PerSide::both(0),
            unrecorded: PerSide::both(0),
            seen: Default::default(),
        };
        if let Some(handle) = &session.handle {
            handle.set(id);
        }
        let reason = pair.reason.or_else(|| context.why_relayed(pair.splice));
        session.entry.set_reason(reason);
        if session.flow.is_some() {
            session.entry.set_state(FlowState::Undraining);
        }
        if session.traps.has_budgets() {
            // With one side read only to its trap, the other side's data may find no room until the caller reads that
            // side on.
            session.pump.hold_nothing();
        }
        Ok(session)
    }

    pub(super) fn id(&self) -> FlowId {
        self.entry.id
    }

    /// Returns the counters for this pair: those of trials, or the splicer's.
    pub(super) fn stats(&self) -> &'a Stats {
        match self.is_trial {
            true => &self.context.trials,
            false => &self.context.stats,
        }
    }

    /// Returns the condition of the caller that is met.
    pub(super) fn fired(&mut self, now: Instant) -> Option<Trap> {
        if self.entry.take_ask_back() {
            self.traps.ask();
        }
        self.traps.fired(now, &self.pump)
    }

    /// Returns the distance to each side's trap.
    pub(super) fn distances(&self) -> PerSide<Option<Distance>> {
        PerSide::from_fn(|side| self.traps.distance(side, &self.pump))
    }

    /// Returns true if the pair's sockets may be needed again once it is spliced.
    pub(super) fn parks(&self) -> bool {
        self.detach != DetachPolicy::Now || !self.traps.is_closed()
    }

    /// Returns true if the way back collects copies first.
    pub(super) fn captures(&self) -> bool {
        self.outstanding == Outstanding::Capture && !self.entry.is_to_end()
    }

    /// Records the offsets and byte counts with which a splice begins, and how far the streams are.
    pub(super) fn note_start(&mut self, flow: &Flow) {
        self.mappings = PerSide::from_fn(|side| flow.mapping(side));
        let directions = flow.directions();
        self.seen = reached(&directions);
        if self.base_bytes.is_none() {
            // The records of a new flow count from 0.
            let (counted, earlier) = (directions.map(|d| d.bytes), self.entry.earlier());
            for side in Side::BOTH {
                self.unrecorded[side] += earlier[side].saturating_sub(counted[side]);
            }
            self.base_bytes = Some(PerSide::from_fn(|side| counted[side].max(earlier[side])));
        }
    }

    /// Records and counts that the pair is spliced.
    pub(super) fn note_spliced(&mut self, flow: &Flow) {
        self.spliced = true;
        self.spliced_here = true;
        self.stats().spliced.add(1);
        if let Some(handle) = &self.handle {
            handle.note_spliced(self.queues.map(|watch| watch.lowest()));
        }
        for side in Side::BOTH {
            let relayed = self.pump.bytes(side);
            let before = std::mem::take(&mut self.unrecorded[side]);
            flow.add_bytes(side, before + relayed - self.recorded[side]);
            self.recorded[side] = relayed;
        }
    }

    /// Counts the bytes that bypassed its own sockets, once they are woken: the mappings have moved by that many.
    pub(super) fn note_awake(&mut self, flow: &Flow) {
        for side in Side::BOTH {
            let past = self.mappings[side].seq.then(-flow.mapping(side).seq);
            self.traps.note_past(side, past.raw().into());
        }
    }

    /// Updates the counters and the idle time from the records. Returns true if both streams have ended, or one end was
    /// reset.
    pub(super) fn look(&mut self, directions: &PerSide<Direction>, now: Instant) -> bool {
        self.entry.note_translated(directions);
        self.note_passing(directions, now);
        directions.iter().any(|d| d.reset) || directions.iter().all(|d| d.fin)
    }

    /// Notes the activity that the records show. Retransmitted bytes do not count: their receiver may be gone.
    pub(super) fn note_passing(&mut self, directions: &PerSide<Direction>, now: Instant) {
        let seen = reached(directions);
        if seen != self.seen {
            self.seen = seen;
            self.note_activity(now);
        }
    }

    fn note_activity(&mut self, now: Instant) {
        self.traps.note_activity(now);
        self.active = now;
    }

    /// Lets the pump read up to the trap of a side, and to `most` if that is nearer.
    pub(super) fn limit_pump(&mut self, side: Side, most: Option<u64>) {
        let limits = [self.traps.pump_limit(side), most];
        self.pump.set_limit(side, limits.into_iter().flatten().min());
        self.pump.set_end(side, self.traps.pump_end(side));
    }

    /// Moves bytes until nothing moves.
    pub(super) fn step(&mut self) -> Result<bool, Exit> {
        self.advance(None, TURN)
    }

    /// Moves the bytes that are there in each direction, but not those that come meanwhile.
    pub(super) fn step_briefly(&mut self) -> Result<bool, Exit> {
        self.advance(None, 1)
    }

    /// Moves bytes while the kernel half forwards for the same flow, at the rate of both together.
    pub(super) fn step_beside(&mut self, flow: &Flow) -> Result<bool, Exit> {
        self.advance(Some(flow), TURN)
    }

    fn advance(&mut self, beside: Option<&Flow>, reads: usize) -> Result<bool, Exit> {
        let slot = beside.map(Flow::slot);
        if let Some(slot) = slot {
            self.throttle.take_back(slot);
        }
        self.throttle.allow(&mut self.pump);
        let moved = self.pump.step(reads)?;
        self.throttle.charge(&self.pump, slot);
        if moved {
            self.entry.note_relayed(&self.pump);
            let now = Instant::now();
            self.note_activity(now);
            self.idle.note(now);
        }
        Ok(moved)
    }

    /// Waits for the sockets, a deadline, a request or the end of the process.
    pub(super) async fn wait(&mut self, until: Option<Instant>) -> Woken {
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS) {
            tokio::task::yield_now().await;
        }
        let throttled = self.throttle.wait(&self.pump).map(|time| Instant::now() + time);
        let until = [until, throttled].into_iter().flatten().min();
        let timer = async {
            match until {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.pump.ready() => Woken::Proceed,
            () = timer => Woken::Proceed,
            () = self.idle.wait() => Woken::Proceed,
            () = self.entry.asked() => Woken::Proceed,
            () = measured(self.handle.as_ref()) => Woken::Proceed,
            () = self.context.ended.cancelled() => Woken::Stop,
        }
    }
}

/// Returns the end of both streams and of their acknowledgements.
fn reached(PerSide { client: a, server: b }: &PerSide<Direction>) -> [Seq; 4] {
    [a.end, a.ack, b.end, b.ack]
}

/// Waits until a further round-trip time of the pair's handshakes is known.
async fn measured(handle: Option<&FlowHandle>) {
    match handle {
        Some(handle) => handle.measured().await,
        None => std::future::pending().await,
    }
}
