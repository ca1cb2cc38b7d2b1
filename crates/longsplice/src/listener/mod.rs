//! Runs listeners: accepts, decides, finds a server, and hands the pair to the engine.

mod accept;
mod acceptor;
mod bind;
mod connection;
mod counts;
mod facts;
mod forward;
mod left;
mod listening;
mod open;
mod reclaimed;
mod service;
mod settings;
mod slots;
mod sockets;
mod standing;
mod tracker;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
};

use arc_swap::ArcSwap;
use longsplice_engine::Splicer;
use tokio_util::sync::CancellationToken;

pub(crate) use bind::{BindError, Bound, socket_for};
pub(crate) use counts::{CLASSES, Tally};
pub(crate) use facts::{Decided, KeptFacts};
pub(crate) use forward::Forwarding;
pub(crate) use listening::Listening;
pub(crate) use open::Open;
pub(crate) use reclaimed::spawn_reclaimed;
pub(crate) use service::{ListenerStatus, Service};
pub(crate) use settings::{Destination, Settings};
pub(crate) use sockets::Socket;
pub(crate) use standing::{Standing, ends};
pub(crate) use tracker::Tracker;

use crate::{access_log::AccessLog, http::Threshold, memory::Memory, resources::Resources};

/// Settings by the number of their listener, for the listeners that the last reload has left in force.
type Generation = HashMap<u64, Arc<Settings>>;

/// State that all listeners of a process share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Engine.
    pub splicer: Splicer,
    /// Descriptors.
    pub resources: Arc<Resources>,
    /// Memory of the process.
    pub memory: Memory,
    /// Open connections.
    pub tracker: Tracker,
    /// Log of ended requests and connections.
    pub access_log: AccessLog,
    /// Cancelled when the daemon shuts down: sessions between two requests end.
    pub stopping: CancellationToken,
    /// Measured length from which on replies are spliced, if the configuration does not set it.
    pub splice_min: Threshold,
    /// Settings that reloads have changed; a reload replaces the settings of all listeners at once.
    generation: ArcSwap<Generation>,
    /// Number of listeners created so far.
    services: AtomicU64,
}

impl Shared {
    /// Creates the state of a process with this engine; `stopping` is cancelled when it shuts down.
    pub(crate) fn new(splicer: Splicer, access_log: AccessLog, stopping: CancellationToken) -> Arc<Shared> {
        let shared = Arc::new(Shared {
            splicer,
            resources: Arc::clone(Resources::of_this_process()),
            memory: Memory::of_this_process(),
            tracker: Tracker::default(),
            access_log,
            stopping,
            splice_min: Threshold::default(),
            generation: ArcSwap::default(),
            services: AtomicU64::new(0),
        });
        let ended = Arc::downgrade(&shared);
        shared.splicer.tell_ends(move |end| {
            if let Some(shared) = ended.upgrade() {
                shared.tracker.ended(end);
            }
        });
        shared
    }

    /// Changes the settings of all listeners at once: no task sees settings of two generations. A listener that is not
    /// among the changes keeps its last ones.
    pub(crate) fn switch(&self, changes: Vec<(Arc<Service>, Arc<Settings>)>) {
        let mut next = Generation::with_capacity(changes.len());
        for (service, settings) in &changes {
            service.prepare(settings);
            next.insert(service.number, Arc::clone(settings));
        }
        self.generation.store(Arc::new(next));
        // Release those before: they hold upstreams and certificates that may be gone.
        for (service, settings) in changes {
            service.own.store(settings);
        }
    }
}
