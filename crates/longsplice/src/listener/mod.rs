//! Listeners: accept, find a target, hand the pair to the engine.

mod accept;
mod bind;
pub(crate) mod connection;
mod resources;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use longsplice_engine::{Splicer, intercept::is_local};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

pub use bind::{BindError, Bound};
pub use resources::Resources;

use crate::{
    client::Client,
    config::{ListenerConfig, Period, SourceAddress},
    tls::Terminator,
    upstream::{Ask, Lease, Unavailable, Upstream, Upstreams, lease_original, same_family_first},
};

/// One listener at work: its configuration and what it counts. Its addresses share it.
#[derive(Debug)]
pub struct Service {
    /// Those of new connections.
    settings: RwLock<Arc<Settings>>,
    splicer: Splicer,
    /// One permit for each connection that this process may hold, where that is limited.
    slots: Option<Arc<Semaphore>>,
    resources: Arc<Resources>,
    open: AtomicU64,
    refused: AtomicU64,
}

/// What a configuration says of a listener. A connection keeps the settings under which it was accepted.
#[derive(Debug)]
pub struct Settings {
    /// The listener.
    pub listener: ListenerConfig,
    /// All upstreams.
    pub upstreams: Arc<Upstreams>,
    /// Its certificates and what belongs to them, where it terminates TLS.
    pub terminator: Option<Arc<Terminator>>,
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
    /// A listener that is ready to serve; all listeners of the process share `resources`.
    pub fn new(settings: Settings, splicer: Splicer, resources: Arc<Resources>) -> Arc<Self> {
        let slots = settings
            .listener
            .max_connections
            .map(|n| Arc::new(Semaphore::new((n as usize).min(Semaphore::MAX_PERMITS))));
        Arc::new(Service {
            settings: RwLock::new(Arc::new(settings)),
            splicer,
            slots,
            resources,
            open: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// The settings of new connections.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The engine.
    pub fn splicer(&self) -> &Splicer {
        &self.splicer
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
            connect_timeout: Period(c.connect_timeout).to_string(),
            open: self.open.load(Ordering::Relaxed),
            max_connections: c.max_connections,
            refused_total: self.refused.load(Ordering::Relaxed),
        }
    }

    /// The address that connections accepted at `local` will most likely go to: what the engine prepares for.
    /// A name that cannot be resolved now is tried again at each connection, and reported here.
    async fn likely_target(&self, local: SocketAddr) -> Option<SocketAddr> {
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

impl Settings {
    /// A connection of the client to a server: of this upstream, or, without one, to where the client was going.
    ///
    /// # Errors
    /// What was tried.
    pub async fn lease(
        &self,
        upstream: Option<&Arc<Upstream>>,
        client: &Client,
        splicer: &Splicer,
    ) -> Result<Lease, Unavailable> {
        let listener = &self.listener;
        let source = listener.intercept.as_ref();
        let ask = Ask::of(client, source.map_or(SourceAddress::Forwarder, |i| i.source));
        if let Some(upstream) = upstream {
            return upstream.lease(&ask).await;
        }
        let to = client.local;
        // Connected to, it would connect to itself, and that again.
        if listener.listen.iter().any(|l| l.port() == to.port()) && is_local(to.ip()) {
            let itself =
                "the connection is addressed to the listener itself, which is only there to intercept others";
            return Err(Unavailable::Original(to, io::Error::other(itself)));
        }
        lease_original(splicer, &ask, to, listener.connect_timeout).await
    }
}
