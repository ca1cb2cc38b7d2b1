//! Listeners: accept, find a target, hand the pair to the engine.

mod accept;
mod bind;
pub(crate) mod connection;
mod resources;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use longsplice_engine::{Splicer, intercept::is_local};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpStream, sync::Semaphore};

pub use bind::{BindError, Bound};
pub use resources::Resources;

use crate::{
    config::{ListenerConfig, Period},
    upstream::same_family_first,
};

/// One listener at work: its configuration and what it counts. Its addresses share it.
#[derive(Debug)]
pub struct Service {
    config: ListenerConfig,
    splicer: Splicer,
    /// One permit for each connection that this process may hold, where that is limited.
    slots: Option<Arc<Semaphore>>,
    resources: Arc<Resources>,
    open: AtomicU64,
    refused: AtomicU64,
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
    pub fn new(config: ListenerConfig, splicer: Splicer, resources: Arc<Resources>) -> Arc<Self> {
        let slots = config
            .max_connections
            .map(|n| Arc::new(Semaphore::new((n as usize).min(Semaphore::MAX_PERMITS))));
        Arc::new(Service {
            config,
            splicer,
            slots,
            resources,
            open: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// What `status` shows, given the addresses it is bound to.
    pub fn status(&self, listen: &[SocketAddr]) -> ListenerStatus {
        let c = &self.config;
        ListenerStatus {
            name: c.name.clone(),
            listen: listen.to_vec(),
            to: match c.to.is_empty() {
                true => vec!["original destination".to_owned()],
                false => c.to.iter().map(ToString::to_string).collect(),
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

    /// Where an intercepted connection was going: the local address of its socket.
    fn original_destination(&self, client: &TcpStream) -> io::Result<SocketAddr> {
        let local = client.local_addr()?;
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        // Connected to, it would connect to itself, and that again.
        let itself = self.config.listen.iter().any(|l| l.port() == local.port()) && is_local(local.ip());
        match itself {
            true => Err(io::Error::other(
                "the connection is addressed to the listener itself, which is only there to intercept others",
            )),
            false => Ok(local),
        }
    }

    /// The address that connections accepted at `local` will most likely go to: what the engine prepares for.
    /// A name that cannot be resolved now is tried again at each connection, and reported here.
    async fn likely_target(&self, local: SocketAddr) -> Option<SocketAddr> {
        for target in &self.config.to {
            match target.resolve().await {
                Ok(addresses) => return same_family_first(addresses, local.is_ipv4()).first().copied(),
                Err(error) => {
                    tracing::warn!(
                        listener = self.config.name, %target, %error,
                        "the target has no address now; each connection will look again"
                    );
                }
            }
        }
        None
    }
}
