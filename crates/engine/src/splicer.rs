//! The handle through which everything is asked.

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
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
    ends::{Ends, FlowEnded},
    fast_path::FastPath,
    flow::Settling,
    held::{self, Holding},
    interfaces,
    mapped::Mapped,
    pair,
    ports::SourcePorts,
    reaper,
    registry::Registry,
    routes::Routes,
    rules,
    stats::Stats,
    until::Until,
    upkeep::Upkeep,
};

mod as_client;
mod connect;
mod requests;
mod rules_of;
mod shutdown;

/// Joins pairs of connections. Cheap to clone; all clones are one. When the last is dropped without
/// [`Splicer::shutdown`], flows that are detached run on, as after SIGKILL.
#[derive(Debug, Clone)]
pub struct Splicer {
    pub(crate) inner: Arc<Inner>,
}

/// Why a splicer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process may not load programs, attach them or use `TCP_REPAIR` or a raw socket: a relay is still possible.
    #[error("{0}")]
    Privileges(String),
    /// The kernel cannot do it: a relay is still possible.
    #[error("{0}")]
    Unsupported(String),
    /// What a predecessor pinned is of another version, or belongs to another network namespace, and has flows: starting
    /// would harm them.
    #[error("{0}")]
    Incompatible(String),
    /// Anything else.
    #[error("{0}")]
    System(String),
}

impl From<PlaneError> for OpenError {
    fn from(e: PlaneError) -> Self {
        let text = e.to_string();
        match e {
            PlaneError::Privileges { .. } => OpenError::Privileges(text),
            PlaneError::Unsupported { .. } => OpenError::Unsupported(text),
            PlaneError::Version { .. } | PlaneError::Namespace { .. } => OpenError::Incompatible(text),
            _ => OpenError::System(text),
        }
    }
}

/// How far a shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// There is none.
    Running,
    /// What is dormant is detached; what is relayed goes on.
    Closing,
    /// What is relayed is reset.
    Ended,
}

/// What all pairs share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: SplicerConfig,
    pub(crate) plane: Option<Arc<Dataplane>>,
    pub(crate) stats: Stats,
    /// What nobody is told of ([`Pair::for_trial`]).
    pub(crate) trials: Stats,
    pub(crate) registry: Registry,
    pub(crate) mapped: Mapped,
    pub(crate) holding: Holding,
    pub(crate) ends: Ends,
    pub(crate) interfaces: RwLock<HashMap<u32, String>>,
    pub(crate) fast_path: FastPath,
    pub(crate) routes: Routes,
    pub(crate) rules: rules::Keeper,
    pub(crate) upkeep: Upkeep,
    pub(crate) settling: Mutex<Vec<(Instant, Settling)>>,
    pub(crate) memory_low: AtomicBool,
    pub(crate) announcer: Option<Announcer>,
    ports: Option<SourcePorts>,
    why_not: Option<(String, RelayReason)>,
    relay_ids: AtomicU32,
    phase: watch::Sender<Phase>,
    descriptors: u64,
}

impl Inner {
    /// A new flow's identity.
    pub(crate) fn next_id(&self) -> FlowId {
        FlowId(match &self.plane {
            Some(plane) => plane.next_serial(),
            None => self.relay_ids.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Why a new pair is relayed, before anything was tried.
    pub(crate) fn why_relayed(&self, policy: SplicePolicy) -> Option<RelayReason> {
        match (&self.why_not, policy) {
            (_, SplicePolicy::Never) => Some(RelayReason::PolicyNever),
            (Some((_, reason)), _) => Some(*reason),
            _ => None,
        }
    }

    /// Whether the programs are on an interface.
    pub(crate) fn watches(&self, ifindex: u32) -> bool {
        self.interfaces
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(&ifindex)
    }

    /// Whether parked sockets should go: memory, descriptors or slots run short.
    pub(crate) fn under_pressure(&self) -> bool {
        let pairs = self.registry.len() as u64;
        self.memory_low.load(Ordering::Relaxed)
            || pairs * 2 > self.descriptors / 4 * 3
            || pairs > u64::from(self.config.max_dormant) / 4 * 3
    }

    pub(crate) fn settle_later(&self, settling: Settling) {
        self.settling
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((Instant::now(), settling));
    }

    /// Whether a shutdown has begun.
    pub(crate) fn is_closing(&self) -> bool {
        *self.phase.borrow() >= Phase::Closing
    }

    /// Returns once a shutdown has come this far.
    pub(crate) async fn reached(&self, phase: Phase) {
        // The sender lives as long as we do.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}

impl Splicer {
    /// Loads or adopts the kernel half, and starts to watch interfaces and flows. Sets `conf.lo.forwarding` of
    /// `net.ipv4` and `net.ipv6`, which `shutdown` restores once no flow is left. Flows that a predecessor had spliced are adopted: they are listed and reaped, and one that meets a trap of the
    /// predecessor is relayed here, and spliced again when the advisor says so, or ends as [`Pair::with_successor`] said.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Errors
    /// After [`OpenError::Privileges`] and [`OpenError::Unsupported`], [`Splicer::relay_only`] still works.
    pub async fn open(config: SplicerConfig) -> Result<Splicer, OpenError> {
        // Programs are verified, and all records of a predecessor read.
        let opened = tokio::task::spawn_blocking(|| Splicer::open_kernel(config)).await;
        let splicer = opened.map_err(|e| OpenError::System(format!("cannot begin: {e}")))??;
        interfaces::watch(&splicer.inner)
            .await
            .map_err(|e| OpenError::System(format!("cannot watch interfaces: {e}")))?;
        held::start(&splicer.inner).map_err(|e| OpenError::System(format!("cannot read the ring: {e}")))?;
        reaper::start(&splicer.inner);
        Ok(splicer)
    }

    /// The kernel half, with what a predecessor left; nothing is attached yet.
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

    /// A splicer that only relays, and says why.
    pub fn relay_only(config: SplicerConfig, why: OpenError) -> Splicer {
        let reason = match why {
            OpenError::Privileges(_) => RelayReason::NoPrivilege,
            _ => RelayReason::Unsupported,
        };
        Splicer {
            inner: Arc::new(Inner::new(config, None, None, Some((why.to_string(), reason)))),
        }
    }

    /// Counts an accepted connection. Its socket resets when it is dropped or the process dies (`SO_LINGER` of 0), until the pair
    /// has ended or comes back.
    ///
    /// # Errors
    /// The socket is not a TCP socket, or not connected any more.
    pub fn prepare_client(&self, client: impl AsFd) -> io::Result<()> {
        self.inner.stats.accepted.add(1);
        Ok(options::set_reset_on_close(client, true)?)
    }

    /// Counts an accepted connection whose handler reads its protocol before it is spliced, if it is: its socket is left as it is,
    /// and resets from the call of [`Splicer::splice`] on.
    pub fn note_accepted(&self) {
        self.inner.stats.accepted.add(1);
    }

    /// Counts a connection that its handler carried to its end by itself, for a reason that rules out a pair, with so many bytes of
    /// payload.
    pub fn count_relayed(&self, reason: RelayReason, bytes: u64) {
        self.inner.stats.relayed(reason);
        self.inner.stats.relay_bytes.add(bytes);
    }

    /// Relays, splices when the pair's policy says so, and returns when both ends are done, when a condition of `until` is met,
    /// or when nobody is needed any more (papers' sections III-C and III-D). Takes a [`Pair`], or what an earlier call
    /// [returned](Ended::Returned).
    ///
    /// A pair comes back once all that was read of it is written, which may take as long as a reader is slow. When the
    /// splicer shuts down, a pair that is relayed is reset after the grace period: that is an ending, too.
    ///
    /// Not cancel-safe: dropped, the future takes the connections with it (see the crate's page).
    ///
    /// # Errors
    /// Only where the sockets are unusable from the start (not connected any more, not TCP); they are closed then. A
    /// connection that breaks later is an ending.
    pub async fn splice(&self, pair: impl Into<Pair>, until: Until) -> io::Result<Ended> {
        pair::run(&self.inner, pair.into(), until).await
    }

    /// The counters, as they stand.
    pub fn counters(&self) -> Counters {
        let segments = self
            .inner
            .plane
            .as_ref()
            .map(|p| p.verdicts())
            .unwrap_or_default();
        self.inner.stats.snapshot(segments)
    }

    /// What this splicer can do.
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
        Health {
            can_splice: inner.plane.is_some(),
            why_not: inner.why_not.as_ref().map(|(why, _)| why.clone()),
            interfaces,
            xdp: inner.fast_path.interfaces(),
            flows: inner.plane.as_ref().map_or(0, |p| p.flow_count().into()),
            max_flows: inner.plane.as_ref().map_or(0, |p| p.max_flows()),
            source_ports: inner.ports.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// Has the ends of flows told that nobody waits for any more: those of which [`Splicer::splice`] said
    /// [`Ended::Detached`], later than the first call of this. `tell` must not block; a second one is not called.
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
            config,
            plane: plane.map(Arc::new),
            stats: Stats::default(),
            trials: Stats::default(),
            registry: Registry::default(),
            mapped: Mapped::default(),
            holding: Holding::default(),
            ends: Ends::default(),
            interfaces: RwLock::default(),
            fast_path: FastPath::default(),
            routes: Routes::default(),
            rules: rules::Keeper::default(),
            upkeep: Upkeep::default(),
            settling: Mutex::default(),
            memory_low: AtomicBool::new(false),
            announcer: None,
            ports,
            why_not,
            relay_ids: AtomicU32::new(1),
            phase: watch::Sender::new(Phase::Running),
            descriptors: descriptor_limit(),
        }
    }
}

/// How many descriptors this process may have.
fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}
