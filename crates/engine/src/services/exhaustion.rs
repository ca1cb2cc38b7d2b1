//! Limits what the search for a source port costs, once nearly all ports toward a target are in use.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::MutexGuard,
    task::yield_now,
    time::{Instant, sleep_until},
};

/// Number of ports that a search tries before other tasks have a turn: about a millisecond at most.
const STRETCH: usize = 32;

/// Number of ports after which a search is long: more than seven of eight ports are in use then, almost surely.
const LONG: usize = 2 * STRETCH;

/// Longest time for which a search that found no port counts.
const NONE_LEFT: Duration = Duration::from_millis(500);

/// Largest number of such searches that are remembered.
const MOST: usize = 1_024;

/// Remembers the searches that found no port, and has the long ones take turns.
#[derive(Debug, Default)]
pub(super) struct Exhaustion {
    found: Mutex<HashMap<(IpAddr, SocketAddr), Noted>>,
    long: tokio::sync::Mutex<()>,
}

/// Result of a search that found no port.
#[derive(Debug, Clone, Copy)]
struct Noted {
    /// Time until which it counts.
    until: Instant,
    /// True if a port may be free then.
    is_worth_waiting: bool,
}

impl Exhaustion {
    /// Begins a search that waits for a port no longer than until `deadline`.
    pub(super) fn search(&self, deadline: Instant) -> Search<'_> {
        Search {
            of: self,
            tried: 0,
            deadline,
            turn: None,
        }
    }

    /// Forgets a search that found no port: a flow has just given one.
    pub(super) fn forget(&self, source: IpAddr, target: SocketAddr) {
        self.found.lock().remove(&(source, target));
    }

    fn noted(&self, source: IpAddr, target: SocketAddr) -> Option<Noted> {
        let noted = self.found.lock().get(&(source, target)).copied();
        noted.filter(|noted| noted.until > Instant::now())
    }

    /// Notes a result. Returns false if there is no room for it.
    fn note(&self, source: IpAddr, target: SocketAddr, noted: Noted) -> bool {
        let now = Instant::now();
        let mut found = self.found.lock();
        if found.len() >= MOST {
            found.retain(|_, noted| noted.until > now);
        }
        let has_room = found.len() < MOST;
        if has_room {
            found.insert((source, target), noted);
        }
        has_room
    }
}

/// Search for a port. Other tasks have their turns in it.
#[derive(Debug)]
pub(super) struct Search<'a> {
    of: &'a Exhaustion,
    tried: usize,
    deadline: Instant,
    /// Held by a long search, between two stretches or until it tries to connect.
    turn: Option<MutexGuard<'a, ()>>,
}

impl Search<'_> {
    /// Returns false if no port is left. Call it before each port that is tried. Waits for a port that will be free soon.
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
        while let Some(noted) = self.of.noted(source, target) {
            if !noted.is_worth_waiting || noted.until > self.deadline {
                return false;
            }
            self.turn = None;
            sleep_until(noted.until).await;
        }
        true
    }

    /// Lets another long search go on, while a connection comes up.
    pub(super) fn pause(&mut self) {
        self.turn = None;
    }

    /// Notes that all ports were tried in vain, and that one may be free after a time. Returns true if it is worth another
    /// search.
    pub(super) fn found_none(self, source: IpAddr, target: SocketAddr, free_in: Option<Duration>) -> bool {
        let now = Instant::now();
        let is_in_time = free_in.is_some_and(|rest| now + rest <= self.deadline);
        // Look again before that time: it is exact to a second.
        let noted = Noted {
            until: now + free_in.map_or(NONE_LEFT, |rest| rest.min(NONE_LEFT)),
            is_worth_waiting: free_in.is_some(),
        };
        self.of.note(source, target, noted) && is_in_time
    }
}
