//! Defines the errors of a reload.

use std::{io, net::SocketAddr, time::Duration};

use tokio::task::JoinError;

use crate::{
    access_log::OpenError, config::ConfigError, listener::BindError, metrics::EndpointError,
    rule_manager::SetupError, tls::TerminatorError,
};

/// Reason why a configuration could not replace the one in force, which stays in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// The daemon has no file to read.
    #[error("this daemon was started without a file: there is nothing to load again")]
    NoFile,
    /// A file hangs.
    #[error(
        "reading the configuration and the files that it names took longer than {0:?}: is one of them a pipe, or on a file system \
         that hangs?"
    )]
    Late(Duration),
    /// The thread that read the files broke off.
    #[error("the configuration and the files that it names could not be read: {0}")]
    Read(#[from] JoinError),
    /// The file is wrong.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Keys differ that need a restart.
    #[error(
        "{} cannot be changed without a restart: put {} back, or {} (spliced connections run on meanwhile)",
        list(.0), if .0.len() == 1 { "it" } else { "them" }, restart(.0)
    )]
    Fixed(Vec<&'static str>),
    /// An address cannot be listened on.
    #[error("{error}{}", beside(.old))]
    Bind {
        /// Error of the system.
        error: BindError,
        /// Socket of the configuration in force that conflicts.
        old: Option<Old>,
    },
    /// A certificate or key cannot be used.
    #[error("listener {0}: {1}")]
    Tls(String, TerminatorError),
    /// The access log cannot be opened.
    #[error("{0}")]
    Log(#[from] OpenError),
    /// The socket for metrics cannot be opened.
    #[error("{error}{}", beside(.old))]
    Metrics {
        /// Error of the system.
        error: EndpointError,
        /// Socket of the configuration in force that conflicts.
        old: Option<Old>,
    },
    /// Rules or routes cannot be set.
    #[error("{0}")]
    Rules(#[from] SetupError),
    /// A socket cannot intercept.
    #[error("listener {0} cannot intercept: {1}")]
    Intercept(String, io::Error),
}

/// A socket of the configuration in force, which stays open until the next one takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Old {
    Listener(SocketAddr),
    Metrics(SocketAddr),
}

impl From<EndpointError> for ReloadError {
    fn from(error: EndpointError) -> ReloadError {
        ReloadError::Metrics { error, old: None }
    }
}

fn list(keys: &[&'static str]) -> String {
    keys.iter()
        .map(|k| format!("`{k}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the restart that puts the keys in force. Spliced connections keep their table, and its size, over a plain one.
fn restart(keys: &[&str]) -> &'static str {
    match keys.iter().any(|key| ["max_flows", "max_dormant"].contains(key)) {
        true => {
            "start the daemon anew with `longsplice run --replace`: a plain restart keeps the table of what is spliced, and its size"
        }
        false => "restart the daemon",
    }
}

fn beside(old: &Option<Old>) -> String {
    match old {
        Some(Old::Metrics(old)) => format!(
            "; the metrics of the configuration in force are at {old}, and stay until the next one takes its place: reload twice, \
             without [metrics] first"
        ),
        Some(Old::Listener(old)) => format!(
            "; this daemon listens on {old} itself, and cannot have both for the moment of the change: restart it instead \
             (spliced connections run on meanwhile)"
        ),
        None => String::new(),
    }
}
