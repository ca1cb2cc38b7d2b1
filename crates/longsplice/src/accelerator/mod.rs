//! Runs the transparent accelerator (paper 004): takes connections over at their handshake, relays them as long as two
//! control loops are better than one, and releases them into the kernel.
//!
//! A connection is taken over when its SYN is answered ([`longsplice_engine::handshake`]). Both sockets have the numbers
//! of the far ends, so the release is a splice that translates nothing. Everything that is not taken over goes on as if
//! the node were a router only, and the reason is counted.

mod admission;
mod buffers;
mod counts;
mod distances;
mod early;
mod firewall;
mod losses;
pub(crate) mod passed;
mod plain_traffic;
mod release;

use std::{
    collections::HashMap,
    net::SocketAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use longsplice_engine::{
    Acceleration, Ended, FlowHandle, IdlePolicy, Keepalive, Pair, PerSide, Returned, Splicer, Trap, Until,
    handshake::{Confirmed, Handshakes, Opened, Taken},
    intercept::LocalAddresses,
    notrack::Notrack,
    policy::SplicePolicy,
    reason::RelayReason,
    rules::{RulePacket, RulePackets, RulesError},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::{
    admission::{Interfaces, Place},
    buffers::Buffers,
    counts::Counts,
    distances::Distances,
    early::EarlyAnswers,
    firewall::Firewall,
    losses::{Released, ReleasedTable},
    passed::PassedList,
    release::Carried,
};
use crate::{config::AccelerateConfig, congestion, listener::Shared};

pub(crate) use counts::{AcceleratorStatus, AgainReason, PassReason};
pub(crate) use passed::PassedThrough;

/// The running accelerator.
#[derive(Debug)]
pub(crate) struct Accelerator {
    config: AccelerateConfig,
    shared: Arc<Shared>,
    interfaces: Interfaces,
    local: LocalAddresses,
    buffers: Buffers,
    counts: Counts,
    distances: Mutex<Distances>,
    passed: Mutex<PassedList>,
    notrack: Notrack,
    firewall: Firewall,
    /// Connections that were released.
    released: Mutex<ReleasedTable>,
    /// Taken-over connections that a task carries.
    carried: Mutex<HashMap<u64, Carried>>,
    next: AtomicU64,
    /// True while the daemon shuts down: no further connection is taken over.
    closing: AtomicBool,
    /// Tells the task that reads handshakes of the shutdown.
    stops: Notify,
    /// Number of connections whose client has not acknowledged the answer.
    unconfirmed: AtomicUsize,
    /// True while connections are released because memory runs short.
    relieving: AtomicBool,
    early: EarlyAnswers,
}

impl Accelerator {
    /// Starts to take connections over. Its rules must be set afterwards, or before and soon: they hold what they ask
    /// about until it is read. Fails if this splicer cannot have rules.
    pub(crate) fn start(
        config: AccelerateConfig,
        instance: &str,
        shared: &Arc<Shared>,
    ) -> Result<Arc<Accelerator>, RulesError> {
        let packets = shared.splicer.rule_packets()?;
        let local = LocalAddresses::open()
            .map_err(|error| RulesError::System(format!("the host's addresses: {error}")))?;
        let notrack = Notrack::new(&shared.splicer, instance, config.interfaces());
        notrack.look();
        let accelerator = Arc::new(Accelerator {
            interfaces: Interfaces::new(&config),
            local,
            config,
            shared: Arc::clone(shared),
            buffers: Buffers::default(),
            notrack,
            firewall: Firewall::default(),
            counts: Counts::default(),
            distances: Mutex::default(),
            passed: Mutex::default(),
            released: Mutex::default(),
            carried: Mutex::default(),
            next: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            stops: Notify::new(),
            unconfirmed: AtomicUsize::new(0),
            relieving: AtomicBool::new(false),
            early: EarlyAnswers::new(),
        });
        tokio::spawn(Arc::clone(&accelerator).read(packets));
        tokio::spawn(Arc::clone(&accelerator).watch_plain_traffic());
        tokio::spawn(Arc::clone(&accelerator).watch_losses());
        Ok(accelerator)
    }

    /// Returns its state and counters.
    pub(crate) fn status(&self) -> AcceleratorStatus {
        self.counts.snapshot(self.carried.lock().len())
    }

    /// Returns the connections that were passed through lately, the oldest first.
    pub(crate) fn passed_through(&self) -> Vec<PassedThrough> {
        self.passed.lock().list(Instant::now())
    }

    fn splicer(&self) -> &Splicer {
        &self.shared.splicer
    }

    /// Reads handshakes until the process ends.
    async fn read(self: Arc<Self>, mut packets: RulePackets) {
        let mut handshakes = Handshakes::new(self.splicer());
        loop {
            let next = tokio::select! {
                next = packets.next() => Some(next),
                () = handshakes.due() => None,
                () = self.stops.notified() => {
                    let passed = handshakes.pass_unconfirmed();
                    passed.into_iter().for_each(|taken| self.see(&handshakes, taken));
                    None
                }
            };
            match next {
                Some(Ok(some)) => some.iter().for_each(|packet| self.take(&mut handshakes, packet)),
                Some(Err(error)) => {
                    return tracing::error!(%error, "handshakes cannot be read any more: restart the daemon");
                }
                None => {
                    let seen = handshakes.look();
                    seen.into_iter().for_each(|taken| self.see(&handshakes, taken));
                }
            }
            self.unconfirmed
                .store(handshakes.unconfirmed(), Ordering::Relaxed);
            if self.closing.load(Ordering::Relaxed) {
                *self.early.unheard.lock() = Some(handshakes.unheard_early());
            }
        }
    }

    fn take(self: &Arc<Self>, handshakes: &mut Handshakes, packet: &RulePacket) {
        match handshakes.take(packet, |step| self.admission(step)) {
            Ok(Some(taken)) => self.see(handshakes, taken),
            Ok(None) => self.notrack.look(),
            Err(error) => {
                self.counts.passed_through(PassReason::System);
                tracing::debug!(%error, "a handshake could not be completed: its ends try again");
            }
        }
    }

    /// Acts on what has become of a handshake.
    fn see(self: &Arc<Self>, handshakes: &Handshakes, taken: Taken) {
        match taken {
            Taken::Opened(opened) => {
                self.note_distance(opened.step.client, opened.handle.round_trips().client);
                self.open(opened, None);
            }
            Taken::Early(early) => {
                let known = handshakes.known_servers().clone();
                tokio::spawn(Arc::clone(self).connect_early(early, known));
            }
            Taken::Confirmed(Confirmed {
                client, round_trip, ..
            }) => self.note_distance(client, Some(round_trip)),
            Taken::Passed(step) => {
                self.early.prove();
                self.note_distance(step.server, step.answer.and_then(|answer| answer.round_trip));
            }
            Taken::HalfSeen { client, server } => {
                // The SYN of a connection that this host opens does not come in.
                let is_own = [client, server].iter().any(|end| self.local.contains(end.ip()));
                let reason = match is_own {
                    true => PassReason::OwnAddress,
                    false => PassReason::Asymmetric,
                };
                if !self.passed.lock().holds((client, server), reason) {
                    self.pass_through((client, server), reason);
                }
            }
            Taken::Unconfirmed { client, server } => {
                self.pass_through((client, server), PassReason::Unconfirmed);
            }
            Taken::Undelivered { client, server } => {
                self.firewall.note_dropped();
                self.pass_through((client, server), PassReason::Firewall);
            }
            Taken::Refused {
                client,
                server,
                error,
            } => {
                tracing::debug!(%error, "the sockets of a connection were refused");
                self.pass_through((client, server), PassReason::System);
            }
        }
    }

    fn note_distance(&self, end: SocketAddr, round_trip: Option<Duration>) {
        if let Some(time) = round_trip {
            let now = Instant::now();
            self.distances.lock().note(end.ip(), time, now);
        }
    }

    /// Has a task carry a connection that was just taken over. `keepalive`: probes of its ends while it is idle.
    fn open(self: &Arc<Self>, opened: Opened, keepalive: Option<Keepalive>) {
        self.early.prove();
        self.firewall.note_opened();
        self.counts.taken_over();
        let Opened { pair, step, handle } = opened;
        let client = self.interfaces.place(step.client_interface);
        self.set_congestion(&pair.client, &pair.server, client);
        self.note_distance(step.server, handle.round_trips().server);
        let released = Released {
            ends: (step.client, step.server),
            class: self.class_of(&step),
            client,
            round_trips: handle.round_trips(),
            times: 0,
        };
        self.carry(Box::new(self.with_idle(pair, keepalive)), handle, released);
    }

    /// Returns a pair that is released when nothing has passed for too long. The ends probe each other, if they want to: the
    /// node's probes would reset what a router keeps in an outage.
    fn with_idle(&self, pair: Pair, keepalive: Option<Keepalive>) -> Pair {
        pair.with_idle(IdlePolicy {
            limit: Some(self.config.idle_timeout),
            keepalive,
        })
    }

    /// Sets the configured congestion controls. `place`: side of the client; with an unknown one the kernel's own stay.
    fn set_congestion(&self, client: impl AsFd, server: impl AsFd, place: Option<Place>) {
        let (inside, outside) = (&self.config.inside_congestion, &self.config.outside_congestion);
        let (of_client, of_server) = match place {
            Some(Place::Inside) => (inside, outside),
            Some(Place::Outside) => (outside, inside),
            None => return,
        };
        for set in [
            congestion::set(client, of_client.as_deref()),
            congestion::set(server, of_server.as_deref()),
        ] {
            if set.is_err() {
                self.counts.note_congestion_failure();
            }
        }
    }

    /// Takes a released connection over again. It stays so until its release is requested.
    pub(crate) fn resume(self: &Arc<Self>, returned: Returned, reason: AgainReason) {
        self.counts.taken_over_again(reason);
        let known = self.released.lock().get(returned.id);
        let ends = || {
            Some((
                returned.client.peer_addr().ok()?,
                returned.server.peer_addr().ok()?,
            ))
        };
        let Some(ends) = known.map(|known| known.ends).or_else(ends) else {
            return tracing::debug!(flow = %returned.id, "it had ended before it was carried");
        };
        let released = known.unwrap_or(Released {
            ends,
            class: usize::MAX,
            client: None,
            round_trips: PerSide::both(None),
            times: 0,
        });
        self.set_congestion(&returned.client, &returned.server, released.client);
        let pair = self.with_idle(taken_over_again(returned, reason), None);
        self.carry(Box::new(pair), FlowHandle::default(), released);
    }

    /// Has a task relay a connection until it ends or is released. `released`: what is known of it then.
    fn carry(self: &Arc<Self>, pair: Box<Pair>, handle: FlowHandle, released: Released) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let carried = Carried::new(handle.clone(), released.class);
        self.carried.lock().insert(number, carried);
        tokio::spawn(Arc::clone(self).relay(number, pair, handle, released));
    }

    /// Relays a connection that is among the carried ones by this number. There are thousands of these tasks: what is large
    /// stands in boxes, and only while it is needed.
    async fn relay(
        self: Arc<Self>,
        number: u64,
        pair: Box<Pair>,
        handle: FlowHandle,
        mut released: Released,
    ) {
        let acceleration = Acceleration {
            thresholds: self.config.thresholds(),
            queue: self.config.queue,
        };
        let splice = |pair: Pair| Box::pin(self.splicer().splice(pair, Until::closed()));
        let mut call = splice(pair.with_acceleration(acceleration).with_handle(&handle));
        loop {
            let mut is_noted = false;
            let over = tokio::select! {
                ended = &mut call => Some(ended),
                () = handle.spliced() => None,
            };
            let ended = match over {
                Some(ended) => ended,
                None => {
                    self.note_release(&handle, &mut released);
                    is_noted = true;
                    call.as_mut().await
                }
            };
            if let (Ok(Ended::Returned(_)), Some(carried)) = (&ended, self.carried.lock().get_mut(&number)) {
                carried.stay();
            }
            match ended {
                Ok(Ended::Returned(returned)) if returned.why == Trap::Admin => {
                    let known = self.released.lock().get(returned.id);
                    let is_lossy = known.is_some_and(|known| known.times > released.times);
                    released = known.unwrap_or(released);
                    let reason = match is_lossy {
                        true => AgainReason::Losses,
                        false => AgainReason::Command,
                    };
                    self.counts.taken_over_again(reason);
                    self.set_congestion(&returned.client, &returned.server, released.client);
                    call = splice(taken_over_again(returned, reason));
                }
                Ok(Ended::Returned(returned)) => call = splice(returned.into()),
                Ok(Ended::Closed(summary)) => {
                    tracing::debug!(flow = %summary.id, reset = summary.reset, spliced = summary.spliced, "accelerated connection ended");
                    self.released.lock().remove(summary.id);
                    break;
                }
                Ok(Ended::Detached(id)) => {
                    // Both may come at one moment.
                    if !is_noted {
                        self.note_release(&handle, &mut released);
                    }
                    tracing::debug!(flow = %id, "released: it runs on in the kernel");
                    break;
                }
                Err(error) => {
                    tracing::debug!(%error, "an accelerated connection had ended before it was carried");
                    break;
                }
            }
        }
        self.carried.lock().remove(&number);
    }
}

/// Returns the number of connections that a daemon holds: those of listeners, and of its accelerator.
pub(crate) fn all_open(shared: &Shared, accelerator: Option<&Accelerator>) -> usize {
    shared.tracker.count() + accelerator.map_or(0, Accelerator::held)
}

/// Returns a pair that is taken over again, and stays so.
fn taken_over_again(returned: Returned, reason: AgainReason) -> Pair {
    let pair = Pair::from(returned).with_splice(SplicePolicy::Never);
    match reason {
        AgainReason::Command => pair.with_reason(RelayReason::ByCommand),
        AgainReason::Losses => pair.with_reason(RelayReason::AdvisedLoss),
    }
}
