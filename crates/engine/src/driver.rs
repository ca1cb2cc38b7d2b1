//! Drives a pair during one call of `splice`, and holds the state that its phases share.

use std::{io, sync::Arc};

use longsplice_core::{
    policy::{DetachPolicy, SplicePolicy},
    reason::RelayReason,
};
use longsplice_dataplane::{Direction, Mapping, Side};
use longsplice_repair::options;
use socket2::SockRef;
use tokio::time::{Instant, sleep_until};

use crate::{
    api::{FlowId, FlowState, LegInfo, Outstanding, Pair},
    flow::Flow,
    handle::FlowHandle,
    idle::Idleness,
    legs::{self, Refusal},
    meter::Meter,
    over::Over,
    pair::{cookies, prepare_socket},
    pump::{Pump, TURN},
    registry::{Entry, Registered},
    splicer::{Inner, Phase},
    splicing::Spliced,
    stats::Stats,
    throttle::Throttle,
    traps::{Distance, Traps},
    until::{Trap, Until},
};

/// Number of rounds of a busy relay before it yields to other connections of the thread.
const ROUNDS: u32 = 16;

/// Event that ends a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A socket can be read or written, or a deadline has come.
    Proceed,
    /// The process shuts down.
    Stop,
}

/// Holds a pair and the state that its phases share.
pub(crate) struct Driver<'a> {
    pub(crate) splicer: &'a Arc<Inner>,
    pub(crate) entry: Registered<'a>,
    pub(crate) pump: Pump,
    pub(crate) traps: Traps,
    pub(crate) throttle: Throttle,
    pub(crate) idle: Idleness,
    pub(crate) meter: Meter,
    /// Flow in the kernel half, of a pair that was spliced before.
    pub(crate) flow: Option<Flow>,
    pub(crate) splice: SplicePolicy,
    pub(crate) detach: DetachPolicy,
    pub(crate) outstanding: Outstanding,
    pub(crate) one_clock: bool,
    pub(crate) legs: [LegInfo; 2],
    /// `SO_COOKIE` of both sockets, if they are known.
    pub(crate) cookies: Option<[u64; 2]>,
    /// True for a side whose FIN was passed to the other end.
    pub(crate) half_closed: [bool; 2],
    /// State of `SO_KEEPALIVE` of the sockets before they were parked.
    pub(crate) keepalive: [bool; 2],
    /// Rate for the advisor, over whole round trips: a burst or the wait for a window must not count as the stream's
    /// rate.
    pub(crate) pace: Meter,
    pub(crate) since: Instant,
    pub(crate) rounds: u32,
    /// True if the pair was ever spliced; `spliced_here`: in this call.
    pub(crate) spliced: bool,
    pub(crate) spliced_here: bool,
    /// Offsets between the sockets' numbers and those on the wire when the splice began.
    pub(crate) mappings: [Mapping; 2],
    pub(crate) handle: Option<FlowHandle>,
    /// True if no data follows behind its traps before the caller has the pair back.
    pub(crate) pauses: bool,
    /// See [`Pair::for_trial`].
    pub(crate) is_trial: bool,
    /// Bytes that the records had counted before this call.
    pub(crate) base_bytes: Option<[u64; 2]>,
    /// Relayed bytes that have been added to the records.
    pub(crate) recorded: [u64; 2],
    /// End of both streams and of their acknowledgements at the last look.
    pub(crate) seen: [u32; 4],
}

impl<'a> Driver<'a> {
    pub(crate) fn new(splicer: &'a Arc<Inner>, pair: Pair, until: Until) -> io::Result<Driver<'a>> {
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
            None => [legs::addresses(&pair.client)?, legs::addresses(&pair.server)?],
        };
        let flow = before.and_then(|_| splicer.mapped.take(legs::both(&legs).ok()?));
        let id = match (&flow, &before) {
            (Some(flow), _) => FlowId(flow.serial()),
            (None, Some(before)) if splicer.is_still_its(before.id) => before.id,
            _ => splicer.next_id(),
        };
        let now = Instant::now();
        let mut driver = Driver {
            splicer,
            entry: splicer.registry.add(Entry::new(id, legs)),
            legs,
            cookies: before.map(|b| b.cookies),
            pump: Pump::new(pair.client, pair.server),
            traps: Traps::new(until, pair.successor, now),
            throttle: Throttle::new(pair.rate_limit, before.map_or(pair.paid, |b| b.paid)),
            idle: Idleness::new(pair.idle, now),
            meter: Meter::new(now),
            flow,
            splice: pair.splice,
            detach: pair.detach,
            outstanding: pair.outstanding,
            one_clock: pair.one_clock,
            handle: pair.handle,
            pauses: pair.length.is_some(),
            is_trial: pair.is_trial,
            base_bytes: None,
            pace: Meter::new(now),
            since: now,
            rounds: 0,
            spliced: before.is_some_and(|b| b.spliced),
            spliced_here: false,
            half_closed: before.map_or([false; 2], |b| b.half_closed),
            keepalive: [false; 2],
            mappings: Default::default(),
            recorded: [0; 2],
            seen: [0; 4],
        };
        if let Some(handle) = &driver.handle {
            handle.set(id);
        }
        driver.entry.set_reason(splicer.why_relayed(pair.splice));
        if driver.flow.is_some() {
            driver.entry.set_state(FlowState::Undraining);
        }
        if driver.traps.has_budgets() {
            // With one side read only to its trap, the other side's data may find no room until the caller reads that
            // side on.
            driver.pump.hold_nothing();
        }
        Ok(driver)
    }

    pub(crate) fn id(&self) -> FlowId {
        self.entry.id
    }

    /// Returns the counters for this pair: those of trials, or the splicer's.
    pub(crate) fn stats(&self) -> &'a Stats {
        match self.is_trial {
            true => &self.splicer.trials,
            false => &self.splicer.stats,
        }
    }

    /// Returns the condition of the caller that is met.
    pub(crate) fn fired(&mut self, now: Instant) -> Option<Trap> {
        if self.entry.take_ask_back() {
            self.traps.ask();
        }
        self.traps.fired(now, &self.pump)
    }

    /// Returns the distance to each side's trap.
    pub(crate) fn distances(&self) -> [Option<Distance>; 2] {
        Side::BOTH.map(|side| self.traps.distance(side, &self.pump))
    }

    /// Announces the current acknowledgements and windows to both ends.
    pub(crate) fn announce(&self, flow: &Flow) {
        if let Some(announcer) = &self.splicer.announcer {
            flow.announce(announcer);
        }
    }

    /// Returns the policy that says when to close the parked sockets.
    pub(crate) fn detach(&self) -> DetachPolicy {
        self.detach
    }

    /// Returns true if the pair's sockets may be needed again once it is spliced.
    pub(crate) fn parks(&self) -> bool {
        self.detach != DetachPolicy::Now || !self.traps.is_closed()
    }

    /// Returns true if the way back collects copies first.
    pub(crate) fn captures(&self) -> bool {
        self.outstanding == Outstanding::Capture && !self.entry.is_to_end()
    }

    /// Returns the addresses of both legs.
    pub(crate) fn legs(&self) -> &[LegInfo; 2] {
        &self.legs
    }

    /// Records the offsets and byte counts with which a splice begins.
    pub(crate) fn note_start(&mut self, flow: &Flow) {
        self.mappings = Side::BOTH.map(|side| flow.mapping(side));
        self.base_bytes
            .get_or_insert_with(|| flow.directions().map(|d| d.bytes));
    }

    /// Records and counts that the pair is spliced.
    pub(crate) fn note_spliced(&mut self, flow: &Flow) {
        self.spliced = true;
        self.spliced_here = true;
        self.stats().spliced.add(1);
        if let Some(handle) = &self.handle {
            handle.note_spliced();
        }
        for side in Side::BOTH {
            let relayed = self.pump.bytes(side);
            flow.add_bytes(side, relayed - self.recorded[side.index()]);
            self.recorded[side.index()] = relayed;
        }
    }

    /// Counts the bytes that bypassed its own sockets, once they are woken: the mappings have moved by that many.
    pub(crate) fn note_awake(&mut self, flow: &Flow) {
        for side in Side::BOTH {
            let past = self.mappings[side.index()]
                .seq
                .wrapping_sub(flow.mapping(side).seq);
            self.traps.note_past(side, past.into());
        }
    }

    /// Updates the counters and the idle time from the records. Returns true if both streams have ended, or one end was
    /// reset. Retransmitted bytes do not count as activity: their receiver may be gone.
    pub(crate) fn look(&mut self, directions: &[Direction; 2], now: Instant) -> bool {
        self.entry.note_translated(directions);
        let [a, b] = directions;
        let seen = [a.end, a.ack, b.end, b.ack];
        if seen != self.seen {
            self.seen = seen;
            self.traps.note_activity(now);
        }
        directions.iter().any(|d| d.reset) || directions.iter().all(|d| d.fin)
    }

    /// Returns a flow to the relay: its sockets carry on. Returns true if the segment that brought the pair back is still
    /// on its way to a socket.
    pub(crate) fn welcome(&mut self, flow: Flow) -> bool {
        self.stats().unspliced.add(1);
        self.entry.set_state(FlowState::Undraining);
        for side in Side::BOTH {
            self.half_closed[side.index()] |= flow.leg(side).owed_fin;
        }
        let comes = flow.welcome(Side::BOTH.map(|side| self.pump.eof(side)));
        self.throttle.take_back(flow.slot());
        self.flow = Some(flow);
        for side in Side::BOTH {
            self.limit_pump(side, None);
            if self.keepalive[side.index()] {
                let _ = options::set_keepalive(self.pump.socket(side), true);
            }
        }
        comes
    }

    /// Lets the pump read up to the trap of a side, and to `most` if that is nearer.
    pub(crate) fn limit_pump(&mut self, side: Side, most: Option<u64>) {
        let limits = [self.traps.pump_limit(side), most];
        self.pump.set_limit(side, limits.into_iter().flatten().min());
        self.pump.set_end(side, self.traps.pump_end(side));
    }

    /// Switches keep-alive off: a parked socket's probes are not the flow's.
    pub(crate) fn rest(&mut self) {
        for side in Side::BOTH {
            let socket = self.pump.socket(side);
            let on = SockRef::from(socket).keepalive().unwrap_or(false);
            self.keepalive[side.index()] |= on;
            if on {
                let _ = options::set_keepalive(socket, false);
            }
        }
    }

    /// Moves bytes until nothing moves.
    pub(crate) fn step(&mut self) -> Result<bool, Over> {
        self.advance(None, TURN)
    }

    /// Moves the bytes that are there in each direction, but not those that come meanwhile.
    pub(crate) fn step_briefly(&mut self) -> Result<bool, Over> {
        self.advance(None, 1)
    }

    /// Moves bytes while the kernel half forwards for the same flow, at the rate of both together.
    pub(crate) fn step_beside(&mut self, flow: &Flow) -> Result<bool, Over> {
        self.advance(Some(flow), TURN)
    }

    fn advance(&mut self, beside: Option<&Flow>, reads: usize) -> Result<bool, Over> {
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
            self.traps.note_activity(now);
            self.idle.note(now);
        }
        Ok(moved)
    }

    /// Waits for the sockets, a deadline, a request or the end of the process.
    pub(crate) async fn wait(&mut self, until: Option<Instant>) -> Woken {
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
            () = self.splicer.reached(Phase::Ended) => Woken::Stop,
        }
    }

    /// Waits for the sockets, a deadline, a request or a held packet. A shutdown does not interrupt a drain.
    pub(crate) async fn wait_draining(&self, flow: &Flow, until: Instant) {
        let throttled = self.throttle.wait(&self.pump).map(|time| Instant::now() + time);
        let until = [throttled, self.traps.next()]
            .into_iter()
            .flatten()
            .fold(until, Instant::min);
        tokio::select! {
            () = self.pump.ready() => {}
            () = sleep_until(until) => {}
            () = self.entry.asked() => {}
            () = flow.held().changed() => {}
        }
    }

    /// Returns a refusal with its reason.
    pub(crate) fn refuse(reason: RelayReason) -> Spliced {
        Spliced::Refused(Refusal::for_now(reason))
    }
}
