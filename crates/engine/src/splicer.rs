//! Holds the library's handle: all calls go through it.

use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
};

use longsplice_core::reason::RelayReason;
use longsplice_dataplane::{Dataplane, Error as PlaneError, Options};
use longsplice_repair::options;

use crate::{
    api::{Counters, Ended, Health, Pair, Returned, SplicerConfig, until::Until},
    context::Context,
    kernel::{Kernel, announce::Announcer, held},
    recovery::{adopt, orphans, reaper},
    services::{ends::FlowEnded, ports::SourcePorts},
    session,
    tie::Tie,
};

mod connect;
mod flows;
mod requests;
mod rules_of;
mod shutdown;
mod watch;

pub use connect::SourceAddress;
pub use flows::Flows;

/// Joins pairs of connections. Cheap to clone; all clones share one state. When the last is dropped without
/// [`Splicer::shutdown`], detached flows run on, as after SIGKILL.
#[derive(Debug, Clone)]
pub struct Splicer {
    pub(crate) context: Arc<Context>,
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
    /// The pins of a predecessor belong to another network namespace, and have flows, which would be harmed; or the directory
    /// of the pins cannot be trusted. A relay is still possible.
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
            PlaneError::Namespace { .. } | PlaneError::Untrusted { .. } => OpenError::Incompatible(text),
            _ => OpenError::System(text),
        }
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
        watch::watch(&splicer.context)
            .await
            .map_err(|e| OpenError::System(format!("cannot watch interfaces: {e}")))?;
        let context = Arc::downgrade(&splicer.context);
        if let Some(kernel) = &splicer.context.kernel {
            let orphan = move |event| context.upgrade().map(|c| orphans::serve(&c, event)).is_some();
            held::start(&kernel.plane, &kernel.held, orphan)
                .map_err(|e| OpenError::System(format!("cannot read the ring: {e}")))?;
        }
        reaper::start(&splicer.context);
        // The programs are attached: flows are adopted while their segments pass.
        adopt::start(&splicer.context);
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
        let context = Context::new(config, Ok((Kernel::new(plane, announcer), ports)));
        adopt::adopt(&context, orphans);
        Ok(Splicer {
            context: Arc::new(context),
        })
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
            context: Arc::new(Context::new(config, Err((why.to_string(), reason)))),
        }
    }

    /// Counts an accepted connection. Its socket resets when it is dropped or the process dies (`SO_LINGER` of 0), until
    /// the pair has ended or comes back.
    ///
    /// # Errors
    /// Returns an error if the socket is not a TCP socket, or not connected any more.
    pub fn prepare_client(&self, client: impl AsFd) -> io::Result<()> {
        self.context.stats.accepted.add(1);
        Ok(options::set_reset_on_close(client, true)?)
    }

    /// Counts an accepted connection whose handler reads its protocol before a possible splice. Its socket is not
    /// changed, and resets from the call of [`Splicer::splice`] on.
    pub fn note_accepted(&self) {
        self.context.stats.accepted.add(1);
    }

    /// Notes that a handler is done with a connection, and has freed its memory. After many of them free memory is given
    /// back to the system.
    pub fn note_closed(&self) {
        self.context.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets whether memory runs short: as long as it does, sockets of spliced pairs are closed early. The machine's free
    /// memory is watched without this.
    pub fn set_memory_pressure(&self, runs_short: bool) {
        self.context.memory_pressed.store(runs_short, Ordering::Relaxed);
    }

    /// Sets the share of all packets, in percent, of other connections that pass this host, of which it has no sockets. While
    /// there are any, an accelerated pair that keeps the queue of a bottleneck filled leaves them room
    /// ([`Crowd`](longsplice_core::advisor::Crowd)), and is spliced (`Thresholds::yields_at_queue`).
    pub fn set_plain_traffic(&self, percent: u32) {
        self.context.plain_percent.store(percent, Ordering::Relaxed);
    }

    /// Counts a connection that its handler carried to its end by itself, for a reason that rules out a pair, with so
    /// many bytes of payload. Counts a pair, too, that came back without a splice and is done; its bytes are counted already.
    pub fn count_relayed(&self, reason: RelayReason, bytes: u64) {
        self.context.stats.relayed(reason);
        self.count_relayed_bytes(bytes);
    }

    /// Counts bytes of payload that a handler has relayed by itself.
    pub fn count_relayed_bytes(&self, bytes: u64) {
        self.context.stats.relay_bytes.add(bytes);
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
    pub fn splice(
        &self,
        pair: impl Into<Pair>,
        until: Until,
    ) -> impl Future<Output = io::Result<Ended>> + Send {
        session::run(&self.context, pair.into(), until)
    }

    /// Returns the present counters.
    pub fn counters(&self) -> Counters {
        let segments = self.context.plane().map(|p| p.verdicts()).unwrap_or_default();
        self.context.stats.snapshot(segments)
    }

    /// Returns the abilities of this splicer.
    pub fn health(&self) -> Health {
        let context = &self.context;
        let mut interfaces: Vec<String> = context.interfaces.watched().into_values().collect();
        interfaces.sort();
        let lost = context.pinning.why_lost();
        Health {
            splice_available: context.kernel.is_some() && lost.is_none(),
            why_not: context.why_not.as_ref().map(|(why, _)| why.clone()).or(lost),
            interfaces,
            xdp: context.xdp.interfaces(),
            before_ours: context.order.lines(),
            flows: context.plane().map_or(0, |p| p.flow_count().into()),
            max_flows: context.plane().map_or(0, |p| p.max_flows()),
            source_ports: context
                .ports
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
        }
    }

    /// Sets a callback for the ends of flows that no task waits for: those for which [`Splicer::splice`] returned
    /// [`Ended::Detached`], later than the first call of this. `tell` must not block; a second one is never called.
    pub fn tell_ends(&self, tell: impl Fn(FlowEnded) + Send + Sync + 'static) {
        self.context.ends.tell(Box::new(tell));
    }

    /// Returns the tie of the server's socket of a pair to the client's; `None`: there is none, the socket may be pooled.
    ///
    /// Ask again with [`Tie::is_gone`]. If an end never acknowledges what passed, the tie stays until both sockets are
    /// closed and the flow was given up: wait for it for a limited time.
    pub fn tie(&self, returned: &Returned) -> Option<Tie> {
        Tie::of(&self.context, returned)
    }
}
