//! Relays bytes through the process until a splice is due, or the caller wants the pair back.

use std::{io, sync::atomic::Ordering, time::Duration};

use longsplice_core::{
    advisor::{Advice, FINAL_TIME, LegSample, QueueWatch, Thresholds, advise},
    patience::Waiter,
    reason::{RelayReason, SpliceReason},
};
use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::{TcpInfo, options, unread};
use tokio::time::Instant;

use super::{
    exit::Exit,
    looks::Look,
    pair::{Session, Woken},
    state::{Coupling, Relaying, State},
};
use crate::{
    api::FlowState,
    flow::{Flow, assess},
    relay::gate::Due,
};

/// Bytes of a budget that are left when a trap has brought the pair back: mostly the one super-packet that met it.
const LAST: u64 = 64 << 10;

/// Longest wait for the next look at an accelerated pair on which nothing passes, while time alone may tell the advisor more.
const YOUNG_REST: Duration = Duration::from_secs(1);
/// Longest such wait later.
const REST: Duration = Duration::from_secs(60);

/// Outcome of a step of a relay.
#[derive(Debug)]
enum Next {
    /// A splice.
    Splice,
    /// A further step: when bytes can be moved, or at that time.
    Wait(Option<Instant>),
}

impl<'a> Relaying<'a> {
    /// Relays until a splice is due, or the call is over.
    pub(super) async fn run(self) -> io::Result<State<'a>> {
        let mut session = self.session;
        session.idle.begin(Instant::now());
        let relayed = session.relay().await;
        session.yielding.leave();
        session.idle.end();
        Ok(match relayed {
            Ok(()) => State::Coupling(Coupling { session }),
            Err(Exit::Trapped(_)) if session.entry.is_to_end() => {
                State::over(session.conclude(Exit::asked(), None))
            }
            Err(Exit::Trapped(trap)) => State::over(session.give_back(trap).await?),
            Err(exit) => State::over(session.conclude(exit, None)),
        })
    }
}

impl Session<'_> {
    /// Relays until a splice is due.
    async fn relay(&mut self) -> Result<(), Exit> {
        self.lift_pacing();
        let mut look = Look::returned();
        for side in Side::BOTH {
            self.limit_pump(side, None);
        }
        // Move nothing first: a fast sender has much of a long stream ready, and bytes that a step takes are not spliced.
        match self.gate.is_urgent() && !self.has_begun() {
            true => self.pump.look_beyond_limits()?,
            false => drop(self.step()?),
        }
        if !self.spliced_here && self.is_forgotten(Instant::now()) {
            return Err(Exit::Idle);
        }
        let mut next = self.next_step(&mut look, None)?;
        while let Next::Wait(until) = next {
            if self.wait(until).await == Woken::Stop {
                return Err(Exit::stopped());
            }
            self.step()?;
            let infos = self.limit_queues();
            next = self.next_step(&mut look, infos)?;
        }
        Ok(())
    }

    /// Decides what follows a step. `infos`: what both sockets have just said, if they were asked.
    fn next_step(&mut self, look: &mut Look, infos: Option<PerSide<TcpInfo>>) -> Result<Next, Exit> {
        if self.pump.finished() {
            return Err(Exit::Finished);
        }
        let now = Instant::now();
        if let Some(trap) = self.fired(now) {
            return Err(Exit::Trapped(trap));
        }
        self.take_round_trips();
        if self.is_quiet && self.pace.has_burst(now, &self.pump) {
            self.gate.advise_now();
        }
        let bytes = self.pump.bytes(Side::Client) + self.pump.bytes(Side::Server);
        let asked = self.entry.is_asked();
        let mut due = self.gate.due(now, bytes);
        if due == Due::Advise {
            due = self.ask_advisor(now, bytes, infos)?;
        }
        let can_splice = self.context.kernel.is_some() && !self.is_nearly_over();
        if asked && !can_splice {
            self.entry.refuse(RelayReason::EndedBeforePolicy);
        }
        let wake = match due {
            _ if asked && can_splice => return Ok(Next::Splice),
            Due::Splice if can_splice && !self.is_all_here() => return Ok(Next::Splice),
            Due::NotBefore(at) => at.filter(|_| can_splice),
            _ => None,
        };
        let is_quiescent = self.try_resolve(now)?;
        if !is_quiescent {
            // Segments that bypass its sockets are not seen here.
            self.idle.note(now);
        } else if self
            .idle
            .is_over(now, PerSide::from_fn(|side| self.pump.socket(side)))
        {
            // The ends of an accelerated pair know nothing of a limit: a router has none.
            if self.acceleration.is_none() || !can_splice {
                return Err(Exit::Idle);
            }
            self.note_splice_reason(SpliceReason::Idle);
            return Ok(Next::Splice);
        }
        let settle = (!is_quiescent).then(|| look.next(now));
        let wake = [wake, self.traps.next(), settle, self.parts_at()];
        Ok(Next::Wait(wake.into_iter().flatten().min()))
    }

    /// Returns true if nothing has passed for longer than a pair may be idle, relayed or spliced. A pair that comes back at
    /// intervals, and is spliced again at once, is never relayed for long enough.
    fn is_forgotten(&self, now: Instant) -> bool {
        let spliced = self.context.config.idle_timeout;
        let limit = self.idle.policy().limit.filter(|_| self.acceleration.is_none());
        limit.is_some_and(|relayed| now.duration_since(self.active) >= relayed.max(spliced))
            && Side::BOTH
                .iter()
                .all(|&side| unread(self.pump.socket(side)).is_ok_and(|bytes| bytes == 0))
    }

    /// Sets the buffers of an accelerated pair by the rates of its legs, if that is due; returns what its sockets said. A pair
    /// whose buffers cannot be set is relayed with those of the kernel.
    fn limit_queues(&mut self) -> Option<PerSide<TcpInfo>> {
        let now = Instant::now();
        let queue = self.queue.as_mut().filter(|queue| queue.is_due(now))?;
        let looked = assess::infos(&self.pump).and_then(|infos| {
            queue.look(now, &mut self.pump, &infos)?;
            Ok(infos)
        });
        if let Err(error) = &looked {
            tracing::debug!(flow = %self.id(), %error, "the queues of an accelerated pair are not limited");
            self.queue = None;
        }
        looked.ok()
    }

    /// Returns true if too little is left of a budget for another splice.
    fn is_nearly_over(&self) -> bool {
        let least = if self.spliced_here { LAST } else { 0 };
        self.traps.left(&self.pump).is_some_and(|left| left <= least)
    }

    /// Returns true if all bytes that may pass of a side wait in its socket, and only for room. If payload follows them,
    /// a splice would be over before it began.
    fn is_all_here(&self) -> bool {
        Side::BOTH.iter().any(|&side| {
            let left = self.traps.left_before_data(side, &self.pump);
            let waiting = || unread(self.pump.socket(side)).map_or(0, u64::from);
            left.is_some_and(|left| left > 0 && waiting() >= left)
        })
    }

    /// Returns true if the pump has moved bytes in this call.
    pub(super) fn has_begun(&self) -> bool {
        Side::BOTH.iter().any(|&side| self.pump.consumed(side) > 0)
    }

    /// Turns it into a plain relay, once no byte that bypassed the sockets is in flight. Returns true if it is one.
    /// Fails if an end was reset, or will never acknowledge the forwarded bytes.
    pub(super) fn try_resolve(&mut self, now: Instant) -> Result<bool, Exit> {
        if self.entry.state() == FlowState::Relay {
            self.part_in_time(now);
            return Ok(true);
        }
        // A reset that was forwarded right before the sockets were awake has reached neither of them.
        if self.flow.as_ref().is_some_and(Flow::is_cut_off) {
            return Err(Exit::reset("an end was reset"));
        }
        let settled = self.flow.as_ref().is_none_or(Flow::is_quiescent);
        if settled {
            self.entry.set_state(FlowState::Relay);
            if let Some(flow) = &self.flow {
                flow.resolve();
            }
            self.part_in_time(now);
        } else if let Some(flow) = self.flow.as_mut()
            && flow.is_hopeless(now, Waiter::Relay)
        {
            tracing::info!(flow = %self.id(), "an end does not acknowledge what passed by: both ends are reset");
            return Err(Exit::given_up());
        }
        Ok(settled)
    }

    /// Takes the round-trip times of the handshakes from the pair's handle. When both are known and the path is short, the
    /// advisor is asked at once.
    fn take_round_trips(&mut self) {
        let (Some(acceleration), Some(handle)) = (&self.acceleration, &self.handle) else {
            return;
        };
        let known = handle.round_trips();
        if known == self.round_trips {
            return;
        }
        self.round_trips = known;
        self.entry.note_round_trips(known.map(Option::unwrap_or_default));
        if let (Some(client), Some(server)) = (known.client, known.server)
            && client.saturating_add(server) <= acceleration.thresholds.short_path
        {
            self.gate.advise_now();
        }
    }

    /// Returns the round-trip time of a leg: measured by its socket's acknowledgements, by the data that it received, in
    /// the handshake, or by its socket of a call before. Zero if none of them has measured it.
    fn round_trip(&self, side: Side, info: &TcpInfo) -> Duration {
        let handshake = self.round_trips[side];
        match (info.rtt_us(), info.rcv_rtt_us()) {
            (0, 0) => handshake.unwrap_or_default(),
            (0, received) if self.acceleration.is_some() => Duration::from_micros(received.into()),
            (sent, _) => Duration::from_micros(sent.into()),
        }
    }

    /// Asks the advisor, after so many bytes. `infos`: what both sockets have just said, if they were asked.
    fn ask_advisor(
        &mut self,
        now: Instant,
        bytes: u64,
        infos: Option<PerSide<TcpInfo>>,
    ) -> Result<Due, Exit> {
        let infos = match infos {
            Some(infos) => infos,
            None => assess::infos(&self.pump)?,
        };
        let times = PerSide::from_fn(|side| self.round_trip(side, &infos[side]));
        self.entry.note_round_trips(times);
        if self.acceleration.is_none() {
            self.round_trips = times.map(|time| (!time.is_zero()).then_some(time));
        }
        let path = times.client.saturating_add(times.server);
        self.pace.sample(now, &self.pump, path);
        let age = now.duration_since(self.since);
        let mut samples = Vec::with_capacity(2);
        for side in Side::BOTH {
            let mut sample = assess::sample(self.pump.socket(side), &infos[side]);
            sample.rtt = times[side];
            let other = side.other();
            let unread = unread(self.pump.socket(other)).map_err(io::Error::from)?;
            let beyond = self.pump.held(other) as u64 + u64::from(unread);
            self.full_buffers.note(side, &infos[side], beyond);
            // Bytes that wait for the rate limit do not wait for their receiver's leg.
            if self.throttle.rate_of(other).is_none() {
                sample.waiting += beyond;
            }
            let most = self.throttle.rate_of(side).unwrap_or(u64::MAX);
            sample.received_rate = self.pace.rates()[side].min(most);
            sample.received_earlier = self.pace.earlier()[side].map(|rate| rate.min(most));
            sample.received_peak = self.pace.peaks()[side].min(most);
            sample.send_buffer_limited = self.full_buffers.percent()[side];
            if self.acceleration.is_some() {
                let buffer = options::receive_buffer(self.pump.socket(side));
                sample.receive_buffer = buffer.map_err(io::Error::from)?;
            }
            samples.push(sample);
        }
        let mut thresholds = self.acceleration.map_or_else(Thresholds::auto, |a| a.thresholds);
        let plain_percent = self.context.plain_percent.load(Ordering::Relaxed);
        thresholds.yields_at_queue &= plain_percent > 0;
        let (age, bytes) = match self.acceleration {
            Some(_) => {
                self.watch_queues(age, &infos, &mut samples);
                self.count_queues(&samples);
                (age, bytes)
            }
            None => self.period.note(&samples[0], &samples[1], age, bytes),
        };
        if self.pauses {
            // A stream of known length comes at once.
            thresholds.quiet = Duration::ZERO;
        }
        self.is_quiet = false;
        // A stream that is held back shows neither its queue nor its rate.
        if let Some(due) = self.goes_on_yielding(now, plain_percent) {
            return Ok(due);
        }
        Ok(match advise(&thresholds, &samples[0], &samples[1], age, bytes) {
            Advice::Splice(SpliceReason::StandingQueue) => self.yields(now, plain_percent, &samples),
            Advice::Splice(reason) => {
                self.note_splice_reason(reason);
                Due::Splice
            }
            Advice::Wait { reason, again } => {
                self.is_quiet = reason == RelayReason::AdvisedQuiet && self.acceleration.is_none();
                self.entry.set_reason(Some(reason));
                let next = match self.acceleration {
                    Some(_) => {
                        let longest = if age < FINAL_TIME { YOUNG_REST } else { REST };
                        self.gate.rest(now, again..=longest, activity(&infos), bytes)
                    }
                    None => self.gate.wait(now, again),
                };
                Due::NotBefore(Some(next))
            }
        })
    }

    pub(super) fn note_splice_reason(&self, reason: SpliceReason) {
        if let Some(handle) = &self.handle {
            handle.set_reason(reason);
        }
    }

    /// Notes the round trips of an accelerated pair in its samples: the lowest ones since it was taken over, and the queues.
    fn watch_queues(&mut self, age: Duration, infos: &PerSide<TcpInfo>, samples: &mut [LegSample]) {
        let lowest = |(watch, sample): (&QueueWatch, &LegSample)| {
            let known = [watch.lowest(), sample.min_rtt, Some(sample.rtt)];
            known.into_iter().flatten().min().unwrap_or_default()
        };
        let path = self.queues.iter().zip(&*samples).map(lowest).sum();
        for ((watch, info), sample) in self.queues.iter_mut().zip(infos.iter()).zip(samples) {
            // A stream that a leg only receives has passed that leg's queue already: our acknowledgements return beside it.
            let receives = info.rcv_rtt_us() > 0 && info.last_data_recv_ms() < info.last_data_sent_ms();
            let (rtt, since, is_empty) = match receives {
                true => (
                    Duration::from_micros(info.rcv_rtt_us().into()),
                    info.last_data_recv_ms(),
                    true,
                ),
                false => (sample.rtt, info.last_data_sent_ms(), info.unacked() == 0),
            };
            let queue = watch.note(age, rtt, sample.min_rtt, path);
            // The last bytes of a stream have told of its queue, and nothing follows them.
            let rests = is_empty && Duration::from_millis(since.into()) > rtt;
            if rests {
                watch.rest();
            }
            sample.standing_queue = queue.filter(|_| !rests);
            sample.receives = receives;
            sample.min_rtt = watch.lowest();
        }
    }
}

/// Returns a sum of what both sockets have sent, delivered and received, which changes with each of them.
fn activity(infos: &PerSide<TcpInfo>) -> u64 {
    let count = |info: &TcpInfo| info.bytes_sent() + info.bytes_acked() + info.bytes_received();
    infos.iter().map(count).sum()
}
