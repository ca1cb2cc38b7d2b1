//! Runs the transparent accelerator (paper 004): takes connections over at their handshake, relays them as long as two
//! control loops are better than one, and releases them into the kernel.
//!
//! A connection is taken over when its SYN is answered ([`longsplice_engine::handshake`]). Both sockets have the numbers
//! of the far ends, so the release is a splice that translates nothing. Everything that is not taken over goes on as if
//! the node were a router only, and the reason is counted.

mod admission;
mod counts;

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use longsplice_engine::{
    Acceleration, Ended, FlowHandle, Pair, PerSide, RequestError, Returned, Splicer, Trap, Until,
    handshake::{Handshakes, Opened},
    policy::SplicePolicy,
    rules::{RulePacket, RulePackets, RulesError},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use self::{
    admission::{Interfaces, Place},
    counts::Counts,
};
use crate::{
    config::{AccelerateConfig, idle_policy},
    congestion,
    listener::Shared,
};

pub use counts::{AcceleratorStatus, PassReason};

/// Time between two attempts to release a connection.
const AGAIN: Duration = Duration::from_millis(50);

/// The running accelerator.
#[derive(Debug)]
pub struct Accelerator {
    config: AccelerateConfig,
    shared: Arc<Shared>,
    interfaces: Interfaces,
    counts: Counts,
    /// Taken-over connections that a task carries.
    carried: Mutex<HashMap<u64, FlowHandle>>,
    next: AtomicU64,
    /// True while the daemon shuts down: no further connection is taken over.
    closing: AtomicBool,
}

impl Accelerator {
    /// Starts to take connections over. Its rules must be set afterwards, or before and soon: they hold what they ask
    /// about until it is read.
    ///
    /// # Errors
    /// [`RulesError`] if this splicer cannot have rules.
    pub(crate) fn start(
        config: AccelerateConfig,
        shared: &Arc<Shared>,
    ) -> Result<Arc<Accelerator>, RulesError> {
        let packets = shared.splicer.rule_packets()?;
        let accelerator = Arc::new(Accelerator {
            interfaces: Interfaces::new(&config),
            config,
            shared: Arc::clone(shared),
            counts: Counts::default(),
            carried: Mutex::default(),
            next: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        });
        tokio::spawn(Arc::clone(&accelerator).read(packets));
        Ok(accelerator)
    }

    /// Returns its state and counters.
    pub fn status(&self) -> AcceleratorStatus {
        self.counts.snapshot(self.carried().len())
    }

    fn carried(&self) -> MutexGuard<'_, HashMap<u64, FlowHandle>> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn splicer(&self) -> &Splicer {
        &self.shared.splicer
    }

    /// Reads handshakes until the process ends.
    async fn read(self: Arc<Self>, mut packets: RulePackets) {
        let mut handshakes = Handshakes::new(self.splicer());
        loop {
            match packets.next().await {
                Ok(some) => some.iter().for_each(|packet| self.take(&mut handshakes, packet)),
                Err(error) => {
                    return tracing::error!(%error, "handshakes cannot be read any more: restart the daemon");
                }
            }
        }
    }

    fn take(self: &Arc<Self>, handshakes: &mut Handshakes, packet: &RulePacket) {
        match handshakes.take(packet, |step| self.admits(step)) {
            Ok(Some(opened)) => {
                tokio::spawn(Arc::clone(self).open(opened));
            }
            Ok(None) => {}
            Err(error) => {
                self.counts.passed_through(PassReason::System);
                tracing::debug!(%error, "a handshake could not be completed: its ends try again");
            }
        }
    }

    /// Carries a connection that was just taken over.
    async fn open(self: Arc<Self>, opened: Opened) {
        self.counts.taken_over();
        let Opened { pair, step } = opened;
        let client = self.interfaces.place(step.client_interface);
        for (socket, is_inside) in [
            (&pair.client, client == Some(Place::Inside)),
            (&pair.server, client == Some(Place::Outside)),
        ] {
            if self.set_congestion(socket, is_inside).is_err() {
                self.counts.note_congestion_failure();
            }
        }
        let round_trip = step.answer.and_then(|answer| answer.round_trip);
        self.carry(pair, PerSide::new(None, round_trip)).await;
    }

    fn set_congestion(&self, socket: impl AsFd, is_inside: bool) -> io::Result<()> {
        let name = match is_inside {
            true => &self.config.inside_congestion,
            false => &self.config.outside_congestion,
        };
        congestion::set(socket, name.as_deref())
    }

    /// Takes a released connection over again, by command; it stays so until a splice is requested.
    pub(crate) fn resume(self: &Arc<Self>, returned: Returned) {
        self.counts.taken_over();
        let pair = Pair::from(returned).with_splice(SplicePolicy::Never);
        let accelerator = Arc::clone(self);
        tokio::spawn(async move { accelerator.carry(pair, PerSide::both(None)).await });
    }

    /// Relays a connection until it ends or is released.
    async fn carry(&self, pair: Pair, round_trips: PerSide<Option<Duration>>) {
        let handle = FlowHandle::default();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.carried().insert(number, handle.clone());
        let mut pair = pair
            .with_idle(idle_policy(None, None))
            .with_acceleration(Acceleration {
                thresholds: self.config.thresholds(),
                queue: self.config.queue,
                round_trips,
            })
            .with_handle(&handle);
        loop {
            let call = self.splicer().splice(pair, Until::closed());
            let ended = async {
                tokio::pin!(call);
                tokio::select! {
                    ended = &mut call => return ended,
                    () = handle.spliced() => self.counts.released(),
                }
                call.await
            };
            match ended.await {
                Ok(Ended::Returned(returned)) if returned.why == Trap::Admin => {
                    self.counts.taken_over();
                    pair = Pair::from(returned).with_splice(SplicePolicy::Never);
                }
                Ok(Ended::Returned(returned)) => pair = returned.into(),
                Ok(Ended::Closed(summary)) => {
                    tracing::debug!(flow = %summary.id, reset = summary.reset, spliced = summary.spliced, "accelerated connection ended");
                    break;
                }
                Ok(Ended::Detached(id)) => {
                    tracing::debug!(flow = %id, "released: it runs on in the kernel");
                    break;
                }
                Err(error) => {
                    tracing::debug!(%error, "an accelerated connection had ended before it was carried");
                    break;
                }
            }
        }
        self.carried().remove(&number);
    }

    /// Takes no connection over any more, and releases all that it has, busy ones too, for at most `time`. Returns the
    /// number of connections that it still carries.
    pub(crate) async fn close(&self, time: Duration) -> usize {
        self.closing.store(true, Ordering::Relaxed);
        let until = Instant::now() + time;
        loop {
            let flows: Vec<_> = self.carried().values().filter_map(FlowHandle::id).collect();
            let mut asked = JoinSet::new();
            for id in flows {
                let splicer = self.splicer().clone();
                asked.spawn(async move { splicer.request_splice(id).await });
            }
            let answers = tokio::select! {
                answers = asked.join_all() => answers,
                () = sleep_until(until) => return self.carried().len(),
            };
            // A pair that may never be spliced would answer so at each attempt: the time ends that.
            let waiting = answers
                .iter()
                .filter(|answer| matches!(answer, Err(RequestError::StaysRelayed(..))))
                .count();
            if waiting == 0 || Instant::now() >= until {
                return waiting;
            }
            sleep_until(until.min(Instant::now() + AGAIN)).await;
        }
    }
}
