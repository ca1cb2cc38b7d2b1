//! Publishes the configuration in force, for `status`, the admin interface and metrics.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::{listener::Service, upstream::Upstreams};

/// Limit of the text of a failed reload, in bytes.
const LONGEST: usize = 8192;

/// Listeners in force, each with the addresses it is bound to.
pub(crate) type Listeners = Vec<(Arc<Service>, Vec<SocketAddr>)>;

/// State of the configuration in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationStatus {
    /// Number of the configuration; the daemon starts with 1.
    pub number: u64,
    /// Time of its load, in seconds of the Unix epoch.
    pub loaded_at: u64,
    /// Number of failed reloads since the start.
    pub failed_total: u64,
    /// Last failed reload; reset by a successful one.
    pub failed: Option<FailedReload>,
}

/// A failed reload, which has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedReload {
    /// Time of the failure, in seconds of the Unix epoch.
    pub at: u64,
    /// Reason of the failure.
    pub error: String,
}

/// The configuration in force, as other tasks see it.
#[derive(Debug)]
pub(crate) struct ConfigStatus {
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    listeners: Arc<Listeners>,
    upstreams: Arc<Upstreams>,
    generation: GenerationStatus,
}

impl ConfigStatus {
    /// Creates the status with the first generation.
    pub(crate) fn new(listeners: Listeners, upstreams: Arc<Upstreams>) -> ConfigStatus {
        ConfigStatus {
            state: RwLock::new(State {
                listeners: Arc::new(listeners),
                upstreams,
                generation: GenerationStatus {
                    number: 1,
                    loaded_at: now(),
                    failed_total: 0,
                    failed: None,
                },
            }),
        }
    }

    /// Returns the listeners in force.
    pub(crate) fn listeners(&self) -> Arc<Listeners> {
        Arc::clone(&self.state.read().listeners)
    }

    /// Returns the upstreams in force.
    pub(crate) fn upstreams(&self) -> Arc<Upstreams> {
        Arc::clone(&self.state.read().upstreams)
    }

    /// Returns the state of the configuration in force.
    pub(crate) fn generation(&self) -> GenerationStatus {
        let state = self.state.read();
        state.generation.clone()
    }

    pub(crate) fn show(&self, number: u64, listeners: Listeners, upstreams: &Arc<Upstreams>) {
        let mut state = self.state.write();
        state.listeners = Arc::new(listeners);
        state.upstreams = Arc::clone(upstreams);
        state.generation = GenerationStatus {
            number,
            loaded_at: now(),
            failed: None,
            ..state.generation
        };
    }

    pub(crate) fn show_failure(&self, error: &str) {
        let mut state = self.state.write();
        state.generation.failed_total += 1;
        let error = error
            .get(..error.floor_char_boundary(LONGEST))
            .unwrap_or_default();
        state.generation.failed = Some(FailedReload {
            at: now(),
            error: error.to_owned(),
        });
    }
}

fn now() -> u64 {
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    epoch.map_or(0, |d| d.as_secs())
}
