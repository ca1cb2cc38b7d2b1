//! Upstreams: sets of servers, of which each connection or request gets one.

mod connect;
mod lease;
mod place;
mod server;

use std::{collections::HashMap, sync::Arc, time::Duration};

use longsplice_engine::Splicer;

use connect::Connector;
pub use connect::same_family_first;
pub use lease::{Ask, Failure, KeyKind, Lease, Tenure, Unavailable, lease_original};
use place::Place;
pub use server::{Server, ServerId};

use crate::{
    address::Target,
    config::{Config, ListenerConfig},
};

/// All upstreams of a configuration.
#[derive(Debug, Default)]
pub struct Upstreams {
    by_name: HashMap<String, Arc<Upstream>>,
    /// Those of listeners with `to`, by the listener's name.
    by_listener: HashMap<String, Arc<Upstream>>,
}

/// A set of servers.
#[derive(Debug)]
pub struct Upstream {
    name: String,
    servers: Vec<Target>,
    connect_timeout: Duration,
    splicer: Splicer,
}

impl Upstreams {
    /// Those of a configuration; within a runtime, where what watches them runs.
    pub fn new(config: &Config, splicer: &Splicer) -> Upstreams {
        let upstream = |name: &str, servers: &[Target], connect_timeout| {
            Arc::new(Upstream {
                name: name.to_owned(),
                servers: servers.to_vec(),
                connect_timeout,
                splicer: splicer.clone(),
            })
        };
        let named = |u: &crate::config::UpstreamConfig| {
            (
                u.name.clone(),
                upstream(&u.name, &u.servers, crate::config::DEFAULT_CONNECT_TIMEOUT),
            )
        };
        let of_listener = |l: &ListenerConfig| (l.name.clone(), upstream(&l.name, &l.to, l.connect_timeout));
        Upstreams {
            by_name: config.upstreams.iter().map(named).collect(),
            by_listener: config
                .listeners
                .iter()
                .filter(|l| !l.to.is_empty())
                .map(of_listener)
                .collect(),
        }
    }

    /// Those of the next configuration: servers that stay keep their state. Takes effect at once, for connections of the old
    /// configuration too: call it when nothing can fail any more.
    #[must_use]
    pub fn next(&self, config: &Config, splicer: &Splicer) -> Upstreams {
        Upstreams::new(config, splicer)
    }

    /// The upstream of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.by_name.get(name)
    }

    /// Where what no route takes goes; `None`: where it was going.
    pub fn of_listener(&self, listener: &ListenerConfig) -> Option<&Arc<Upstream>> {
        match &listener.upstream {
            Some(name) => self.get(name),
            None => self.by_listener.get(&listener.name),
        }
    }
}

impl Upstream {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What of a request its choice depends on.
    pub fn key(&self) -> KeyKind {
        KeyKind::None
    }

    /// The name of the cookie that keeps a client at its server.
    pub fn sticky(&self) -> Option<&str> {
        None
    }

    /// A connection to one of its servers: chooses one, waits for a place in the queue where all are full, and takes an idle
    /// connection or makes one; where that fails, at other servers, as `retries` says.
    ///
    /// Cancel-safe: dropped, it gives up its place, in the queue too.
    ///
    /// # Errors
    /// What was tried, or why nothing was.
    pub async fn lease(self: &Arc<Self>, ask: &Ask<'_>) -> Result<Lease, Unavailable> {
        let connector = Connector::new(&self.splicer, ask, self.connect_timeout);
        let stream = connector
            .connect(&self.servers)
            .await
            .map_err(Unavailable::Refused)?;
        let address = stream.peer_addr().unwrap_or(ask.local);
        Ok(Lease {
            stream,
            reused: false,
            tenure: Tenure::new(Place::outside(address)),
        })
    }
}
