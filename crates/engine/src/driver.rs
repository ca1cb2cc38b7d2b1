//! A pair during one call of `splice`, and what its phases share.

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
    legs::{self, Refusal},
    meter::Meter,
    pair::{cookies, prepare_socket},
    pump::{Broken, Pump, TURN},
    registry::{Entry, Registered},
    splicer::{Inner, Phase},
    splicing::Spliced,
    stats::Stats,
    throttle::Throttle,
    traps::{Distance, Traps},
    until::{Trap, Until},
};

/// Rounds of a busy relay before other connections of the thread get their turn.
const ROUNDS: u32 = 16;

/// What ends a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A socket can be read or written, or it is time.
    Proceed,
    /// The process shuts down.
    Stop,
}

/// A pair and what its phases share.
pub(crate) struct Driver<'a> {
    pub(crate) splicer: &'a Arc<Inner>,
    pub(crate) entry: Registered<'a>,
    pub(crate) pump: Pump,
    pub(crate) traps: Traps,
    pub(crate) throttle: Throttle,
    pub(crate) meter: Meter,
    /// The flow in the kernel half, of a pair that was spliced before.
    pub(crate) flow: Option<Flow>,
    pub(crate) splice: SplicePolicy,
    pub(crate) detach: DetachPolicy,
    pub(crate) outstanding: Outstanding,
    /// See [`Pair`].
    pub(crate) one_clock: bool,
    pub(crate) legs: [LegInfo; 2],
    /// `SO_COOKIE` of both sockets, where they are known.
    pub(crate) cookies: Option<[u64; 2]>,
    /// What the sockets had set before they were parked.
    pub(crate) keepalive: [bool; 2],
    /// For the advisor: over whole round trips, so that a burst or the wait for a window is not taken for the stream.
    pub(crate) pace: Meter,
    pub(crate) since: Instant,
    pub(crate) rounds: u32,
    /// Ever, and in this call.
    pub(crate) spliced: bool,
    pub(crate) spliced_here: bool,
    /// What the sockets counted otherwise than the wire when the splice began.
    pub(crate) mappings: [Mapping; 2],
    pub(crate) handle: Option<FlowHandle>,
    /// Behind its traps nothing follows before the caller has the pair back.
    pub(crate) pauses: bool,
    /// See [`Pair::for_trial`].
    pub(crate) is_trial: bool,
    /// What the records had counted before this call.
    pub(crate) base_bytes: Option<[u64; 2]>,
    /// What has been added to the records, of what was relayed.
    pub(crate) recorded: [u64; 2],
    /// Bytes and acknowledgements of the records at the last look.
    pub(crate) seen: [u64; 4],
}

/// Why a phase ended without the next one.
#[derive(Debug)]
pub(crate) enum Over {
    /// Both streams have ended in order.
    Finished,
    /// An end was reset, or the system failed: the other is to be reset.
    Broken(io::Error),
    /// A condition of the caller is met.
    Trapped(Trap),
}

impl Over {
    /// The grace period of a shutdown is over.
    pub(crate) fn stopped() -> Over {
        io::Error::new(io::ErrorKind::Interrupted, "the daemon shuts down").into()
    }

    /// Somebody asked for its end.
    pub(crate) fn asked() -> Over {
        io::Error::new(io::ErrorKind::ConnectionAborted, "its end was asked for").into()
    }
}

impl From<Broken> for Over {
    fn from(b: Broken) -> Self {
        Over::Broken(b.error)
    }
}

impl From<io::Error> for Over {
    fn from(e: io::Error) -> Self {
        Over::Broken(e)
    }
}

impl<'a> Driver<'a> {
    pub(crate) fn new(splicer: &'a Arc<Inner>, pair: Pair, until: Until) -> io::Result<Driver<'a>> {
        // Another socket in the place makes it another pair.
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
            (None, Some(before)) if !splicer.mapped.has(before.id.0) => before.id,
            _ => splicer.next_id(),
        };
        let now = Instant::now();
        let driver = Driver {
            splicer,
            entry: splicer.registry.add(Entry::new(id, legs)),
            legs,
            cookies: before.map(|b| b.cookies),
            pump: Pump::new(pair.client, pair.server),
            traps: Traps::new(until, pair.successor, now),
            throttle: Throttle::new(pair.rate_limit, before.map_or(pair.paid, |b| b.paid)),
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
        Ok(driver)
    }
}

impl<'a> Driver<'a> {
    pub(crate) fn id(&self) -> FlowId {
        self.entry.id
    }

    /// Where it is counted.
    pub(crate) fn stats(&self) -> &'a Stats {
        match self.is_trial {
            true => &self.splicer.trials,
            false => &self.splicer.stats,
        }
    }

    /// The condition of the caller that is met.
    pub(crate) fn fired(&mut self, now: Instant) -> Option<Trap> {
        if self.entry.take_ask_back() {
            self.traps.ask();
        }
        self.traps.fired(now, &self.pump)
    }

    /// How far each side's trap is.
    pub(crate) fn distances(&self) -> [Option<Distance>; 2] {
        Side::BOTH.map(|side| self.traps.distance(side, &self.pump))
    }

    /// Has both ends hear what was acknowledged last.
    pub(crate) fn announce(&self, flow: &Flow) {
        if let Some(announcer) = &self.splicer.announcer {
            flow.announce(announcer);
        }
    }

    /// When the parked sockets are let go of.
    pub(crate) fn detach(&self) -> DetachPolicy {
        self.detach
    }

    /// Whether the sockets of the pair may be needed again once it is spliced.
    pub(crate) fn parks(&self) -> bool {
        self.detach != DetachPolicy::Now || !self.traps.is_closed()
    }

    /// Whether the way back is to collect copies first.
    pub(crate) fn captures(&self) -> bool {
        self.outstanding == Outstanding::Capture && !self.entry.is_to_end()
    }

    /// The addresses of both legs.
    pub(crate) fn legs(&self) -> &[LegInfo; 2] {
        &self.legs
    }

    /// A splice begins.
    pub(crate) fn note_start(&mut self, flow: &Flow) {
        self.mappings = Side::BOTH.map(|side| flow.mapping(side));
        self.base_bytes
            .get_or_insert_with(|| flow.directions().map(|d| d.bytes));
    }

    /// The pair is spliced.
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

    /// Its own sockets were woken: what went past them has moved their counts.
    pub(crate) fn note_awake(&mut self, flow: &Flow) {
        for side in Side::BOTH {
            let past = self.mappings[side.index()]
                .seq
                .wrapping_sub(flow.mapping(side).seq);
            self.traps.note_past(side, past.into());
        }
    }

    /// What a look at the records tells; whether both streams have ended, or one end was reset.
    pub(crate) fn look(&mut self, directions: &[Direction; 2], now: Instant) -> bool {
        self.entry.note_translated(directions);
        let [a, b] = directions;
        let seen = [a.bytes, a.ack.into(), b.bytes, b.ack.into()];
        if seen != self.seen {
            self.seen = seen;
            self.traps.note_activity(now);
        }
        directions.iter().any(|d| d.reset) || directions.iter().all(|d| d.fin)
    }

    /// Back among the relayed: the sockets go on. Whether what has brought the pair back is still on its way to one.
    pub(crate) fn welcome(&mut self, flow: Flow) -> bool {
        self.stats().unspliced.add(1);
        self.entry.set_state(FlowState::Undraining);
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

    /// Lets the pump read up to the trap of a side, and to `most` where that is nearer.
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

    /// Moves what is there in each direction, but not what comes meanwhile.
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
            self.traps.note_activity(Instant::now());
        }
        Ok(moved)
    }

    /// Waits for the sockets, for a time, for a question or for the end of the process.
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
            () = self.entry.asked() => Woken::Proceed,
            () = self.splicer.reached(Phase::Ended) => Woken::Stop,
        }
    }

    /// Waits for the sockets or for a time; a drain is not interrupted.
    pub(crate) async fn wait_draining(&self, until: Instant) {
        tokio::select! {
            () = self.pump.ready() => {}
            () = sleep_until(until) => {}
        }
    }

    /// Refuses, and says why.
    pub(crate) fn refuse(reason: RelayReason) -> Spliced {
        Spliced::Refused(Refusal::for_now(reason))
    }
}
