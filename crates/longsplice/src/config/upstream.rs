//! Upstreams: sets of servers, and how they share the work.

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
    /// Routes and listeners name it.
    pub name: String,
    /// Its servers, of which at least one is no backup.
    pub servers: Vec<ServerConfig>,
    /// How a server is chosen.
    pub balance: Balance,
    /// The name of the cookie that keeps a client at its server.
    pub sticky: Option<String>,
    /// How long an address may take to answer.
    pub connect_timeout: Duration,
    /// How many other servers are tried when one cannot be connected to; `None`: all.
    pub retries: Option<u32>,
    /// How many connections may wait for a place.
    pub queue: u32,
    /// How long each of them may.
    pub queue_timeout: Duration,
    /// How many idle connections are kept for each server.
    pub keep_idle: u32,
    /// How long each of them is.
    pub idle_timeout: Duration,
    /// The PROXY header that new connections begin with.
    pub send_proxy: Option<Version>,
    /// Active checks.
    pub health: Option<HealthConfig>,
    /// When failed connections take a server out.
    pub passive: PassiveRules,
    /// Whether a status of 500 or more counts as one.
    pub passive_status: bool,
    /// How long a server that comes back takes to get its full weight.
    pub slow_start: Duration,
}

impl UpstreamConfig {
    /// With the defaults; nothing is checked.
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

    /// That of a listener with `to`: the first target that answers, whatever happened before.
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
