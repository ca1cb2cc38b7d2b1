//! Provides the admin interface of a running daemon: HTTP and JSON over a Unix socket that only its user can open.
//!
//! `GET /status`, `GET /flows`, `POST /flows/ID/splice`, `…/unsplice` and `…/kill`, `GET`, `PUT` and `DELETE /rules`,
//! `POST /reload`, `GET /servers`, `POST /servers/drain` and `…/ready`, and `POST /handover`, which becomes a connection
//! of its own protocol (module `handover`). Errors are `{"error": "…"}`.

mod claim;
pub mod client;
pub(crate) mod listing;
mod places;
pub(crate) mod server;
pub(crate) mod servers;

use std::{sync::Arc, time::Instant, time::SystemTime};

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use longsplice_engine::{Counters, FlowInfo, Health};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

pub(crate) use claim::{Claim, ClaimError, claim, inherit};
pub use places::Places;

use crate::{
    accelerator::{Accelerator, AcceleratorStatus, PassedThrough, all_open},
    access_log::LogCounts,
    config_status::{ConfigStatus, GenerationStatus},
    handover::Handover,
    instance::InstanceName,
    listener::{ListenerStatus, Shared},
    memory::MemoryStatus,
    reload::ReloadRequest,
    rule_manager::RuleManager,
};

/// State that the admin interface shows and changes.
#[derive(Debug)]
pub(crate) struct Admin {
    pub instance: InstanceName,
    /// State that all listeners share, such as the engine.
    pub shared: Arc<Shared>,
    /// Transparent accelerator, if it is configured.
    pub accelerator: Option<Arc<Accelerator>>,
    /// Configuration in force.
    pub config_status: Arc<ConfigStatus>,
    pub rules: Arc<RuleManager>,
    /// Channel for requests to reload.
    pub reload: mpsc::Sender<ReloadRequest>,
    /// Channel for successors.
    pub(crate) handover: mpsc::Sender<Handover>,
    /// Place of a successor that is starting: there is one at a time, and the last one keeps it.
    pub(crate) successor: Arc<Semaphore>,
    /// Places of lists of flows that are being sent.
    pub(crate) listings: Arc<Semaphore>,
    /// Start of the daemon, on the monotonic clock.
    pub started: Instant,
    /// Start of the daemon, on the wall clock.
    pub started_at: SystemTime,
    /// Turns true when the daemon shuts down.
    pub stopping: CancellationToken,
}

/// Output of `longsplice status --json`; the counters are at the top level.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Name of the instance.
    pub instance: String,
    /// Number of its process.
    pub pid: u32,
    /// Time of its start, in seconds of the Unix epoch.
    pub started_at: u64,
    /// Time since its start, in seconds.
    pub uptime_seconds: f64,
    /// True if it is shutting down.
    pub stopping: bool,
    /// Counters since its start.
    #[serde(flatten)]
    pub counters: Counters,
    /// Capabilities.
    pub health: Health,
    /// Configuration in force.
    #[serde(default)]
    pub config_generation: Option<GenerationStatus>,
    /// Transparent accelerator, if it is configured.
    #[serde(default)]
    pub accelerator: Option<AcceleratorStatus>,
    /// Memory, if it is limited.
    #[serde(default)]
    pub memory: Option<MemoryStatus>,
    /// Counts of the access log, if there is one.
    #[serde(default)]
    pub access_log: Option<LogCounts>,
    /// Listeners.
    pub listeners: Vec<ListenerStatus>,
}

/// Body of an answer that is not 2xx.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ErrorBody {
    pub(crate) error: String,
}

/// Answers with an error.
fn error(status: StatusCode, what: &str) -> Response {
    (
        status,
        Json(ErrorBody {
            error: what.to_owned(),
        }),
    )
        .into_response()
}

/// A line of `longsplice flows`: a flow, or a connection that the accelerator has passed through.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Listed {
    Flow(Box<FlowInfo>),
    /// A connection that was passed through.
    PassedThrough(PassedThrough),
}

impl Admin {
    pub(crate) fn status(&self) -> Status {
        let log = &self.shared.access_log;
        let epoch = self.started_at.duration_since(SystemTime::UNIX_EPOCH);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance.to_string(),
            pid: std::process::id(),
            started_at: epoch.map_or(0, |d| d.as_secs()),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            stopping: self.stopping.is_cancelled(),
            counters: self.shared.splicer.counters(),
            health: self.shared.splicer.health(),
            config_generation: Some(self.config_status.generation()),
            accelerator: self.accelerator.as_ref().map(|a| a.status()),
            memory: self
                .shared
                .memory
                .status(all_open(&self.shared, self.accelerator.as_deref())),
            access_log: log.is_on().then(|| log.counts()),
            listeners: self
                .config_status
                .listeners()
                .iter()
                .map(|(service, listen)| service.status(listen))
                .collect(),
        }
    }
}
