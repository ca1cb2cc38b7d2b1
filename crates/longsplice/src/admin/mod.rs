//! The way into a running daemon: HTTP and JSON over a Unix socket that only its user can open.
//!
//! `GET /status`, `GET /flows`, `POST /flows/ID/splice`, `…/unsplice` and `…/end`, `GET`, `PUT` and `DELETE /rules`,
//! `POST /reload`, `GET /servers`, `POST /servers/drain` and `…/undrain`. Errors are `{"error": "…"}`.

mod claim;
pub mod client;
mod places;
pub mod server;
pub mod servers;

use std::{sync::Arc, time::Instant, time::SystemTime};

use longsplice_engine::{Counters, Health};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

pub use claim::{Claim, ClaimError, claim};
pub use places::Places;

use crate::{
    access_log::LogCounts,
    daemon::ReloadRequest,
    instance::InstanceName,
    listener::{ListenerStatus, Shared},
    reload::{Board, GenerationStatus},
    rulebook::RuleBook,
};

/// What the admin interface shows and acts upon.
#[derive(Debug)]
pub struct Admin {
    /// Which instance this is.
    pub instance: InstanceName,
    /// What all listeners share, the engine among it.
    pub shared: Arc<Shared>,
    /// The configuration in force.
    pub board: Arc<Board>,
    /// The rules.
    pub rules: Arc<RuleBook>,
    /// Where a reload is asked for.
    pub reload: mpsc::Sender<ReloadRequest>,
    /// When the daemon started, on the clock that only runs forward.
    pub started: Instant,
    /// The same on the wall clock.
    pub started_at: SystemTime,
    /// Turns true when the daemon shuts down.
    pub stopping: watch::Receiver<bool>,
}

/// What `longsplice status --json` shows; the counters stand at the top level.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Its instance.
    pub instance: String,
    /// Its process.
    pub pid: u32,
    /// Since when it runs, in seconds of the Unix epoch.
    pub started_at: u64,
    /// For how long it has run.
    pub uptime_seconds: f64,
    /// Whether it is shutting down.
    pub stopping: bool,
    /// What was counted since it started.
    #[serde(flatten)]
    pub counters: Counters,
    /// What it can do.
    pub health: Health,
    /// The configuration in force.
    #[serde(default)]
    pub generation: Option<GenerationStatus>,
    /// The access log, where there is one.
    #[serde(default)]
    pub access_log: Option<LogCounts>,
    /// What it listens on.
    pub listeners: Vec<ListenerStatus>,
}

/// The body of an answer that is not 2xx.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ErrorBody {
    pub(crate) error: String,
}

impl Admin {
    /// What is to be seen now.
    pub fn status(&self) -> Status {
        let log = &self.shared.access_log;
        let epoch = self.started_at.duration_since(SystemTime::UNIX_EPOCH);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance.to_string(),
            pid: std::process::id(),
            started_at: epoch.map_or(0, |d| d.as_secs()),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            stopping: *self.stopping.borrow(),
            counters: self.shared.splicer.counters(),
            health: self.shared.splicer.health(),
            generation: Some(self.board.generation()),
            access_log: log.is_on().then(|| log.counts()),
            listeners: self
                .board
                .listeners()
                .iter()
                .map(|(service, listen)| service.status(listen))
                .collect(),
        }
    }
}
