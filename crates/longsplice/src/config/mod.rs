//! Describes the task of a daemon: read from a TOML file ([`load`]) or made from the command line.

mod accelerate;
mod diagnostic;
mod file;
mod guarded;
mod hint;
mod http;
mod idle;
mod intercept;
mod listeners;
mod log;
mod one_or_many;
mod operations;
mod packet_rules;
mod period;
mod protocol;
mod remedy;
mod route;
pub(crate) mod rules;
mod settler;
mod tls;
mod upstream;
mod warnings;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use longsplice_engine::rules::Rule;

pub(crate) use accelerate::{AccelerateClass, AccelerateConfig, EarlyAccept, StandingQueue};
pub(crate) use diagnostic::Diagnostic;
pub(crate) use file::{Config, DEFAULT_SHUTDOWN_TIMEOUT, OnShutdown, usual_max_dormant};
pub(crate) use http::{ForwardedMode, HttpConfig, Underscores};
pub(crate) use idle::{KeepaliveSetting, idle_policy};
pub(crate) use intercept::{InterceptConfig, SourceAddress, rule_name};
pub(crate) use listeners::{ListenerConfig, OnFull};
pub(crate) use log::{DEFAULT_LINES_PER_SECOND, LogConfig, LogFormat, LogLevel};
pub(crate) use operations::{AccessLogConfig, AccessLogFormat, MemoryLimit, OnReload};
pub(crate) use period::Period;
pub(crate) use protocol::Protocol;
pub(crate) use tls::TlsConfig;
pub(crate) use upstream::{
    DEFAULT_CONNECT_TIMEOUT, HealthConfig, KeyKind, Probe, ServerConfig, ServerPlace, Statuses,
    UpstreamConfig,
};

/// Limit of a file, in bytes. A file may be a device without an end.
const LONGEST: u64 = 16 << 20;

/// Reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is longer than any configuration.
    #[error("{} is longer than {LONGEST} bytes", .0.display())]
    TooLong(PathBuf),
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

/// Reads and checks a configuration file.
pub(crate) fn load(path: &Path) -> Result<Config, ConfigError> {
    parse(path, &read(path)?).map_err(ConfigError::Wrong)
}

/// Reads and checks a file of rules.
pub(crate) fn load_rules(path: &Path) -> Result<Vec<Rule>, ConfigError> {
    parse_rules(path, &read(path)?).map_err(ConfigError::Wrong)
}

/// Reads the text of a file.
fn read(path: &Path) -> Result<String, ConfigError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
        .map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > LONGEST {
        return Err(ConfigError::TooLong(path.to_owned()));
    }
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
pub(crate) fn parse(path: &Path, text: &str) -> Result<Config, Vec<Diagnostic>> {
    settled(path, text, file::settle)
}

/// Checks the text of a file of rules; diagnostics show it as `path`.
pub(crate) fn parse_rules(path: &Path, text: &str) -> Result<Vec<Rule>, Vec<Diagnostic>> {
    settled(path, text, packet_rules::settle_file)
}

/// Reads the text, and checks and converts it by `settle`.
fn settled<Raw: serde::de::DeserializeOwned, Checked>(
    path: &Path,
    text: &str,
    settle: fn(Raw, &diagnostic::Source<'_>) -> Result<Checked, Vec<Diagnostic>>,
) -> Result<Checked, Vec<Diagnostic>> {
    let source = diagnostic::Source::new(path, text);
    let error = match toml::from_str(text) {
        Ok(raw) => return settle(raw, &source),
        Err(error) => error,
    };
    // Look no further for the remedy of an error in another spelling of the text.
    let again = |text: &str| {
        let source = diagnostic::Source::new(path, text);
        match toml::from_str(text) {
            Ok(raw) => settle(raw, &source).err().unwrap_or_default(),
            Err(error) => vec![hint::diagnose(&error, &source)],
        }
    };
    Err(vec![remedy::diagnose(&error, &source, again)])
}

#[cfg(test)]
mod tests;
