//! Limits what the search for a source port costs, once nearly all ports toward a target are in use.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::MutexGuard, task::yield_now, time::Instant};

/// Number of ports that a search tries before other tasks have a turn: about a millisecond at most.
const STRETCH: usize = 32;

/// Number of ports after which a search is long: more than seven of eight ports are in use then, almost surely.
const LONG: usize = 2 * STRETCH;

/// Time for which a search that found no port counts.
const NONE_LEFT: Duration = Duration::from_millis(500);

/// Largest number of such searches that are remembered.
const MOST: usize = 1_024;

/// Remembers the searches that found no port, and has the long ones take turns.
#[derive(Debug, Default)]
pub(super) struct Exhaustion {
    found: Mutex<HashMap<(IpAddr, SocketAddr), Instant>>,
    long: tokio::sync::Mutex<()>,
}

impl Exhaustion {
    /// Begins a search.
    pub(super) fn search(&self) -> Search<'_> {
        Search {
            of: self,
            tried: 0,
            turn: None,
        }
    }

    fn is_noted(&self, source: IpAddr, target: SocketAddr) -> bool {
        let noted = self.found.lock().get(&(source, target)).copied();
        noted.is_some_and(|at| at.elapsed() < NONE_LEFT)
    }

    fn note(&self, source: IpAddr, target: SocketAddr) {
        let now = Instant::now();
        let mut found = self.found.lock();
        if found.len() >= MOST {
            found.retain(|_, at| now.duration_since(*at) < NONE_LEFT);
        }
        if found.len() < MOST {
            found.insert((source, target), now);
        }
    }
}

/// Search for a port. Other tasks have their turns in it.
#[derive(Debug)]
pub(super) struct Search<'a> {
    of: &'a Exhaustion,
    tried: usize,
    /// Held by a long search, between two stretches or until it tries to connect.
    turn: Option<MutexGuard<'a, ()>>,
}

impl Search<'_> {
    /// Returns false if no port is left. Call it before each port that is tried.
    pub(super) async fn goes_on(&mut self, source: IpAddr, target: SocketAddr) -> bool {
        let tried = self.tried;
        self.tried += 1;
        if !tried.is_multiple_of(STRETCH) {
            return true;
        }
        if tried > 0 {
            yield_now().await;
        }
        if tried >= LONG && self.turn.is_none() {
            self.turn = Some(self.of.long.lock().await);
        }
        // Another search may have tried all of them meanwhile.
        !self.of.is_noted(source, target)
    }

    /// Lets another long search go on, while a connection comes up.
    pub(super) fn pause(&mut self) {
        self.turn = None;
    }

    /// Notes that all ports were tried in vain.
    pub(super) fn found_none(self, source: IpAddr, target: SocketAddr) {
        self.of.note(source, target);
    }
}
