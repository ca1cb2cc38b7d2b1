//! What is to be seen of the configuration in force: by `status`, by the admin interface, by metrics.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use crate::listener::Service;

/// How long the text of a failed reload may be, in bytes.
const LONGEST: usize = 8192;

/// The listeners in force, each with the addresses it is bound to.
pub type Listeners = Vec<(Arc<Service>, Vec<SocketAddr>)>;

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationStatus {
    /// Its number: 1 is the one that the daemon started with.
    pub number: u64,
    /// Since when it is in force, in seconds of the Unix epoch.
    pub loaded_at: u64,
    /// Reloads that failed since the start.
    pub failed_total: u64,
    /// The last of them, unless one has succeeded since.
    pub failed: Option<FailedReload>,
}

/// A reload that has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedReload {
    /// When, in seconds of the Unix epoch.
    pub at: u64,
    /// Why.
    pub error: String,
}

/// All of it.
#[derive(Debug)]
pub struct Board {
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    listeners: Arc<Listeners>,
    generation: GenerationStatus,
}

impl Board {
    /// With the first generation.
    pub fn new(listeners: Listeners) -> Board {
        Board {
            state: RwLock::new(State {
                listeners: Arc::new(listeners),
                generation: GenerationStatus {
                    number: 1,
                    loaded_at: now(),
                    failed_total: 0,
                    failed: None,
                },
            }),
        }
    }

    /// The listeners in force.
    pub fn listeners(&self) -> Arc<Listeners> {
        Arc::clone(
            &self
                .state
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .listeners,
        )
    }

    /// Which configuration it is.
    pub fn generation(&self) -> GenerationStatus {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.generation.clone()
    }

    pub(super) fn show(&self, number: u64, listeners: Listeners) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.listeners = Arc::new(listeners);
        state.generation = GenerationStatus {
            number,
            loaded_at: now(),
            failed: None,
            ..state.generation
        };
    }

    pub(super) fn show_failure(&self, error: &str) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
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
