//! Describes the task of a daemon: read from a TOML file ([`load`]) or made from the command line.

mod diagnostic;
mod guarded;
mod hint;
mod http;
mod idle;
mod intercept;
mod listeners;
mod operations;
mod packet_rules;
mod period;
mod raw;
mod route;
pub mod rules;
mod settle;
mod tls;
mod upstream;

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use longsplice_core::{
    limit::RateLimit,
    policy::{DetachPolicy, SplicePolicy},
    route::Table,
};
use longsplice_engine::{
    IdlePolicy, Shutdown, SplicerConfig, Until,
    rules::{Network, Rule},
};
use serde::{Deserialize, Serialize};

pub use diagnostic::Diagnostic;
pub use http::{ForwardedMode, HttpConfig, Underscores};
pub use idle::{KeepaliveSetting, idle_policy};
pub use intercept::{InterceptConfig, SourceAddress};
pub use operations::{AccessLogConfig, AccessLogFormat, MemoryLimit, OnChange, OperationsConfig};
pub use period::{Period, PeriodError};
pub use tls::TlsConfig;
pub use upstream::{
    Balance, HealthConfig, KeyKind, Probe, ServerConfig, ServerPlace, ServiceName, Statuses, UpstreamConfig,
};

use crate::{address::Target, instance::InstanceName};

/// Default time for connections in control mode to end at a shutdown.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// Default time that a relayed connection may be idle.
pub const DEFAULT_RELAY_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Default time for connecting to one address.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The checked configuration of a daemon.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the instance.
    pub instance: InstanceName,
    /// Path of the admin socket, if it is not the usual one.
    pub admin: Option<PathBuf>,
    /// Settings of the engine; [`Config::splicer_config`] fills in its `instance`.
    pub splicer: SplicerConfig,
    /// Limit of its memory.
    pub memory: MemoryLimit,
    /// True if the daemon ends at its start if it could only relay.
    pub require_splice: bool,
    /// Treatment of spliced flows when the daemon ends.
    pub shutdown: OnShutdown,
    /// Time that connections in control mode have after a shutdown began.
    pub grace: Duration,
    /// Format and level of the log.
    pub log: LogConfig,
    /// Rules for incoming packets.
    pub rules: Vec<Rule>,
    /// Metrics and logs.
    pub operations: OperationsConfig,
    /// Sets of servers.
    pub upstreams: Vec<UpstreamConfig>,
    /// Listeners and their destinations.
    pub listeners: Vec<ListenerConfig>,
    /// Diagnostics about settings that are valid but may be unintended.
    pub warnings: Vec<Diagnostic>,
}

/// A listener: its addresses, targets and policies.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// Name in logs and in `status`.
    pub name: String,
    /// Addresses that it listens on.
    pub listen: Vec<SocketAddr>,
    /// Targets of its connections; the first that answers is used. If empty, connections go to their original
    /// destination.
    pub to: Vec<Target>,
    /// Connections to other hosts that it intercepts.
    pub intercept: Option<InterceptConfig>,
    /// Selects when to splice.
    pub splice: SplicePolicy,
    /// Selects when to release the parked sockets.
    pub detach: DetachPolicy,
    /// Conditions for returning to the relay; the policy may splice again later.
    pub unsplice: Until,
    /// Rate limit of each connection's payload, relayed or spliced.
    pub rate_limit: RateLimit,
    /// Limit of the idle time of relayed connections, and the probes meanwhile.
    pub idle: IdlePolicy,
    /// Longest time for connecting to one address of a target.
    pub connect_timeout: Duration,
    /// Limit of the connections that this process holds; a detached flow does not count.
    pub max_connections: Option<u32>,
    /// Treatment of connections beyond that.
    pub on_full: OnFull,
    /// True if a client's FIN ends its wait for a server, or for a server's reply.
    pub abort_on_close: bool,
    /// Part of a connection that is read before a server is chosen.
    pub protocol: Protocol,
    /// Upstream of connections that no route takes; `None` means `to`, or the original destination.
    pub upstream: Option<String>,
    /// Peers whose connections begin with a PROXY header. It is not read from other peers.
    pub accept_proxy: Vec<Network>,
    /// Length from which on a reply is spliced, in bytes; `None` means as the daemon measures.
    pub splice_from: Option<u64>,
    /// Treatment of its open flows when its configuration changes.
    pub on_change: OnChange,
    /// Certificates, if it terminates TLS.
    pub tls: Option<TlsConfig>,
    /// Limits and options of HTTP.
    pub http: HttpConfig,
    /// Routes of connections or requests; the first match is used.
    pub routes: Table,
}

/// Part of a connection that a listener reads before it chooses a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Nothing.
    #[default]
    Tcp,
    /// The ClientHello (SNI and ALPN), which is passed on.
    Tls,
    /// Each HTTP/1 request.
    Http,
}

/// Treatment of a connection beyond `max_connections`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// Leave it in the kernel's queue.
    #[default]
    Wait,
    /// Reset it.
    Refuse,
}

/// Treatment of spliced flows at a clean shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnShutdown {
    /// They run on in the kernel, and the next daemon of this instance adopts them.
    #[default]
    Keep,
    /// They are reset, and nothing stays in the kernel.
    End,
}

impl OnShutdown {
    /// Returns the name in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            OnShutdown::Keep => "keep",
            OnShutdown::End => "end",
        }
    }
}

impl From<OnShutdown> for Shutdown {
    fn from(how: OnShutdown) -> Self {
        match how {
            OnShutdown::Keep => Shutdown::KeepSpliced,
            OnShutdown::End => Shutdown::EndSpliced,
        }
    }
}

/// Format and level of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// Format for people or for machines.
    pub format: LogFormat,
    /// Lowest level that is written.
    pub level: LogLevel,
    /// Average limit of lines of one kind in a second; 0 means no limit.
    pub lines_per_second: u32,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            format: LogFormat::default(),
            level: LogLevel::default(),
            lines_per_second: crate::logging::DEFAULT_RATE,
        }
    }
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Lowest level that is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Conditions that will need attention.
    Warn,
    /// Starts, stops, refused connections.
    #[default]
    Info,
    /// Each connection.
    Debug,
    /// Each step.
    Trace,
}

/// Reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is invalid; each diagnostic has its position.
    #[error("{}", join(.0))]
    Wrong(Vec<Diagnostic>),
}

fn join(diagnostics: &[Diagnostic]) -> String {
    diagnostics
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

impl Config {
    /// Writes the warnings to the log.
    pub fn log_warnings(&self) {
        for warning in &self.warnings {
            tracing::warn!("{}", warning.brief());
        }
    }

    /// Returns the settings for opening the engine.
    pub fn splicer_config(&self) -> SplicerConfig {
        SplicerConfig {
            instance: self.instance.to_string(),
            ..self.splicer.clone()
        }
    }
}

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    parse(path, &read(path)?).map_err(ConfigError::Wrong)
}

/// Reads and checks a file of rules.
pub fn load_rules(path: &Path) -> Result<Vec<Rule>, ConfigError> {
    parse_rules(path, &read(path)?).map_err(ConfigError::Wrong)
}

/// Reads the text of a file.
fn read(path: &Path) -> Result<String, ConfigError> {
    let bytes = fs::read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    String::from_utf8(bytes).map_err(|e| {
        let good = e.as_bytes().get(..e.utf8_error().valid_up_to());
        let good = String::from_utf8_lossy(good.unwrap_or_default());
        let wrong = diagnostic::Source::new(path, &good).at(
            good.len()..good.len(),
            "this byte is not UTF-8",
            Some("save the file as UTF-8".into()),
        );
        ConfigError::Wrong(vec![wrong])
    })
}

/// Checks the text of a configuration file; diagnostics show it as `path`.
pub fn parse(path: &Path, text: &str) -> Result<Config, Vec<Diagnostic>> {
    let source = diagnostic::Source::new(path, text);
    settle::settle(toml(text, &source)?, &source)
}

/// Checks the text of a file of rules; diagnostics show it as `path`.
pub fn parse_rules(path: &Path, text: &str) -> Result<Vec<Rule>, Vec<Diagnostic>> {
    let source = diagnostic::Source::new(path, text);
    packet_rules::settle_file(toml(text, &source)?, &source)
}

fn toml<T: serde::de::DeserializeOwned>(
    text: &str,
    source: &diagnostic::Source<'_>,
) -> Result<T, Vec<Diagnostic>> {
    toml::from_str(text).map_err(|e| {
        let (message, help) = hint::explain(e.message());
        vec![source.at(e.span().unwrap_or(0..0), message, help)]
    })
}

#[cfg(test)]
mod tests;
