//! Holds the state that all pairs of a splicer share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use longsplice_core::{policy::SplicePolicy, reap::Limits, reason::RelayReason};
use longsplice_dataplane::{Dataplane, Leg, PerSide};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{FlowId, SplicerConfig},
    kernel::Kernel,
    services::{
        ends::Ends, interfaces::Interfaces, maintenance::Maintenance, order::Order, pinning::Pinning,
        ports::SourcePorts, registry::Registry, routes::Routes, rules, stats::Stats, targets::Targets,
        transitions::Transitions, unpaired::UnpairedLegs, xdp::FastPath,
    },
};

/// Reason that a splicer only relays: for its users, and for its counters.
pub(crate) type WhyNot = (String, RelayReason);

/// Holds the kernel half and the services.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) config: SplicerConfig,
    /// Kernel half; `None`: pairs are only relayed.
    pub(crate) kernel: Option<Arc<Kernel>>,
    pub(crate) why_not: Option<WhyNot>,
    pub(crate) stats: Stats,
    /// Counters of trials, which are not reported ([`crate::Pair::for_trial`]).
    pub(crate) trials: Stats,
    pub(crate) registry: Registry,
    pub(crate) transitions: Transitions,
    pub(crate) unpaired: UnpairedLegs,
    pub(crate) ends: Ends,
    pub(crate) interfaces: Interfaces,
    pub(crate) xdp: FastPath,
    pub(crate) routes: Routes,
    pub(crate) targets: Targets,
    pub(crate) order: Order,
    pub(crate) pinning: Pinning,
    pub(crate) rules: rules::Keeper,
    pub(crate) maintenance: Maintenance,
    pub(crate) ports: Option<SourcePorts>,
    /// Held while an ended flow is looked at and its records are removed.
    pub(crate) reaping: Mutex<()>,
    /// Cancelled when a shutdown begins: dormant pairs are detached; relayed ones continue.
    pub(crate) closing: CancellationToken,
    /// Cancelled at its end: relayed pairs are reset.
    pub(crate) ended: CancellationToken,
    /// Number of connections that their handlers are done with ([`crate::Splicer::note_closed`]).
    pub(crate) closed: AtomicU64,
    pub(crate) memory_low: AtomicBool,
    /// True once a failed adoption was logged.
    pub(crate) adoption_failed: AtomicBool,
    /// True while the embedder reports that memory runs short.
    pub(crate) memory_pressed: AtomicBool,
    /// Share of all packets, in percent, of connections that pass this host and of which it has no sockets, as the embedder reports
    /// it.
    pub(crate) plain_percent: AtomicU32,
    /// Number of accelerated pairs that have a queue on a leg.
    pub(crate) queued: AtomicU32,
    relay_ids: AtomicU32,
    descriptors: u64,
}

impl Context {
    /// Returns a context with the kernel half and its source ports, or with the reason that there is none.
    pub(crate) fn new(config: SplicerConfig, opened: Result<(Kernel, SourcePorts), WhyNot>) -> Context {
        let (kernel, ports, why_not) = match opened {
            Ok((kernel, ports)) => (Some(Arc::new(kernel)), Some(ports), None),
            Err(why) => (None, None, Some(why)),
        };
        let slots = kernel.as_ref().map_or(0, |kernel| kernel.plane.max_slots());
        Context {
            transitions: Transitions::new(slots),
            config,
            kernel,
            why_not,
            ports,
            relay_ids: AtomicU32::new(1),
            descriptors: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            ..Context::default()
        }
    }

    /// Returns the times after which the record of a flow is removed.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            record_ttl: self.config.record_ttl,
            idle_timeout: self.config.idle_timeout,
        }
    }

    /// Returns the programs and their tables; `None`: pairs are only relayed.
    pub(crate) fn plane(&self) -> Option<&Arc<Dataplane>> {
        self.kernel.as_ref().map(|kernel| &kernel.plane)
    }

    /// Removes the records of a flow: its source port is free.
    pub(crate) fn unregister(&self, serial: u32, legs: PerSide<Leg>) {
        if let Some(plane) = self.plane() {
            plane.unregister(serial, legs);
        }
        if let Some(ports) = &self.ports {
            ports.note_free(legs.server);
        }
    }

    /// Returns a new flow's identity. The numbers wrap, and one that a pair here has is skipped.
    pub(crate) fn next_id(&self) -> FlowId {
        loop {
            let id = FlowId(match self.plane() {
                Some(plane) => plane.next_serial(),
                None => self.relay_ids.fetch_add(1, Ordering::Relaxed),
            });
            if self.registry.get(id).is_none() {
                return id;
            }
        }
    }

    /// Returns true if a pair that comes once more can keep its identity: while its handler had it, nothing showed that
    /// it was in use.
    pub(crate) fn is_still_its(&self, id: FlowId) -> bool {
        let is_recent = self.plane().is_none_or(|plane| plane.is_recent(id.0));
        is_recent && !self.unpaired.has(id.0) && self.registry.get(id).is_none()
    }

    /// Returns the reason that a new pair is relayed, before anything was tried.
    pub(crate) fn why_relayed(&self, policy: SplicePolicy) -> Option<RelayReason> {
        match (&self.why_not, policy) {
            (_, SplicePolicy::Never) => Some(RelayReason::PolicyNever),
            (Some((_, reason)), _) => Some(*reason),
            _ => None,
        }
    }

    /// Returns true if parked sockets should be closed: memory, descriptors or slots run short.
    pub(crate) fn under_pressure(&self) -> bool {
        let pairs = self.registry.len() as u64;
        self.memory_low.load(Ordering::Relaxed)
            || self.memory_pressed.load(Ordering::Relaxed)
            || pairs * 2 > self.descriptors / 4 * 3
            || self
                .plane()
                .is_some_and(|plane| plane.free_slots() < plane.max_slots() / 4)
    }

    /// Does work on a thread that may block. The work is done even if the future is dropped. `None`: it was not done, as
    /// this splicer has no kernel half, or has ended.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        self: &Arc<Context>,
        work: impl FnOnce(&Context, &Kernel) -> T + Send + 'static,
    ) -> Option<T> {
        let context = Arc::clone(self);
        let done = spawn_blocking(move || {
            let kernel = context.kernel.as_ref()?;
            context.maintenance.run(|| work(&context, kernel))
        });
        match done.await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "work in the kernel half was cut off");
                None
            }
        }
    }
}
