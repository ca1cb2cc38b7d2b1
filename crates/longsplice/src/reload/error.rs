//! Why a configuration could not be put in force.

use std::{io, net::SocketAddr};

use crate::{
    access_log::OpenError, config::ConfigError, listener::BindError, metrics::EndpointError,
    rulebook::SetupError, tls::TerminatorError,
};

/// Why a configuration could not take the place of the one in force, which still is.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// There is nothing to read.
    #[error("this daemon was started without a file: there is nothing to load again")]
    NoFile,
    /// The file.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// What needs a restart.
    #[error(
        "{} cannot be changed without a restart: put {} back, or restart the daemon (spliced connections run on meanwhile)",
        list(.0), if .0.len() == 1 { "it" } else { "them" }
    )]
    Fixed(Vec<&'static str>),
    /// An address.
    #[error("{error}{}", beside(.old))]
    Bind {
        /// What the system said.
        error: BindError,
        /// An address that this daemon listens on, and that is in the way.
        old: Option<SocketAddr>,
    },
    /// A certificate or key.
    #[error("listener {0}: {1}")]
    Tls(String, TerminatorError),
    /// The access log.
    #[error("{0}")]
    Log(#[from] OpenError),
    /// The socket of the metrics.
    #[error("{0}")]
    Metrics(#[from] EndpointError),
    /// Rules and routes.
    #[error("{0}")]
    Rules(#[from] SetupError),
    /// A socket cannot intercept.
    #[error("listener {0} cannot intercept: {1}")]
    Intercept(String, io::Error),
}

fn list(keys: &[&'static str]) -> String {
    keys.iter()
        .map(|k| format!("`{k}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn beside(old: &Option<SocketAddr>) -> String {
    match old {
        Some(old) => format!(
            "; this daemon listens on {old} itself, and cannot have both for the moment of the change: restart it instead \
             (spliced connections run on meanwhile)"
        ),
        None => String::new(),
    }
}
