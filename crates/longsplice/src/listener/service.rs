//! A listener at work.

use std::{
    net::SocketAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use longsplice_engine::{Splicer, policy::SplicePolicy};
use serde::{Deserialize, Serialize};

use super::{Settings, Shared, Tally, counts::Counts, slots::Slots};
use crate::{
    access_log::AccessRecord,
    config::{Period, Protocol},
    http::Lead,
    upstream::same_family_first,
};

/// One listener at work: its configuration and what it counts. Its addresses share it.
#[derive(Debug)]
pub struct Service {
    /// Those of new connections.
    settings: RwLock<Arc<Settings>>,
    pub(super) shared: Arc<Shared>,
    /// One for each connection that this process holds.
    pub(super) slots: Arc<Slots>,
    pub(super) open: AtomicU64,
    pub(super) refused: AtomicU64,
    counts: Counts,
    lead: Lead,
}

/// A listener as `status` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The addresses it is bound to.
    pub listen: Vec<SocketAddr>,
    /// Where its connections go, in order of preference.
    pub to: Vec<String>,
    /// When it splices.
    pub splice: String,
    /// When it detaches.
    pub detach: String,
    /// When a spliced connection comes back to the relay; empty: when it is asked for.
    #[serde(default)]
    pub unsplice: String,
    /// From which length on replies are spliced, in bytes; of HTTP.
    #[serde(default)]
    pub splice_from: Option<u64>,
    /// How long an address of a target may take to answer.
    pub connect_timeout: String,
    /// Connections that the process holds now, or waits for because of `unsplice`.
    pub open: u64,
    /// The limit of these.
    pub max_connections: Option<u32>,
    /// Connections that were reset because no target answered or the limit was reached.
    pub refused_total: u64,
}

impl Service {
    /// A listener that is ready to serve.
    pub fn new(settings: Settings, shared: Arc<Shared>) -> Arc<Self> {
        let counts = Counts::default();
        counts.keep_routes(route_names(&settings));
        Arc::new(Service {
            counts,
            lead: Lead::default(),
            slots: Slots::new(settings.listener.max_connections),
            settings: RwLock::new(Arc::new(settings)),
            shared,
            open: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// The settings of new connections, and of new requests.
    pub fn settings(&self) -> Arc<Settings> {
        let _one_generation = self.shared.reading();
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts settings in the place of those before: within [`Shared::switch`].
    pub(crate) fn put(&self, settings: Arc<Settings>) {
        self.slots.set_limit(settings.listener.max_connections);
        self.counts.keep_routes(route_names(&settings));
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// From which length on replies are spliced now, in bytes; of HTTP.
    pub fn splice_from(&self) -> Option<u64> {
        let settings = self.settings();
        let c = &settings.listener;
        let splices = c.protocol == Protocol::Http && c.splice != SplicePolicy::Never;
        let measured = || self.shared.splice_from.bytes() + self.lead.bytes();
        splices.then(|| c.splice_from.unwrap_or_else(measured))
    }

    /// How much of a reply is relayed before its splice takes hold.
    pub fn lead(&self) -> &Lead {
        &self.lead
    }

    /// The engine.
    pub fn splicer(&self) -> &Splicer {
        &self.shared.splicer
    }

    /// Descriptors, logs and what else all listeners share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Whether the daemon shuts down.
    pub fn is_stopping(&self) -> bool {
        *self.shared.stopping.borrow()
    }

    /// Returns when the daemon shuts down. Cancel-safe.
    pub async fn stopping(&self) {
        // Its sender goes when all is over.
        let _ = self.shared.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// A request, or a connection of which no requests are read, is over: it is counted and logged.
    pub fn finished(&self, record: AccessRecord) {
        self.count(&Tally::from(&record));
        self.shared.access_log.write(record);
    }

    /// The same where the log wants no record of it.
    pub(crate) fn count(&self, tally: &Tally<'_>) {
        self.counts.add(tally);
    }

    /// What it counts.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Connections that the process holds now, or waits for.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections that were reset unserved.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// What `status` shows, given the addresses it is bound to.
    pub fn status(&self, listen: &[SocketAddr]) -> ListenerStatus {
        let settings = self.settings();
        let c = &settings.listener;
        ListenerStatus {
            name: c.name.clone(),
            listen: listen.to_vec(),
            to: match (&c.upstream, c.to.is_empty()) {
                (Some(name), _) => vec![name.clone()],
                (None, true) => vec!["original destination".to_owned()],
                (None, false) => c.to.iter().map(ToString::to_string).collect(),
            },
            splice: c.splice.to_string(),
            detach: c.detach.to_string(),
            unsplice: c.unsplice.to_string(),
            splice_from: self.splice_from(),
            connect_timeout: Period(c.connect_timeout).to_string(),
            open: self.open(),
            max_connections: c.max_connections,
            refused_total: self.refused(),
        }
    }

    /// The address that connections accepted at `local` will most likely go to: what the engine prepares for.
    /// A name that cannot be resolved now is tried again at each connection, and reported here.
    pub(super) async fn likely_target(&self, local: SocketAddr) -> Option<SocketAddr> {
        let settings = self.settings();
        for target in &settings.listener.to {
            match target.resolve().await {
                Ok(addresses) => return same_family_first(addresses, local.is_ipv4()).first().copied(),
                Err(error) => {
                    tracing::warn!(
                        listener = settings.listener.name, %target, %error,
                        "the target has no address now; each connection will look again"
                    );
                }
            }
        }
        None
    }
}

fn route_names(settings: &Settings) -> impl Iterator<Item = &str> {
    settings
        .listener
        .routes
        .routes()
        .iter()
        .map(|route| route.name.as_str())
}
