//! The life of a pair during one call of `splice`: relay, the road to a splice, and back.

use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

use longsplice_core::{
    advisor::{Advice, advise},
    policy::{DetachPolicy, SplicePolicy},
    reason::RelayReason,
};
use longsplice_dataplane::{Direction, Mapping, Side};
use longsplice_repair::{options, tcp_info, unread};
use socket2::SockRef;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep_until},
};

use crate::{
    api::{Before, Ended, FlowId, FlowState, LegInfo, Outstanding, Pair, Returned, Summary},
    flow::Flow,
    gate::{Due, Gate},
    legs::{self, Refusal},
    meter::Meter,
    parked::{self, Left},
    pump::{Broken, Pump},
    registry::{Entry, Registered},
    splicer::{Inner, Phase},
    splicing::{self, Drained, Spliced},
    traps::Traps,
    until::{Trap, Until},
};

/// Rounds of a busy relay before other connections of the thread get their turn.
const ROUNDS: u32 = 16;

/// Unsent bytes that a socket may hold: more would only have to be drained.
const NOTSENT_LOWAT: u32 = 256 << 10;

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
    pub(crate) meter: Meter,
    /// The flow in the kernel half, of a pair that was spliced before.
    pub(crate) flow: Option<Flow>,
    splice: SplicePolicy,
    detach: DetachPolicy,
    outstanding: Outstanding,
    legs: [LegInfo; 2],
    /// `SO_COOKIE` of both sockets, where they are known.
    pub(crate) cookies: Option<[u64; 2]>,
    /// What the sockets had set before they were parked.
    pub(crate) keepalive: [bool; 2],
    /// For the advisor: over whole round trips, so that a burst or the wait for a window is not taken for the stream.
    pace: Meter,
    since: Instant,
    rounds: u32,
    /// Ever, and in this call.
    spliced: bool,
    spliced_here: bool,
    /// What the sockets counted otherwise than the wire when the splice began.
    mappings: [Mapping; 2],
    /// What has been added to the records, of what was relayed.
    recorded: [u64; 2],
    /// Bytes and segments of the records at the last look.
    seen: [u64; 4],
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

/// Carries a pair to its end, back to its caller, or to where it needs no process any more.
pub(crate) async fn run(splicer: &Arc<Inner>, pair: Pair, until: Until) -> io::Result<Ended> {
    let mut driver = match Driver::new(splicer, pair, until) {
        // One of them had ended before: its sockets are gone by now, the other one with a reset.
        Err(e) if e.kind() == io::ErrorKind::NotConnected => return Ok(Ended::Closed(stillborn(splicer))),
        driver => driver?,
    };
    let mut gate = Gate::new(driver.splice, Instant::now());
    let id = driver.id();
    loop {
        match driver.relay(&mut gate).await {
            Ok(()) => {}
            Err(Over::Trapped(trap)) => return driver.give_back(trap).await,
            Err(over) => return Ok(driver.conclude(over, None)),
        }
        let (mut flow, mut drained) = match splicing::splice(&mut driver).await {
            Ok(spliced) => spliced,
            Err(Spliced::Refused(refusal)) => {
                tracing::debug!(flow = %id, reason = %refusal.reason, passing = refusal.passing, "not spliced");
                driver.entry.set_reason(Some(refusal.reason));
                gate.refused(Instant::now(), refusal.passing);
                continue;
            }
            Err(Spliced::Over(over, flow)) => return Ok(driver.conclude(over, flow)),
        };
        let flow = loop {
            let Drained::Drained(cuts, parkable) = drained else {
                driver.note_spliced(&flow);
                driver.note_awake(&flow);
                break flow;
            };
            match parked::park(driver, flow, cuts, parkable).await? {
                Left::Ended(ended) => return Ok(ended),
                Left::Awake(awake, flow) => {
                    driver = awake;
                    break flow;
                }
                Left::Draining(draining, again) => (driver, flow) = (draining, again),
            }
            drained = match splicing::drain(&mut driver, &flow).await {
                Ok(how) => how,
                Err(over) => return Ok(driver.conclude(over, Some(flow))),
            };
        };
        driver.welcome(flow);
        if driver.fired(Instant::now()).is_none() {
            // A trap on the way to one that is too far for a sequence number, or a part of the budget is left.
            driver.entry.ask();
        }
    }
}

/// `SO_COOKIE` of two sockets: no two sockets of a machine have the same.
pub(crate) fn cookies(client: &TcpStream, server: &TcpStream) -> io::Result<[u64; 2]> {
    Ok([SockRef::from(client).cookie()?, SockRef::from(server).cookie()?])
}

/// Of a pair of which a socket was not connected any more.
fn stillborn(splicer: &Inner) -> Summary {
    splicer.stats.relayed(RelayReason::NotEstablished);
    Summary {
        id: splicer.next_id(),
        bytes_to_server: 0,
        bytes_to_client: 0,
        spliced: false,
        relay_reason: Some(RelayReason::NotEstablished),
        reset: true,
    }
}

/// In control mode a socket that closes because its process died resets the connection: bytes that were in our buffers
/// are lost then, and an end in order would hide that.
pub(crate) fn prepare_socket(socket: impl AsFd) -> io::Result<()> {
    options::set_reset_on_close(&socket, true)?;
    options::set_nodelay(&socket, true)?;
    options::set_notsent_lowat(&socket, NOTSENT_LOWAT)?;
    // Else an urgent byte is left out of what is read (RFC 6093 section 3.2), and would be lost here.
    SockRef::from(&socket.as_fd()).set_out_of_band_inline(true)

}

impl<'a> Driver<'a> {
    fn new(splicer: &'a Arc<Inner>, pair: Pair, until: Until) -> io::Result<Driver<'a>> {
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
        let flow = before.and_then(|_| splicer.mapped.take(legs::both(&legs)?));
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
            traps: Traps::new(until, now),
            meter: Meter::new(now),
            flow,
            splice: pair.splice,
            detach: pair.detach,
            outstanding: pair.outstanding,
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
        driver.entry.set_reason(splicer.why_relayed(pair.splice));
        if driver.flow.is_some() {
            driver.entry.set_state(FlowState::Undraining);
        }
        Ok(driver)
    }
}

impl Driver<'_> {
    pub(crate) fn id(&self) -> FlowId {
        self.entry.id
    }

    /// Relays until a splice is due.
    async fn relay(&mut self, gate: &mut Gate) -> Result<(), Over> {
        loop {
            for side in Side::BOTH {
                self.pump.set_limit(side, self.traps.pump_limit(side));
            }
            self.step()?;
            if self.pump.finished() {
                return Err(Over::Finished);
            }
            if self.entry.state() != FlowState::Relay && self.flow.as_ref().is_none_or(Flow::is_settled) {
                self.entry.set_state(FlowState::Relay);
            }
            let now = Instant::now();
            if let Some(trap) = self.fired(now) {
                return Err(Over::Trapped(trap));
            }
            let bytes = self.pump.bytes(Side::Client) + self.pump.bytes(Side::Server);
            let asked = self.entry.take_ask();
            let mut due = gate.due(now, bytes);
            if due == Due::Advise {
                due = self.ask_advisor(gate, now, bytes)?;
            }
            let can_splice = self.splicer.plane.is_some();
            let wake = match due {
                _ if asked && can_splice => return Ok(()),
                Due::Splice if can_splice => return Ok(()),
                Due::NotBefore(at) => at.filter(|_| can_splice),
                _ => None,
            };
            let wake = match (wake, self.traps.next()) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if self.wait(wake).await == Woken::Stop {
                return Err(Over::stopped());
            }
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
    pub(crate) fn distances(&self) -> [Option<u32>; 2] {
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

    /// Whether the way back is to collect copies first.
    pub(crate) fn captures(&self) -> bool {
        self.outstanding == Outstanding::Capture
    }

    /// The addresses of both legs.
    pub(crate) fn legs(&self) -> &[LegInfo; 2] {
        &self.legs
    }

    /// A splice begins.
    pub(crate) fn note_start(&mut self, flow: &Flow) {
        self.mappings = Side::BOTH.map(|side| flow.mapping(side));
    }

    /// The pair is spliced.
    pub(crate) fn note_spliced(&mut self, flow: &Flow) {
        self.spliced = true;
        self.spliced_here = true;
        self.splicer.stats.spliced.add(1);
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
        let seen = [a.bytes, a.segments, b.bytes, b.segments];
        if seen != self.seen {
            self.seen = seen;
            self.traps.note_activity(now);
        }
        directions.iter().any(|d| d.reset) || directions.iter().all(|d| d.fin)
    }

    /// Back among the relayed: the sockets go on.
    fn welcome(&mut self, flow: Flow) {
        self.splicer.stats.unspliced.add(1);
        self.entry.set_state(FlowState::Undraining);
        flow.welcome(Side::BOTH.map(|side| self.pump.eof(side)));
        self.flow = Some(flow);
        for side in Side::BOTH {
            self.pump.set_limit(side, self.traps.pump_limit(side));
            if self.keepalive[side.index()] {
                let _ = options::set_keepalive(self.pump.socket(side), true);
            }
        }
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

    /// Gives the sockets to the caller, once what was read is written.
    async fn give_back(mut self, why: Trap) -> io::Result<Ended> {
        for side in Side::BOTH {
            self.pump.set_limit(side, Some(self.pump.bytes(side)));
        }
        while !self.pump.is_empty() {
            if let Err(over) = self.step() {
                return Ok(self.conclude(over, None));
            }
            if !self.pump.is_empty() && self.wait(None).await == Woken::Stop {
                return Ok(self.conclude(Over::stopped(), None));
            }
        }
        // Counts what was relayed.
        let _ = self.summary(self.spliced, false);
        if self.spliced_here {
            self.splicer.stats.returned(why);
        }
        let passed = self.traps.passed(&self.pump);
        let [client, server] = self.pump.take_sockets();
        if let Some(flow) = self.flow.take() {
            self.splicer.mapped.keep(flow, [&client, &server], Instant::now());
        }
        let before = Before {
            id: self.id(),
            legs: self.legs,
            spliced: self.spliced,
            cookies: match self.cookies {
                Some(known) => known,
                None => cookies(&client, &server)?,
            },
        };
        Ok(Ended::Returned(Returned {
            client,
            server,
            why,
            passed,
            spliced: self.spliced_here,
            id: self.id(),
            splice: self.splice,
            detach: self.detach,
            outstanding: self.outstanding,
            before,
        }))
    }

    fn ask_advisor(&mut self, gate: &mut Gate, now: Instant, bytes: u64) -> Result<Due, Over> {
        let info = |side| tcp_info(self.pump.socket(side)).map_err(io::Error::from);
        let infos = [info(Side::Client)?, info(Side::Server)?];
        let path: u32 = infos.iter().map(|i| i.rtt_us()).sum();
        self.pace
            .sample(now, &self.pump, Duration::from_micros(path.into()));
        let mut samples = Vec::with_capacity(2);
        for side in Side::BOTH {
            let mut sample = legs::sample(self.pump.socket(side), &infos[side.index()]);
            let other = side.other();
            let unread = unread(self.pump.socket(other)).map_err(io::Error::from)?;
            sample.waiting += self.pump.held(other) as u64 + u64::from(unread);
            sample.received_rate = self.pace.rates()[side.index()];
            sample.received_peak = self.pace.peaks()[side.index()];
            samples.push(sample);
        }
        Ok(
            match advise(&samples[0], &samples[1], now.duration_since(self.since), bytes) {
                Advice::Splice => Due::Splice,
                Advice::Wait { reason, again } => {
                    self.entry.set_reason(Some(reason));
                    gate.wait(now, again);
                    Due::NotBefore(Some(now + again))
                }
            },
        )
    }

    /// Moves bytes until nothing moves.
    pub(crate) fn step(&mut self) -> Result<bool, Over> {
        let moved = self.pump.step()?;
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

    /// Closes both sockets as the connection ended, then lets go of the flow, if it was registered.
    pub(crate) fn conclude(mut self, over: Over, flow: Option<Flow>) -> Ended {
        let flow = flow.or(self.flow.take());
        let reset = match &over {
            Over::Broken(error) => {
                tracing::debug!(flow = %self.id(), %error, "connection broken: both ends are reset");
                true
            }
            _ => false,
        };
        let summary = self.summary(self.spliced, reset);
        let sockets = self.pump.take_sockets();
        if !reset {
            for socket in &sockets {
                if let Err(error) = options::set_reset_on_close(socket, false) {
                    tracing::debug!(%error, "cannot close in order");
                }
            }
        }
        match flow {
            // The sockets still have to say goodbye.
            Some(flow) if !reset && flow.is_mapped() => {
                self.splicer
                    .mapped
                    .keep(flow, [&sockets[0], &sockets[1]], Instant::now());
                drop(sockets);
            }
            flow => {
                // While the flow is registered its egress program puts the resets in place.
                drop(sockets);
                drop(flow);
            }
        }
        if let Some(reason) = summary.relay_reason {
            self.splicer.stats.relayed(reason);
        }
        Ended::Closed(summary)
    }

    pub(crate) fn summary(&self, spliced: bool, reset: bool) -> Summary {
        let relayed = self.pump.bytes(Side::Client) + self.pump.bytes(Side::Server);
        self.splicer.stats.relay_bytes.add(relayed);
        let [to_server, to_client] = self.traps.passed(&self.pump);
        let reason = self.entry.reason().unwrap_or(RelayReason::EndedBeforePolicy);
        Summary {
            id: self.id(),
            bytes_to_server: to_server,
            bytes_to_client: to_client,
            spliced,
            relay_reason: (!spliced).then_some(reason),
            reset,
        }
    }

    /// Refuses, and says why.
    pub(crate) fn refuse(reason: RelayReason) -> Spliced {
        Spliced::Refused(Refusal::for_now(reason))
    }
}
