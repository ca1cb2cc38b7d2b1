//! Upstreams: sets of servers, of which each connection or request gets one.

mod connect;

use std::{collections::HashMap, fmt, net::SocketAddr, sync::Arc, time::Duration};

use longsplice_engine::Splicer;
use tokio::net::TcpStream;

pub use connect::{Connector, Refused, same_family_first};

use crate::{
    address::Target,
    config::{Config, ListenerConfig, SourceAddress},
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

/// Who asks for a server.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Leg A.
    pub client: &'a TcpStream,
    /// The client's address, by the PROXY header where one was read.
    pub peer: SocketAddr,
    /// Where the client connected to.
    pub local: SocketAddr,
    /// Whose address the server sees.
    pub source: SourceAddress,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Lease {
    /// Leg B.
    pub stream: TcpStream,
    /// Whether it has served a request before.
    pub reused: bool,
    /// Counts as one of its server's connections until it is dropped.
    pub tenure: Tenure,
}

/// A connection's place at its server.
#[derive(Debug)]
pub struct Tenure {
    server: String,
}

/// No server.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// None answered.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// The original destination did not.
    #[error("{0}: {1}")]
    Original(SocketAddr, std::io::Error),
}

impl Unavailable {
    /// The status code for a client that speaks HTTP (RFC 9110 section 15.6).
    pub fn status(&self) -> u16 {
        match self {
            Unavailable::Refused(_) | Unavailable::Original(..) => 502,
        }
    }
}

impl Upstreams {
    /// Those of a configuration.
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

    /// A connection to one of its servers.
    ///
    /// # Errors
    /// What was tried.
    pub async fn lease(self: &Arc<Self>, ask: &Ask<'_>) -> Result<Lease, Unavailable> {
        let connector = Connector {
            splicer: &self.splicer,
            client: ask.client,
            source: ask.source,
            timeout: self.connect_timeout,
        };
        let stream = connector.connect(&self.servers).await?;
        let server = stream.peer_addr().map(|a| a.to_string()).unwrap_or_default();
        Ok(Lease {
            stream,
            reused: false,
            tenure: Tenure { server },
        })
    }
}

/// A connection to where the client was going.
///
/// # Errors
/// What it answered.
pub async fn lease_original(
    splicer: &Splicer,
    ask: &Ask<'_>,
    to: SocketAddr,
    timeout: Duration,
) -> Result<Lease, Unavailable> {
    let connector = Connector {
        splicer,
        client: ask.client,
        source: ask.source,
        timeout,
    };
    let stream = connector
        .connect_to(to)
        .await
        .map_err(|error| Unavailable::Original(to, error))?;
    Ok(Lease {
        stream,
        reused: false,
        tenure: Tenure {
            server: to.to_string(),
        },
    })
}

impl fmt::Display for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.server)
    }
}
