//! What a daemon is to do: read from a TOML file ([`load`]) or made from the command line.

mod diagnostic;
mod hint;
mod http;
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
    Shutdown, SplicerConfig, Until,
    rules::{Network, Rule},
};
use serde::{Deserialize, Serialize};

pub use diagnostic::Diagnostic;
pub use http::HttpConfig;
pub use intercept::{InterceptConfig, SourceAddress};
pub use operations::{AccessLogConfig, AccessLogFormat, OnChange, OperationsConfig};
pub use period::{Period, PeriodError};
pub use tls::TlsConfig;
pub use upstream::{
    Balance, HealthConfig, KeyKind, Probe, ServerConfig, ServerPlace, ServiceName, Statuses, UpstreamConfig,
};

use crate::{address::Target, instance::InstanceName};

/// The time that connections in control mode get at a shutdown, unless set.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// The time that one address gets to answer, unless set.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Everything a daemon needs to know, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which instance this is.
    pub instance: InstanceName,
    /// Where the admin socket is, if not at the usual place.
    pub admin: Option<PathBuf>,
    /// The engine's part; its `instance` is filled in by [`Config::splicer_config`].
    pub splicer: SplicerConfig,
    /// What becomes of spliced flows when the daemon ends.
    pub shutdown: OnShutdown,
    /// How long connections in control mode may go on after a shutdown began.
    pub grace: Duration,
    /// How to log.
    pub log: LogConfig,
    /// Rules for packets that come in.
    pub rules: Vec<Rule>,
    /// Metrics and logs.
    pub operations: OperationsConfig,
    /// Sets of servers.
    pub upstreams: Vec<UpstreamConfig>,
    /// What to listen on, and where to connect to.
    pub listeners: Vec<ListenerConfig>,
}

/// One listener: its addresses, its targets, its policies.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// Names it in logs and in `status`.
    pub name: String,
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// Where its connections go: the first that answers. None: where they were going when they were intercepted.
    pub to: Vec<Target>,
    /// Which connections to others it takes.
    pub intercept: Option<InterceptConfig>,
    /// When to splice.
    pub splice: SplicePolicy,
    /// When to let go of the parked sockets.
    pub detach: DetachPolicy,
    /// When it comes back to the relay, to be spliced again when its policy says so.
    pub unsplice: Until,
    /// How fast the payload of each connection may pass, relayed or spliced.
    pub rate_limit: RateLimit,
    /// How long each address of a target may take to answer.
    pub connect_timeout: Duration,
    /// How many connections this process may hold at once; a detached flow is not one of them.
    pub max_connections: Option<u32>,
    /// What happens to the next one.
    pub on_full: OnFull,
    /// What it reads of a connection before it chooses a server.
    pub protocol: Protocol,
    /// The upstream of what no route takes; `None`: `to`, or where the connection was going.
    pub upstream: Option<String>,
    /// Peers whose connections begin with a PROXY header; nobody else's is read.
    pub accept_proxy: Vec<Network>,
    /// From which length on a reply is spliced, in bytes; `None`: as the daemon measures.
    pub splice_from: Option<u64>,
    /// What becomes of its open flows when its configuration changes.
    pub on_change: OnChange,
    /// Certificates, where it terminates TLS.
    pub tls: Option<TlsConfig>,
    /// Limits of HTTP.
    pub http: HttpConfig,
    /// Which upstream a connection or request gets; the first that matches.
    pub routes: Table,
}

/// What a listener reads of a connection before it chooses a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Nothing.
    #[default]
    Tcp,
    /// A ClientHello (SNI and ALPN), which is passed on.
    Tls,
    /// Each request of HTTP/1.
    Http,
}

/// What becomes of a connection beyond `max_connections`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// It waits, in the kernel's queue.
    #[default]
    Wait,
    /// It is reset.
    Refuse,
}

/// What becomes of spliced flows at a clean shutdown.
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
    /// As it is written in a file.
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

/// How to log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogConfig {
    /// Lines for people or for machines.
    pub format: LogFormat,
    /// From which level on.
    pub level: LogLevel,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// From which level on to log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What will need attention.
    Warn,
    /// Starts, stops, refused connections.
    #[default]
    Info,
    /// Each connection.
    Debug,
    /// Each step.
    Trace,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file says something that cannot be meant; each diagnostic bears its place.
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
    /// What the engine is opened with.
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

/// The text of a file.
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

/// Checks the text of a configuration file; `path` is only what diagnostics call it.
pub fn parse(path: &Path, text: &str) -> Result<Config, Vec<Diagnostic>> {
    let source = diagnostic::Source::new(path, text);
    settle::settle(toml(text, &source)?, &source)
}

/// The same of a file of rules.
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
