//! Holds the library's handle: all calls go through it.

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use longsplice_core::{policy::SplicePolicy, reason::RelayReason};
use longsplice_dataplane::{Dataplane, Error as PlaneError, Options};
use longsplice_repair::options;
use tokio::{sync::watch, time::Instant};

use crate::{
    adopt,
    announce::Announcer,
    api::{Counters, Ended, FlowId, Health, Pair, SplicerConfig},
    conntrack::Conntrack,
    ends::{Ends, FlowEnded},
    fast_path::FastPath,
    flow::Settling,
    held::{self, Holding},
    interfaces,
    mapped::Mapped,
    pair,
    pinning::Pinning,
    ports::SourcePorts,
    reaper,
    registry::Registry,
    routes::Routes,
    rules,
    stats::Stats,
    transitions::Transitions,
    until::Until,
    upkeep::Upkeep,
};

mod as_client;
mod connect;
mod requests;
mod rules_of;
mod shutdown;

/// Joins pairs of connections. Cheap to clone; all clones share one state. When the last is dropped without
/// [`Splicer::shutdown`], detached flows run on, as after SIGKILL.
#[derive(Debug, Clone)]
pub struct Splicer {
    pub(crate) inner: Arc<Inner>,
}

/// Reason that a splicer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process may not load programs, attach them or use `TCP_REPAIR` or a raw socket: a relay is still possible.
    #[error("{0}")]
    Privileges(String),
    /// The kernel lacks a feature: a relay is still possible.
    #[error("{0}")]
    Unsupported(String),
    /// The pins of a predecessor are of another version, or belong to another network namespace, and have flows, which
    /// would be harmed; or the directory of the pins cannot be trusted. A relay is still possible.
    #[error("{0}")]
    Incompatible(String),
    /// Another error has occurred, such as a BPF file system that cannot be written. A relay is still possible.
    #[error("{0}")]
    System(String),
}

impl From<PlaneError> for OpenError {
    fn from(e: PlaneError) -> Self {
        let text = e.to_string();
        match e {
            PlaneError::Privileges { .. } => OpenError::Privileges(text),
            PlaneError::Unsupported { .. } => OpenError::Unsupported(text),
            PlaneError::Version { .. } | PlaneError::Namespace { .. } | PlaneError::Untrusted { .. } => {
                OpenError::Incompatible(text)
            }
            _ => OpenError::System(text),
        }
    }
}

/// Progress of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// No shutdown has begun.
    Running,
    /// Dormant pairs are detached; relayed ones continue.
    Closing,
    /// Relayed pairs are reset.
    Ended,
}

/// Holds the state that all pairs share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: SplicerConfig,
    pub(crate) plane: Option<Arc<Dataplane>>,
    pub(crate) stats: Stats,
    /// Counters of trials, which are not reported ([`Pair::for_trial`]).
    pub(crate) trials: Stats,
    pub(crate) registry: Registry,
    pub(crate) transitions: Transitions,
    pub(crate) mapped: Mapped,
    pub(crate) holding: Holding,
    pub(crate) ends: Ends,
    pub(crate) interfaces: RwLock<HashMap<u32, String>>,
    /// Interfaces that no route leads to any more, and since when: their flows may still need the programs.
    pub(crate) unrouted: Mutex<HashMap<u32, Instant>>,
    pub(crate) fast_path: FastPath,
    pub(crate) routes: Routes,
    pub(crate) pinning: Pinning,
    pub(crate) conntrack: Conntrack,
    pub(crate) rules: rules::Keeper,
    pub(crate) upkeep: Upkeep,
    pub(crate) settling: Mutex<Vec<(Instant, Settling)>>,
    pub(crate) memory_low: AtomicBool,
    /// True while the embedder reports that memory runs short.
    memory_pressed: AtomicBool,
    /// Number of connections that their handlers are done with ([`Splicer::note_closed`]).
    pub(crate) closed: AtomicU64,
    pub(crate) announcer: Option<Announcer>,
    ports: Option<SourcePorts>,
    why_not: Option<(String, RelayReason)>,
    relay_ids: AtomicU32,
    phase: watch::Sender<Phase>,
    descriptors: u64,
}

impl Inner {
    /// Returns a new flow's identity. The numbers wrap, and one that a pair here has is skipped.
    pub(crate) fn next_id(&self) -> FlowId {
        loop {
            let id = FlowId(match &self.plane {
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
        let is_recent = self.plane.as_ref().is_none_or(|plane| plane.is_recent(id.0));
        is_recent && !self.mapped.has(id.0) && self.registry.get(id).is_none()
    }

    /// Returns the reason that a new pair is relayed, before anything was tried.
    pub(crate) fn why_relayed(&self, policy: SplicePolicy) -> Option<RelayReason> {
        match (&self.why_not, policy) {
            (_, SplicePolicy::Never) => Some(RelayReason::PolicyNever),
            (Some((_, reason)), _) => Some(*reason),
            _ => None,
        }
    }

    /// Returns true if the programs are on an interface.
    pub(crate) fn watches(&self, ifindex: u32) -> bool {
        self.interfaces
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(&ifindex)
    }

    /// Returns true if parked sockets should be closed: memory, descriptors or slots run short.
    pub(crate) fn under_pressure(&self) -> bool {
        let pairs = self.registry.len() as u64;
        self.memory_low.load(Ordering::Relaxed)
            || self.memory_pressed.load(Ordering::Relaxed)
            || pairs * 2 > self.descriptors / 4 * 3
            || pairs > u64::from(self.config.max_dormant) / 4 * 3
    }

    pub(crate) fn settle_later(&self, settling: Settling) {
        self.settling
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((Instant::now(), settling));
    }

    /// Returns true if a shutdown has begun.
    pub(crate) fn is_closing(&self) -> bool {
        *self.phase.borrow() >= Phase::Closing
    }

    /// Waits until a shutdown has come this far.
    pub(crate) async fn reached(&self, phase: Phase) {
        // The sender lives as long as we do.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}

impl Splicer {
    /// Loads or adopts the kernel half, and starts to watch interfaces and flows. Sets `conf.lo.forwarding` of `net.ipv4`
    /// and `net.ipv6`, which `shutdown` restores once no flow is left. Adopts flows that a predecessor had spliced: they
    /// are listed and reaped. An adopted flow that meets a trap of the predecessor is relayed here, and spliced again
    /// when the advisor says so, or ends as [`Pair::with_successor`] said.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    ///
    /// # Errors
    /// Returns the reason; [`Splicer::relay_only`] still works after each of them.
    pub async fn open(config: SplicerConfig) -> Result<Splicer, OpenError> {
        // Use a blocking thread: the kernel verifies programs, and all records of a predecessor are read.
        let opened = tokio::task::spawn_blocking(|| Splicer::open_kernel(config)).await;
        let splicer = opened.map_err(|e| OpenError::System(format!("cannot begin: {e}")))??;
        interfaces::watch(&splicer.inner)
            .await
            .map_err(|e| OpenError::System(format!("cannot watch interfaces: {e}")))?;
        held::start(&splicer.inner).map_err(|e| OpenError::System(format!("cannot read the ring: {e}")))?;
        reaper::start(&splicer.inner);
        Ok(splicer)
    }

    /// Opens the kernel half, with the flows of a predecessor; nothing is attached yet.
    fn open_kernel(config: SplicerConfig) -> Result<Splicer, OpenError> {
        longsplice_repair::probe_repair().map_err(|e| match e.raw_os_error() {
            Some(1 | 13) => OpenError::Privileges(format!("splicing needs CAP_NET_ADMIN: {e}")),
            _ => OpenError::Unsupported(format!("this kernel has no TCP_REPAIR: {e}")),
        })?;
        let announcer = Announcer::open().map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => {
                OpenError::Privileges(format!("splicing needs CAP_NET_RAW: {e}"))
            }
            _ => OpenError::System(format!("cannot open a raw socket: {e}")),
        })?;
        let options = Options {
            instance: config.instance.clone(),
            max_flows: config.max_flows,
            max_slots: config.max_dormant,
        };
        let (plane, orphans) = Dataplane::open(&options)?;
        let ports = SourcePorts::reserve(config.source_ports.clone())
            .map_err(|e| OpenError::System(format!("cannot set up source ports: {e}")))?;
        let mut inner = Inner::new(config, Some(plane), Some(ports), None);
        inner.announcer = Some(announcer);
        let splicer = Splicer {
            inner: Arc::new(inner),
        };
        adopt::adopt(&splicer.inner, orphans);
        Ok(splicer)
    }

    /// Returns a splicer that only relays, for this reason.
    pub fn relay_only(config: SplicerConfig, why: OpenError) -> Splicer {
        let reason = match why {
            OpenError::Privileges(_) => RelayReason::NoPrivilege,
            OpenError::Unsupported(_) => RelayReason::Unsupported,
            OpenError::Incompatible(_) => RelayReason::Pins,
            OpenError::System(_) => RelayReason::System,
        };
        Splicer {
            inner: Arc::new(Inner::new(config, None, None, Some((why.to_string(), reason)))),
        }
    }

    /// Counts an accepted connection. Its socket resets when it is dropped or the process dies (`SO_LINGER` of 0), until
    /// the pair has ended or comes back.
    ///
    /// # Errors
    /// Returns an error if the socket is not a TCP socket, or not connected any more.
    pub fn prepare_client(&self, client: impl AsFd) -> io::Result<()> {
        self.inner.stats.accepted.add(1);
        Ok(options::set_reset_on_close(client, true)?)
    }

    /// Counts an accepted connection whose handler reads its protocol before a possible splice. Its socket is not
    /// changed, and resets from the call of [`Splicer::splice`] on.
    pub fn note_accepted(&self) {
        self.inner.stats.accepted.add(1);
    }

    /// Notes that a handler is done with a connection, and has freed its memory. After many of them free memory is given
    /// back to the system.
    pub fn note_closed(&self) {
        self.inner.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets whether memory runs short: as long as it does, sockets of spliced pairs are closed early. The machine's free
    /// memory is watched without this.
    pub fn set_memory_pressure(&self, runs_short: bool) {
        self.inner.memory_pressed.store(runs_short, Ordering::Relaxed);
    }

    /// Counts a connection that its handler carried to its end by itself, for a reason that rules out a pair, with so
    /// many bytes of payload.
    pub fn count_relayed(&self, reason: RelayReason, bytes: u64) {
        self.inner.stats.relayed(reason);
        self.inner.stats.relay_bytes.add(bytes);
    }

    /// Relays a pair, and splices it when its policy says so. Returns when both ends are done, when a condition of
    /// `until` is met, or when the flow needs no task any more (papers' sections III-C and III-D). Takes a [`Pair`], or
    /// one that an earlier call [returned](Ended::Returned).
    ///
    /// A pair comes back once all that was read of it is written. With a condition of payload, bytes are read only when
    /// they can be written. Without one, a slow reader delays the return, and what the other end sends passes meanwhile.
    /// When the splicer shuts down, a relayed pair is reset after the grace period: that is an ending, too.
    ///
    /// Not cancel-safe: dropping the future resets the connections (see the crate's page).
    ///
    /// # Errors
    /// Returns an error only if the sockets are unusable from the start (not connected any more, not TCP); they are
    /// closed then. A connection that breaks later is an ending.
    pub async fn splice(&self, pair: impl Into<Pair>, until: Until) -> io::Result<Ended> {
        pair::run(&self.inner, pair.into(), until).await
    }

    /// Returns the present counters.
    pub fn counters(&self) -> Counters {
        let segments = self
            .inner
            .plane
            .as_ref()
            .map(|p| p.verdicts())
            .unwrap_or_default();
        self.inner.stats.snapshot(segments)
    }

    /// Returns the abilities of this splicer.
    pub fn health(&self) -> Health {
        let inner = &self.inner;
        let mut interfaces: Vec<String> = inner
            .interfaces
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect();
        interfaces.sort();
        let lost = inner.pinning.why_lost();
        Health {
            can_splice: inner.plane.is_some() && lost.is_none(),
            why_not: inner.why_not.as_ref().map(|(why, _)| why.clone()).or(lost),
            interfaces,
            xdp: inner.fast_path.interfaces(),
            flows: inner.plane.as_ref().map_or(0, |p| p.flow_count().into()),
            max_flows: inner.plane.as_ref().map_or(0, |p| p.max_flows()),
            source_ports: inner.ports.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// Sets a callback for the ends of flows that no task waits for: those for which [`Splicer::splice`] returned
    /// [`Ended::Detached`], later than the first call of this. `tell` must not block; a second one is never called.
    pub fn tell_ends(&self, tell: impl Fn(FlowEnded) + Send + Sync + 'static) {
        self.inner.ends.tell(Box::new(tell));
    }
}

impl Inner {
    fn new(
        config: SplicerConfig,
        plane: Option<Dataplane>,
        ports: Option<SourcePorts>,
        why_not: Option<(String, RelayReason)>,
    ) -> Inner {
        Inner {
            transitions: Transitions::new(config.max_dormant),
            config,
            plane: plane.map(Arc::new),
            stats: Stats::default(),
            trials: Stats::default(),
            registry: Registry::default(),
            mapped: Mapped::default(),
            holding: Holding::default(),
            ends: Ends::default(),
            interfaces: RwLock::default(),
            unrouted: Mutex::default(),
            fast_path: FastPath::default(),
            routes: Routes::default(),
            pinning: Pinning::default(),
            conntrack: Conntrack::default(),
            rules: rules::Keeper::default(),
            upkeep: Upkeep::default(),
            settling: Mutex::default(),
            memory_low: AtomicBool::new(false),
            memory_pressed: AtomicBool::new(false),
            closed: AtomicU64::new(0),
            announcer: None,
            ports,
            why_not,
            relay_ids: AtomicU32::new(1),
            phase: watch::Sender::new(Phase::Running),
            descriptors: descriptor_limit(),
        }
    }
}

/// Returns the number of descriptors that this process may have.
fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}
