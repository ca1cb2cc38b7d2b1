//! Reads upstreams: sets of servers, and the choice among them.

mod balance;
mod health;
mod place;
mod servers;

use std::{ops::Range, time::Duration};

use longsplice_core::{health::PassiveRules, proxy_protocol::Version};
use serde::Deserialize;
use toml::Spanned;

use balance::ParseBalanceError;
pub(crate) use balance::{Balance, KeyKind};
pub(crate) use health::{HealthConfig, Probe, Statuses};
use health::{RawHealth, RawOutlierDetection};
pub(crate) use place::ServerPlace;
use servers::RawServer;
pub(crate) use servers::ServerConfig;

use super::{
    one_or_many::{OneOrMany, flatten},
    period::Period,
    rules::is_token,
    settler::Settler,
};
use crate::address::Target;

/// Default time for connecting to one address.
pub(crate) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A set of servers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UpstreamConfig {
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
    /// Congestion control of the legs to the servers; `None`: the kernel's own choice.
    pub congestion: Option<String>,
    /// Number of other servers that are tried after a failed connection; `None` means all.
    pub retries: Option<u32>,
    /// Limit of the connections that wait in the queue.
    pub queue: u32,
    /// Longest time in the queue.
    pub queue_timeout: Duration,
    /// Number of idle connections that are kept for each server.
    pub max_idle: u32,
    /// Time that an idle connection is kept.
    pub idle_timeout: Duration,
    /// PROXY header at the beginning of new connections.
    pub send_proxy: Option<Version>,
    /// Active checks.
    pub health: Option<HealthConfig>,
    /// Failures that take a server out.
    pub outlier_detection: PassiveRules,
    /// True if a status of 500 or more counts as a failure.
    pub outlier_status: bool,
    /// Time until a server that comes back gets its full weight.
    pub slow_start: Duration,
}

/// The table as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Spanned<String>,
    servers: Option<Spanned<OneOrMany<ServerPlace>>>,
    #[serde(default)]
    server: Vec<Spanned<RawServer>>,
    balance: Option<Spanned<String>>,
    sticky: Option<Spanned<String>>,
    connect_timeout: Option<Spanned<Period>>,
    congestion: Option<Spanned<String>>,
    retries: Option<Spanned<i64>>,
    max_connections: Option<Spanned<i64>>,
    queue: Option<Spanned<i64>>,
    queue_timeout: Option<Spanned<Period>>,
    max_idle: Option<Spanned<i64>>,
    idle_timeout: Option<Spanned<Period>>,
    send_proxy: Option<Spanned<String>>,
    health: Option<Spanned<RawHealth>>,
    outlier_detection: Option<RawOutlierDetection>,
    slow_start: Option<Spanned<Period>>,
}

/// Servers of an upstream that are written as targets, each with its position.
pub(super) struct Targets {
    pub(super) upstream: String,
    pub(super) servers: Vec<Spanned<Target>>,
}

impl Raw {
    /// Returns those of its servers that are targets.
    pub(super) fn targets(&self) -> Targets {
        let list = self.servers.clone().map_or_else(Vec::new, flatten);
        let tables = self.server.iter().map(|table| table.get_ref().address.clone());
        let targets = list.into_iter().chain(tables).filter_map(|place| {
            let span = place.span();
            match place.into_inner() {
                ServerPlace::Target(target) => Some(Spanned::new(span, target)),
                ServerPlace::Service(_) => None,
            }
        });
        Targets {
            upstream: self.name.get_ref().clone(),
            servers: targets.collect(),
        }
    }

    /// Returns the keys that choose a server by what a request says, each with its position.
    pub(super) fn by_request(&self) -> Vec<(&'static str, Range<usize>)> {
        let is_of_request =
            |balance: &Balance| matches!(balance.key, KeyKind::Header(_) | KeyKind::Cookie(_));
        let balance = self.balance.as_ref();
        let balance = balance.filter(|given| given.get_ref().parse().as_ref().is_ok_and(is_of_request));
        let keys = [("sticky", self.sticky.as_ref()), ("balance", balance)];
        let given = |(key, given): (_, Option<&Spanned<String>>)| Some((key, given?.span()));
        keys.into_iter().filter_map(given).collect()
    }
}

impl UpstreamConfig {
    /// Creates an upstream with the defaults; checks nothing.
    pub(crate) fn new(name: &str, servers: Vec<ServerConfig>) -> UpstreamConfig {
        let s = Duration::from_secs;
        UpstreamConfig {
            name: name.to_owned(),
            servers,
            balance: Balance::default(),
            sticky: None,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            congestion: None,
            retries: Some(2),
            queue: 100,
            queue_timeout: s(5),
            max_idle: 64,
            idle_timeout: s(30),
            send_proxy: None,
            health: None,
            outlier_detection: PassiveRules {
                failures: 5,
                period: s(10),
                ejection_time: s(10),
            },
            outlier_status: false,
            slow_start: Duration::ZERO,
        }
    }

    /// Creates the upstream of a listener with `to`: it uses the first target that answers, whatever happened before.
    pub(crate) fn of_targets(name: &str, to: &[Target], connect_timeout: Duration) -> UpstreamConfig {
        let servers = to
            .iter()
            .cloned()
            .map(|t| ServerConfig::new(ServerPlace::Target(t)));
        let defaults = UpstreamConfig::new(name, servers.collect());
        UpstreamConfig {
            balance: Balance::first(),
            connect_timeout,
            retries: None,
            outlier_detection: PassiveRules {
                failures: 0,
                ..defaults.outlier_detection
            },
            ..defaults
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);

impl Settler<'_> {
    /// Checks and converts the tables.
    pub(super) fn upstreams(&mut self, given: Vec<Spanned<Raw>>) -> Vec<UpstreamConfig> {
        let mut all: Vec<UpstreamConfig> = Vec::new();
        for raw in given {
            let place = raw.span();
            let raw = raw.into_inner();
            if all.iter().any(|u| u.name == *raw.name.get_ref()) {
                let message = format!("another upstream is named `{}`", raw.name.get_ref());
                let help = "routes tell upstreams apart by their names";
                self.complain(raw.name.span(), message, help);
            }
            let upstream = self.upstream(raw, place);
            all.push(upstream);
        }
        all
    }

    fn upstream(&mut self, raw: Raw, place: Range<usize>) -> UpstreamConfig {
        let name = servers::name(self, raw.name);
        let max_connections = raw
            .max_connections
            .map(|n| self.count("max_connections", Some(&n), 1, 1 << 26));
        let servers = servers::servers(self, raw.servers, raw.server, max_connections, place);
        let limited = servers.iter().any(|s| s.max_connections.is_some());
        for key in [
            raw.queue.as_ref().map(Spanned::span),
            raw.queue_timeout.as_ref().map(Spanned::span),
        ] {
            if let Some(span) = key.filter(|_| !limited) {
                let help = "add max_connections, or leave it out";
                self.complain(
                    span,
                    "no connection would ever queue: no server has a limit",
                    help,
                );
            }
        }
        let d = UpstreamConfig::new(&name, servers);
        let ms = Duration::from_millis(1);
        let balance = raw.balance.map(|given| self.balance(&given));
        let (outlier_detection, outlier_status) =
            health::outlier_detection(self, raw.outlier_detection, d.outlier_detection);
        UpstreamConfig {
            balance: balance.unwrap_or_default(),
            sticky: raw.sticky.map(|given| self.cookie_name(given)),
            connect_timeout: self.period(
                "connect_timeout",
                raw.connect_timeout,
                d.connect_timeout,
                ms,
                HOUR / 6,
            ),
            congestion: self.congestion(raw.congestion),
            retries: Some(self.number("retries", raw.retries.as_ref(), 2, 0..=1000)),
            queue: self.number("queue", raw.queue.as_ref(), d.queue, 0..=1 << 16),
            queue_timeout: self.period("queue_timeout", raw.queue_timeout, d.queue_timeout, ms, HOUR),
            max_idle: self.number("max_idle", raw.max_idle.as_ref(), d.max_idle, 0..=1 << 16),
            idle_timeout: self.period("idle_timeout", raw.idle_timeout, d.idle_timeout, ms, HOUR * 24),
            send_proxy: raw.send_proxy.and_then(|given| self.proxy_version(&given)),
            health: raw.health.map(|given| health::health(self, given)),
            outlier_detection,
            outlier_status,
            slow_start: self.period("slow_start", raw.slow_start, Duration::ZERO, Duration::ZERO, HOUR),
            ..d
        }
    }

    fn balance(&mut self, given: &Spanned<String>) -> Balance {
        let parsed = given.get_ref().parse();
        parsed.unwrap_or_else(|error: ParseBalanceError| {
            self.complain(given.span(), error.to_string(), "round_robin is the default");
            Balance::default()
        })
    }

    fn cookie_name(&mut self, given: Spanned<String>) -> String {
        if !is_token(given.get_ref()) {
            let message = format!("`{}` cannot be the name of a cookie", given.get_ref());
            let help = "use letters, digits and any of !#$%&'*+-.^_`|~ (RFC 6265 section 4.1.1)";
            self.complain(given.span(), message, help);
        }
        given.into_inner()
    }

    fn proxy_version(&mut self, given: &Spanned<String>) -> Option<Version> {
        match given.get_ref().as_str() {
            "v1" => Some(Version::V1),
            "v2" => Some(Version::V2),
            other => {
                let message = format!("`{other}` is no version of the PROXY protocol");
                self.complain(given.span(), message, "use v1 or v2");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
