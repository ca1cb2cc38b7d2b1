//! The life of a pair while this process holds its sockets: relay, and the road to a splice.

use std::{io, sync::Arc, time::Duration};

use longsplice_core::{
    advisor::{Advice, advise},
    reason::RelayReason,
};
use longsplice_dataplane::Side;
use longsplice_repair::{options, tcp_info, unread};
use tokio::time::{Instant, sleep_until};

use crate::{
    api::{Ended, FlowId, Pair, Summary},
    gate::{Due, Gate},
    legs::{self, Refusal},
    meter::Meter,
    pump::{Broken, Pump},
    registry::{Entry, Registered},
    splicer::{Inner, Phase},
    splicing::{self, Spliced},
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
    pub(crate) meter: Meter,
    /// For the advisor: over whole round trips, so that a burst or the wait for a window is not taken for the stream.
    pace: Meter,
    since: Instant,
    rounds: u32,
}

/// Why a phase ended without the next one.
#[derive(Debug)]
pub(crate) enum Over {
    /// Both streams have ended in order.
    Finished,
    /// An end was reset, or the system failed: the other is to be reset.
    Broken(io::Error),
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

/// Carries a pair to its end, or to where it needs no process any more.
pub(crate) async fn run(splicer: &Arc<Inner>, pair: Pair) -> io::Result<Ended> {
    let id = splicer.next_id();
    let (client, server) = (legs::addresses(&pair.client)?, legs::addresses(&pair.server)?);
    prepare(&pair)?;
    let now = Instant::now();
    let mut gate = Gate::new(pair.splice, now);
    let detach = pair.detach;
    let mut driver = Driver {
        splicer,
        entry: splicer.registry.add(Entry::new(id, client, server)),
        pump: Pump::new(pair.client, pair.server),
        meter: Meter::new(now),
        pace: Meter::new(now),
        since: now,
        rounds: 0,
    };
    driver.entry.set_reason(splicer.why_relayed(pair.splice));
    loop {
        if let Err(over) = driver.relay(&mut gate).await {
            return Ok(driver.conclude(over, None));
        }
        let attempt = splicing::splice(&mut driver).await;
        match attempt {
            Ok(flow) => return splicing::park(driver, flow, detach).await,
            Err(Spliced::Refused(refusal)) => {
                tracing::debug!(flow = %id, reason = %refusal.reason, passing = refusal.passing, "not spliced");
                driver.entry.set_reason(Some(refusal.reason));
                gate.refused(Instant::now(), refusal.passing);
            }
            Err(Spliced::Over(over, flow)) => return Ok(driver.conclude(over, flow)),
        }
    }
}

/// In control mode a socket that closes because its process died resets the connection: bytes that were in our buffers
/// are lost then, and an end in order would hide that.
fn prepare(pair: &Pair) -> io::Result<()> {
    for socket in [&pair.client, &pair.server] {
        options::set_reset_on_close(socket, true)?;
        options::set_nodelay(socket, true)?;
        options::set_notsent_lowat(socket, NOTSENT_LOWAT)?;
    }
    Ok(())
}

impl Driver<'_> {
    pub(crate) fn id(&self) -> FlowId {
        self.entry.id
    }

    /// Relays until a splice is due.
    async fn relay(&mut self, gate: &mut Gate) -> Result<(), Over> {
        loop {
            self.step()?;
            if self.pump.finished() {
                return Err(Over::Finished);
            }
            let now = Instant::now();
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
            if self.wait(wake).await == Woken::Stop {
                return Err(Over::stopped());
            }
        }
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
    pub(crate) fn conclude(self, over: Over, flow: Option<crate::flow::Flow>) -> Ended {
        let reset = match &over {
            Over::Finished => false,
            Over::Broken(error) => {
                tracing::debug!(flow = %self.id(), %error, "connection broken: both ends are reset");
                true
            }
        };
        let summary = self.summary(false, reset);
        let sockets = self.pump.into_sockets();
        if !reset {
            for socket in &sockets {
                if let Err(error) = options::set_reset_on_close(socket, false) {
                    tracing::debug!(%error, "cannot close in order");
                }
            }
        }
        // While the flow is registered its egress program puts the resets in place.
        drop(sockets);
        drop(flow);
        if let Some(reason) = summary.relay_reason {
            self.splicer.stats.relayed(reason);
        }
        Ended::Closed(summary)
    }

    pub(crate) fn summary(&self, spliced: bool, reset: bool) -> Summary {
        let (to_server, to_client) = (self.pump.bytes(Side::Client), self.pump.bytes(Side::Server));
        self.splicer.stats.relay_bytes.add(to_server + to_client);
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
