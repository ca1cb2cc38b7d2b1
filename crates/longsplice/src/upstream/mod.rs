//! Manages upstreams: sets of servers; each connection or request gets one server.
//!
//! [`Upstream::lease`] (`search`) chooses a server (`backend_set`), waits in the queue if all are full (`queue`), and takes an
//! idle connection (`idle`) or makes one. A session keeps those that its client has authenticated (`private`). `state` keeps
//! what is known of the servers, and outlives reloads. Permits (`lease`) update it, and so do the callbacks that it gives to
//! active checks (`check`) and the resolver (`discovery`), and the commands of an operator (`drains`). `names` looks names
//! up, and asks the name servers (`name_servers`).

mod backend_set;
mod check;
mod discovery;
mod drains;
mod idle;
mod lease;
mod name_servers;
mod names;
mod owned;
mod private;
mod queue;
mod search;
mod server;
mod state;
pub(crate) mod status;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use longsplice_engine::Splicer;
use tokio::sync::watch;

pub(crate) use lease::{Failure, Lease, Site, Tenure};
pub(crate) use owned::Owned;
pub(crate) use private::Private;
pub(crate) use queue::Unavailable;
pub(crate) use search::{Ask, lease_original};
pub(crate) use server::{Server, ServerId};
pub(crate) use status::{ServerStatus, UpstreamStatus};

pub(crate) use crate::config::KeyKind;
use crate::config::{Config, ListenerConfig, UpstreamConfig};
use names::Names;
use search::{Search, same_family_first};
use state::UpstreamState;

/// All upstreams of a configuration.
#[derive(Debug)]
pub(crate) struct Upstreams {
    by_name: HashMap<String, Arc<Upstream>>,
    /// Upstreams of listeners with `to`, by the listener's name.
    by_listener: HashMap<String, Arc<Upstream>>,
    names: Arc<Names>,
}

/// A set of servers under one configuration. It shares the state of the servers with its successors.
#[derive(Debug)]
pub(crate) struct Upstream {
    config: Arc<UpstreamConfig>,
    state: Arc<UpstreamState>,
    splicer: Splicer,
}

/// Error: no server has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSuchServer {
    /// No upstream has this name.
    #[error("there is no upstream `{0}`; `longsplice servers` shows them")]
    Upstream(String),
    /// The upstream has no such server.
    #[error("upstream `{upstream}` has no server `{server}`; `longsplice servers` shows them")]
    Server {
        upstream: String,
        /// Name that was asked for.
        server: String,
    },
}

impl Upstreams {
    /// Creates the upstreams of a configuration. Call it within a tokio runtime: it starts tasks.
    pub(crate) fn new(config: &Config, splicer: &Splicer) -> Upstreams {
        Upstreams::build(config, splicer, None, &Arc::new(Names::default()))
    }

    /// Creates the upstreams of the next configuration. Servers that stay keep their state, idle connections and
    /// queues; upstreams that are gone are not watched any more. It takes effect at once, for connections of the old
    /// configuration too: call it when nothing can fail any more.
    #[must_use]
    pub(crate) fn next(&self, config: &Config, splicer: &Splicer) -> Upstreams {
        let next = Upstreams::build(config, splicer, Some(self), &self.names);
        for (before, after) in [
            (&self.by_name, &next.by_name),
            (&self.by_listener, &next.by_listener),
        ] {
            let gone = before.iter().filter(|(name, _)| !after.contains_key(*name));
            gone.for_each(|(_, upstream)| upstream.state.retire());
        }
        next
    }

    fn build(
        config: &Config,
        splicer: &Splicer,
        before: Option<&Upstreams>,
        names: &Arc<Names>,
    ) -> Upstreams {
        let upstream = |config: UpstreamConfig, before: Option<&Arc<Upstream>>| {
            let config = Arc::new(config);
            let state = match before {
                Some(before) => {
                    before.state.configure(&config);
                    Arc::clone(&before.state)
                }
                None => UpstreamState::new(&config, names),
            };
            let splicer = splicer.clone();
            Arc::new(Upstream {
                config,
                state,
                splicer,
            })
        };
        let by_name = config.upstreams.iter().map(|u| {
            let before = before.and_then(|before| before.by_name.get(&u.name));
            (u.name.clone(), upstream(u.clone(), before))
        });
        let by_listener = config.listeners.iter().filter(|l| !l.to.is_empty()).map(|l| {
            let before = before.and_then(|before| before.by_listener.get(&l.name));
            let config = UpstreamConfig::of_targets(&l.name, &l.to, l.connect_timeout);
            (l.name.clone(), upstream(config, before))
        });
        Upstreams {
            by_name: by_name.collect(),
            by_listener: by_listener.collect(),
            names: Arc::clone(names),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.by_name.get(name)
    }

    /// Returns the upstream for connections that no route takes; `None` if they go to their original destination.
    pub(crate) fn of_listener(&self, listener: &ListenerConfig) -> Option<&Arc<Upstream>> {
        match &listener.upstream {
            Some(name) => self.get(name),
            None => self.by_listener.get(&listener.name),
        }
    }

    /// Returns the status of all upstreams, sorted by name; those of listeners with `to` come last.
    pub(crate) fn status(&self) -> Vec<UpstreamStatus> {
        let sorted = |map: &HashMap<String, Arc<Upstream>>| {
            let mut list: Vec<_> = map.values().map(|u| u.state.status()).collect();
            list.sort_by(|a, b| a.name.cmp(&b.name));
            list
        };
        let mut all = sorted(&self.by_name);
        all.extend(sorted(&self.by_listener));
        all
    }

    /// Stops new connections and requests to a server (`drain`), or allows them again. Existing ones go on; idle
    /// connections are closed, and sticky clients move. `server` is a name or an address; several servers may share a
    /// name. Returns how many servers have it. Fails if no server has this name.
    pub(crate) fn drain(&self, upstream: &str, server: &str, drain: bool) -> Result<usize, NoSuchServer> {
        let of_that_name = [&self.by_name, &self.by_listener].map(|map| map.get(upstream));
        let mut found = 0;
        for upstream in of_that_name.iter().flatten() {
            found += upstream.state.drain(server, drain);
        }
        match (found, of_that_name) {
            (1.., _) => Ok(found),
            (0, [None, None]) => Err(NoSuchServer::Upstream(upstream.to_owned())),
            (0, _) => Err(NoSuchServer::Server {
                upstream: upstream.to_owned(),
                server: server.to_owned(),
            }),
        }
    }
}

impl Upstream {
    /// Connects to one of its servers: chooses one, waits in the queue if all are full, and takes an idle connection or
    /// makes one. If that fails, it tries other servers, as `retries` says.
    ///
    /// Cancel-safe: when the future is dropped, it gives up its permit or its position in the queue. Fails with the
    /// attempts, or the reason why there was none.
    pub(crate) async fn lease(&self, ask: &Ask<'_>) -> Result<Lease, Unavailable> {
        Search::new(&self.config, &self.state, &self.splicer, ask)
            .run()
            .await
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Returns whether it contains this server now, in any state.
    pub(crate) fn has(&self, server: ServerId) -> bool {
        self.state.has(server)
    }

    /// Returns an address that a client of this family will probably be connected to, if one is known. The engine
    /// prepares for it.
    pub(crate) fn likely(&self, ipv4: bool) -> Option<std::net::SocketAddr> {
        let addresses = self.state.first_addresses();
        same_family_first(addresses, ipv4).first().copied()
    }

    /// Returns what changes when [`Upstream::likely`] may say something else, as a name has other addresses.
    pub(crate) fn watch_addresses(&self) -> watch::Receiver<()> {
        self.state.watch_addresses()
    }

    /// Returns the congestion control of its connections, if one is configured.
    pub(crate) fn congestion(&self) -> Option<&str> {
        self.config.congestion.as_deref()
    }

    /// Returns how many other servers are tried after one that failed before its reply.
    pub(crate) fn retries(&self) -> u32 {
        self.config.retries.unwrap_or(u32::MAX)
    }

    /// Returns which part of a request the choice depends on.
    pub(crate) fn key(&self) -> &KeyKind {
        &self.config.balance.key
    }

    /// Returns the name of the cookie that keeps a client at its server.
    pub(crate) fn sticky(&self) -> Option<&str> {
        self.config.sticky.as_deref()
    }
}
