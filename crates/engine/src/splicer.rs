//! The handle through which everything is asked.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use longsplice_core::{policy::SplicePolicy, reason::RelayReason};
use longsplice_dataplane::{Dataplane, Error as PlaneError, Options};
use longsplice_repair::options;
use tokio::{net::TcpStream, sync::watch, time::Instant};

use crate::{
    adopt,
    announce::Announcer,
    api::{
        Counters, Ended, FlowId, FlowInfo, FlowState, Health, LegInfo, Pair, RequestError, Returned,
        Shutdown, SplicerConfig,
    },
    ends::{Ends, FlowEnded},
    fast_path::FastPath,
    flow::Settling,
    held::{self, Holding},
    interfaces, legs,
    mapped::Mapped,
    pair, ports,
    ports::{Origin, SourcePorts},
    reaper, reclaim,
    registry::{Registry, direction_info},
    routes::Routes,
    rules,
    stats::Stats,
    until::Until,
    upkeep::Upkeep,
};

mod as_client;
mod rules_of;

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
    pub fn prepare_client(&self, client: &TcpStream) -> io::Result<()> {
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

    /// Sets on a listening socket what makes its connections fit for splicing towards `target`: it offers clients no
    /// longer segments than the way to the target takes.
    ///
    /// # Errors
    /// The socket is not a TCP socket.
    pub fn prepare_listener(&self, listener: &tokio::net::TcpListener, target: SocketAddr) -> io::Result<()> {
        if self.inner.plane.is_some()
            && let Ok(way) = self.inner.routes.ask(longsplice_repair::canonical(target))
            && let Some(bytes) = way.max_segment.filter(|&bytes| bytes <= LARGEST_SEGMENT)
        {
            options::set_max_segment(listener, bytes)?;
        }
        Ok(())
    }

    /// Connects leg B from a source port that this instance owns, so that the port is not given away while a flow without
    /// sockets has it, and with an MSS (RFC 9293 section 3.7.1) that fits leg A. A pair whose leg B was connected otherwise can be
    /// spliced, too, where the segments fit; its port is safe only while it has its socket.
    ///
    /// # Errors
    /// Those of `connect`; `TimedOut` after `timeout`; `AddrNotAvailable` where all source ports toward the target are
    /// in use.
    pub async fn connect(
        &self,
        target: SocketAddr,
        client: &TcpStream,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        self.connect_from(None, target, client, timeout).await
    }

    async fn connect_from(
        &self,
        from: Option<IpAddr>,
        target: SocketAddr,
        client: &TcpStream,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let target = longsplice_repair::canonical(target);
        let inner = &self.inner;
        let (Some(plane), Some(ports), true) = (&inner.plane, &inner.ports, legs::is_global(target)) else {
            let connect = async {
                match from {
                    None => TcpStream::connect(target).await,
                    Some(from) => {
                        let origin = Origin {
                            local: (from, 0).into(),
                            foreign: true,
                            initial_sequence: None,
                        };
                        ports::connect_from(origin, target, None).await
                    }
                }
            };
            return tokio::time::timeout(timeout, connect).await?;
        };
        let segment = segment_limit(plane, client, target);
        ports
            .connect(plane, &inner.routes, from, target, segment, timeout)
            .await
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

    /// Every flow there is, relayed ones too, by number; not those whose sockets a handler has. Walks over all records, which
    /// takes a while where there are many: a task should leave it to `spawn_blocking`.
    pub fn flows(&self) -> Vec<FlowInfo> {
        let mut flows = self.inner.registry.list();
        let held: HashSet<FlowId> = flows.iter().map(|f| f.id).collect();
        if let Some(plane) = &self.inner.plane {
            let records = reaper::records(plane).unwrap_or_default();
            flows.extend(
                records
                    .values()
                    .filter_map(detached_info)
                    .filter(|f| !held.contains(&f.id)),
            );
        }
        flows.sort_by_key(|f| f.id);
        flows
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

    /// Asks for a relayed pair to be spliced now, whatever its policy; returns once that is under way. Whether it succeeds is
    /// seen in [`Splicer::flows`]: in the state, or in the reason.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::AlreadySpliced`], [`RequestError::CannotSplice`].
    pub async fn request_splice(&self, id: FlowId) -> Result<(), RequestError> {
        if let Some((why, _)) = &self.inner.why_not {
            return Err(RequestError::CannotSplice(why.clone()));
        }
        match self.inner.registry.get(id) {
            Some(entry) if matches!(entry.state(), FlowState::Relay | FlowState::Undraining) => {
                entry.ask();
                Ok(())
            }
            Some(_) => Err(RequestError::AlreadySpliced(id)),
            None => {
                reclaim::find(&self.inner, id).await?;
                Err(RequestError::AlreadySpliced(id))
            }
        }
    }

    /// Asks for a spliced pair to come back to control mode now (papers' section III-D). A pair that somebody waits for comes back
    /// to them ([`Ended::Returned`] with [`crate::Trap::Asked`]), whatever their conditions: then `None`, once it is under way. A flow that
    /// nobody waits for is given to the caller, with sockets built for it; dropped, they end it. One for which a predecessor has said
    /// how it is to end ([`Pair::with_successor`]) comes to that end: `None`, too.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::NotSpliced`], [`RequestError::Ending`], [`RequestError::CannotReturn`].
    pub async fn request_unsplice(&self, id: FlowId) -> Result<Option<Returned>, RequestError> {
        match self.inner.registry.get(id) {
            Some(entry) if matches!(entry.state(), FlowState::Relay | FlowState::Undraining) => {
                Err(RequestError::NotSpliced(id))
            }
            Some(entry) => {
                entry.ask_back();
                Ok(None)
            }
            None => reclaim::take_back(&self.inner, id).await,
        }
    }

    /// Ends a pair or flow: both its ends are reset, or, where a detached flow cannot have sockets now, meet a reset with their next
    /// segment. A call of [`Splicer::splice`] that has the pair comes to its end soon: then this returns before.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::Ending`].
    pub async fn request_end(&self, id: FlowId) -> Result<(), RequestError> {
        match self.inner.registry.get(id) {
            Some(entry) => {
                entry.end();
                Ok(())
            }
            None => reclaim::end(&self.inner, id).await,
        }
    }

    /// Has the ends of flows told that nobody waits for any more: those of which [`Splicer::splice`] said
    /// [`Ended::Detached`], later than the first call of this. `tell` must not block; a second one is not called.
    pub fn tell_ends(&self, tell: impl Fn(FlowEnded) + Send + Sync + 'static) {
        self.inner.ends.tell(Box::new(tell));
    }

    async fn wait_empty(&self, longest: Duration) {
        let until = Instant::now() + longest;
        while self.inner.registry.len() > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits up to `grace` for what is relayed to end, and resets the rest, which takes half a second at most. What is dormant is
    /// detached at once; what is spliced is left or ended. Pins go when nothing is left that needs them. Nothing is to be
    /// asked of the splicer afterwards; sockets that a handler holds at that time are its own to close before.
    pub async fn shutdown(&self, how: Shutdown, grace: Duration) {
        self.inner.phase.send_replace(Phase::Closing);
        self.wait_empty(grace).await;
        self.inner.phase.send_replace(Phase::Ended);
        // What is in its drain now ends with the process.
        self.wait_empty(RESET_TIME).await;
        let inner = self.inner.clone();
        let ended = tokio::task::spawn_blocking(move || inner.leave_kernel(how)).await;
        if let Err(error) = ended {
            tracing::error!(%error, "the shutdown was cut off");
        }
    }
}

/// How long it takes at most until pairs have noticed that they are to be reset.
const RESET_TIME: Duration = Duration::from_millis(500);

/// The largest one that TCP_MAXSEG can say, in bytes; longer ones are none but the loopback's.
const LARGEST_SEGMENT: u32 = 32_767;

/// The longest segment that leg B may offer to take, so that it fits on leg A; `None`: no limit.
fn segment_limit(plane: &Dataplane, client: &TcpStream, target: SocketAddr) -> Option<u32> {
    legs::fits_client(plane, client, target.ip()).filter(|&bytes| bytes <= LARGEST_SEGMENT)
}

fn detached_info(directions: &[Option<longsplice_dataplane::Direction>; 2]) -> Option<FlowInfo> {
    let [Some(a), Some(b)] = directions else {
        return None;
    };
    let leg = |l: longsplice_dataplane::Leg| LegInfo {
        peer: l.peer,
        local: l.local,
    };
    let end = reaper::flow_end(a, b);
    let closing =
        end.directions.iter().any(|d| d.reset_seen) || end.directions.iter().all(|d| d.fin_acknowledged);
    Some(FlowInfo {
        id: FlowId(a.serial),
        client: leg(a.leg),
        server: leg(b.leg),
        state: if closing {
            FlowState::Closing
        } else {
            FlowState::Detached
        },
        reason: None,
        to_server: direction_info(a),
        to_client: direction_info(b),
        age_seconds: a.age.as_secs_f64(),
        idle_seconds: Some(a.idle.min(b.idle).as_secs_f64()),
    })
}

impl Inner {
    /// Leaves the kernel half to a successor, or takes it down: where nothing is left of it, or is to be.
    fn leave_kernel(&self, how: Shutdown) {
        // First: what is put on an interface after the pins are gone would stay there.
        self.upkeep.end();
        self.rules.end();
        let Some(plane) = &self.plane else { return };
        let mut left = Vec::new();
        self.mapped.part_all(&mut left);
        left.into_iter().for_each(|one| self.settle_later(one));
        reaper::settle_all(self, plane);
        if how == Shutdown::EndSpliced || reaper::records(plane).is_ok_and(|r| r.is_empty()) {
            plane.remove();
        }
    }

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
