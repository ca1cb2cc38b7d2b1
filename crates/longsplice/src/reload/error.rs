//! Defines the errors of a reload.

use std::{io, net::SocketAddr, time::Duration};

use tokio::task::JoinError;

use crate::{
    access_log::OpenError, config::ConfigError, listener::BindError, metrics::EndpointError,
    rule_manager::SetupError, tls::TerminatorError,
};

/// Reason why a configuration could not replace the one in force, which stays in force.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
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
        "{} cannot be changed without a restart: put {} back, or restart the daemon (spliced connections run on meanwhile)",
        list(.0), if .0.len() == 1 { "it" } else { "them" }
    )]
    Fixed(Vec<&'static str>),
    /// An address cannot be listened on.
    #[error("{error}{}", beside(.old))]
    Bind {
        /// Error of the system.
        error: BindError,
        /// Address that this daemon listens on, and that conflicts.
        old: Option<SocketAddr>,
    },
    /// A certificate or key cannot be used.
    #[error("listener {0}: {1}")]
    Tls(String, TerminatorError),
    /// The access log cannot be opened.
    #[error("{0}")]
    Log(#[from] OpenError),
    /// The socket for metrics cannot be opened.
    #[error("{0}")]
    Metrics(#[from] EndpointError),
    /// Rules or routes cannot be set.
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
