//! Upstreams: sets of servers, of which each connection or request gets one.
//!
//! [`Upstream::lease`] (`search`) chooses a server (`crew`), waits in the queue where all are full (`queue`), and takes an idle
//! connection (`idle`) or makes one (`connect`). What is known of the servers is kept in a `roster`, which outlives reloads. It
//! is fed by what becomes of leases (`place`), by active checks (`check`) and by the resolver (`entry`, `names`).

mod check;
mod connect;
mod crew;
mod entry;
mod idle;
mod lease;
mod names;
mod place;
mod queue;
mod roster;
mod search;
mod server;
mod status;
mod task;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use longsplice_engine::Splicer;

pub use connect::same_family_first;
pub use lease::{Ask, Failure, Lease, Reuse, Tenure, Unavailable, lease_original};
pub use place::Site;
pub use server::{Server, ServerId};
pub use status::{CheckStatus, ServerStatus, Unresolved, UpstreamStatus};

pub use crate::config::KeyKind;
use crate::config::{Config, ListenerConfig, UpstreamConfig};
use names::Names;
use roster::Roster;

/// All upstreams of a configuration.
#[derive(Debug)]
pub struct Upstreams {
    by_name: HashMap<String, Arc<Upstream>>,
    /// Those of listeners with `to`, by the listener's name.
    by_listener: HashMap<String, Arc<Upstream>>,
    names: Arc<Names>,
}

/// A set of servers under one configuration; what is known of them is shared with those of later ones.
#[derive(Debug)]
pub struct Upstream {
    config: Arc<UpstreamConfig>,
    roster: Arc<Roster>,
    splicer: Splicer,
}

/// No server has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchServer {
    /// Not even the upstream is there.
    #[error("there is no upstream `{0}`; `longsplice servers` shows them")]
    Upstream(String),
    /// The upstream has no such server.
    #[error("upstream `{upstream}` has no server `{server}`; `longsplice servers` shows them")]
    Server {
        /// Which upstream.
        upstream: String,
        /// What it does not have.
        server: String,
    },
}

impl Upstreams {
    /// Those of a configuration. Within a tokio runtime: there run the tasks that watch them.
    pub fn new(config: &Config, splicer: &Splicer) -> Upstreams {
        Upstreams::build(config, splicer, None, &Arc::new(Names::default()))
    }

    /// Those of the next configuration: servers that stay keep their state, idle connections and those who wait. Takes effect at
    /// once, for connections of the old configuration too: call it when nothing can fail any more.
    #[must_use]
    pub fn next(&self, config: &Config, splicer: &Splicer) -> Upstreams {
        Upstreams::build(config, splicer, Some(self), &self.names)
    }

    fn build(
        config: &Config,
        splicer: &Splicer,
        before: Option<&Upstreams>,
        names: &Arc<Names>,
    ) -> Upstreams {
        let upstream = |config: UpstreamConfig, before: Option<&Arc<Upstream>>| {
            let config = Arc::new(config);
            let roster = match before {
                Some(before) => {
                    before.roster.configure(&config);
                    Arc::clone(&before.roster)
                }
                None => Roster::new(&config, names),
            };
            let splicer = splicer.clone();
            Arc::new(Upstream {
                config,
                roster,
                splicer,
            })
        };
        let by_name = config.upstreams.iter().map(|u| {
            let before = before.and_then(|before| before.by_name.get(&u.name));
            (u.name.clone(), upstream(u.clone(), before))
        });
        let by_listener = config.listeners.iter().filter(|l| !l.to.is_empty()).map(|l| {
            let before = before.and_then(|before| before.by_listener.get(&l.name));
            let config = UpstreamConfig::in_order(&l.name, &l.to, l.connect_timeout);
            (l.name.clone(), upstream(config, before))
        });
        Upstreams {
            by_name: by_name.collect(),
            by_listener: by_listener.collect(),
            names: Arc::clone(names),
        }
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

    /// How all of them stand, by name; those of listeners with `to` come last.
    pub fn status(&self) -> Vec<UpstreamStatus> {
        let sorted = |map: &HashMap<String, Arc<Upstream>>| {
            let mut list: Vec<_> = map.values().map(|u| u.roster.status()).collect();
            list.sort_by(|a, b| a.name.cmp(&b.name));
            list
        };
        let mut all = sorted(&self.by_name);
        all.extend(sorted(&self.by_listener));
        all
    }

    /// Lets a server take no new connections and requests (`drain`), or take them again. Those that are under way go on; its idle
    /// connections are closed, and its sticky clients move. `server` is a name or an address; a name may have several. Answers how
    /// many servers it concerned.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn drain(&self, upstream: &str, server: &str, drain: bool) -> Result<usize, NoSuchServer> {
        let of_that_name = [&self.by_name, &self.by_listener].map(|map| map.get(upstream));
        let mut found = 0;
        for upstream in of_that_name.iter().flatten() {
            found += upstream.roster.drain(server, drain);
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
    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether a server is one of its servers now, in whatever state.
    pub fn has(&self, server: ServerId) -> bool {
        self.roster.has(server)
    }

    /// An address that a client of this family will most likely be connected to, if one is known: what the engine prepares for.
    pub fn likely(&self, ipv4: bool) -> Option<std::net::SocketAddr> {
        let addresses = self.roster.addresses();
        same_family_first(addresses, ipv4).first().copied()
    }

    /// How many other servers are tried where one fails before it has replied.
    pub fn retries(&self) -> u32 {
        self.config.retries.unwrap_or(u32::MAX)
    }

    /// What of a request its choice depends on.
    pub fn key(&self) -> &KeyKind {
        &self.config.balance.key
    }

    /// The name of the cookie that keeps a client at its server.
    pub fn sticky(&self) -> Option<&str> {
        self.config.sticky.as_deref()
    }
}
