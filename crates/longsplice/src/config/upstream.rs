//! Reads upstreams: sets of servers, and the choice among them.

mod balance;
mod health;
mod place;
mod servers;
mod settle;

use std::time::Duration;

use longsplice_core::{health::PassiveRules, proxy_protocol::Version};

pub use balance::{Balance, KeyKind};
pub use health::{HealthConfig, Probe, Statuses};
pub use place::{ServerPlace, ServiceName};
pub use servers::ServerConfig;
pub(super) use settle::Raw;

use crate::address::Target;

/// A set of servers.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamConfig {
    /// Name that routes and listeners use.
    pub name: String,
    /// Servers; at least one is no backup.
    pub servers: Vec<ServerConfig>,
    /// Algorithm that chooses a server.
    pub balance: Balance,
    /// Name of the cookie that keeps a client at its server.
    pub sticky: Option<String>,
    /// Longest time for connecting to an address.
    pub connect_timeout: Duration,
    /// Number of other servers that are tried after a failed connection; `None` means all.
    pub retries: Option<u32>,
    /// Limit of the connections that wait in the queue.
    pub queue: u32,
    /// Longest time in the queue.
    pub queue_timeout: Duration,
    /// Number of idle connections that are kept for each server.
    pub keep_idle: u32,
    /// Time that an idle connection is kept.
    pub idle_timeout: Duration,
    /// PROXY header at the beginning of new connections.
    pub send_proxy: Option<Version>,
    /// Active checks.
    pub health: Option<HealthConfig>,
    /// Failures that take a server out.
    pub passive: PassiveRules,
    /// True if a status of 500 or more counts as a failure.
    pub passive_status: bool,
    /// Time until a server that comes back gets its full weight.
    pub slow_start: Duration,
}

impl UpstreamConfig {
    /// Creates an upstream with the defaults; checks nothing.
    pub fn new(name: &str, servers: Vec<ServerConfig>) -> UpstreamConfig {
        let s = Duration::from_secs;
        UpstreamConfig {
            name: name.to_owned(),
            servers,
            balance: Balance::default(),
            sticky: None,
            connect_timeout: super::DEFAULT_CONNECT_TIMEOUT,
            retries: Some(2),
            queue: 100,
            queue_timeout: s(5),
            keep_idle: 64,
            idle_timeout: s(30),
            send_proxy: None,
            health: None,
            passive: PassiveRules {
                failures: 5,
                period: s(10),
                out_for: s(10),
            },
            passive_status: false,
            slow_start: Duration::ZERO,
        }
    }

    /// Creates the upstream of a listener with `to`: it uses the first target that answers, whatever happened before.
    pub fn in_order(name: &str, to: &[Target], connect_timeout: Duration) -> UpstreamConfig {
        let servers = to
            .iter()
            .cloned()
            .map(|t| ServerConfig::new(ServerPlace::Target(t)));
        let defaults = UpstreamConfig::new(name, servers.collect());
        UpstreamConfig {
            balance: Balance::in_order(),
            connect_timeout,
            retries: None,
            passive: PassiveRules {
                failures: 0,
                ..defaults.passive
            },
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests;
