//! Keeps the addresses of one entry of an upstream's list: a fixed address, or a name that is looked up again and
//! again.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{self, Instant},
};

use super::{
    names::{Found, Names, Site},
    roster::Roster,
    task::Task,
};
use crate::config::ServerPlace;

/// Raises shorter TTLs to this: a query for each connection would cost too much.
const LEAST_TTL: Duration = Duration::from_secs(1);
/// Lowers longer TTLs to this: a mistake in a zone must not last a day.
const MOST_TTL: Duration = Duration::from_secs(300);
/// Longest pause after failed look-ups.
const MOST_PAUSE: Duration = Duration::from_secs(30);
/// Returns the error of a failed look-up again for this long, without a new one.
const FRESH: Duration = Duration::from_secs(1);

/// One entry of the list. It keeps the addresses that it found last, even if later look-ups fail.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) place: ServerPlace,
    known: Mutex<Known>,
    /// Wakes the look-up task at once.
    wanted: Notify,
    /// Counts look-ups.
    done: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Known {
    sites: Vec<Site>,
    failure: Option<(Instant, io::ErrorKind, String)>,
}

impl Entry {
    pub(super) fn new(place: ServerPlace) -> Entry {
        let literal = match &place {
            ServerPlace::Target(target) => target.literal(),
            ServerPlace::Service(_) => None,
        };
        let sites = literal.map(|address| Found::literal(address).sites);
        Entry {
            place,
            known: Mutex::new(Known {
                sites: sites.unwrap_or_default(),
                failure: None,
            }),
            wanted: Notify::new(),
            done: watch::Sender::new(0),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it has to be looked up.
    pub(super) fn is_name(&self) -> bool {
        !matches!(&self.place, ServerPlace::Target(target) if target.literal().is_some())
    }

    /// Returns the addresses that are known.
    pub(super) fn sites(&self) -> Vec<Site> {
        self.known().sites.clone()
    }

    /// Returns the error of the last look-up, if it failed.
    pub(super) fn failure(&self) -> Option<String> {
        self.known().failure.as_ref().map(|(_, _, why)| why.clone())
    }

    /// Waits until it has an address, or until a later look-up finds none.
    ///
    /// # Errors
    /// The error of the look-up; `TimedOut`.
    pub(super) async fn located(&self, patience: Duration) -> io::Result<()> {
        let mut done = self.done.subscribe();
        if let Some(known) = self.fresh() {
            return known;
        }
        self.wanted.notify_one();
        // The sender belongs to `self`, so it cannot be closed.
        let _ = time::timeout(patience, done.changed()).await?;
        self.fresh().unwrap_or(Err(io::ErrorKind::TimedOut.into()))
    }

    fn fresh(&self) -> Option<io::Result<()>> {
        let known = self.known();
        match &known.failure {
            _ if !known.sites.is_empty() => Some(Ok(())),
            Some((at, kind, why)) if at.elapsed() < FRESH => Some(Err(io::Error::new(*kind, why.clone()))),
            _ => None,
        }
    }

    /// Stores the result of a look-up, and returns whether the addresses changed.
    fn take_in(&self, result: &io::Result<Found>) -> bool {
        let mut known = self.known();
        match result {
            Ok(found) => {
                known.failure = None;
                let changed = known.sites != found.sites;
                known.sites.clone_from(&found.sites);
                changed
            }
            Err(error) => {
                known.failure = Some((Instant::now(), error.kind(), error.to_string()));
                false
            }
        }
    }
}

/// Looks a name up when its TTL has passed or a task asks for it, as long as its upstream exists.
pub(super) fn watch(entry: &Arc<Entry>, names: &Arc<Names>, roster: Weak<Roster>) -> Task {
    let (entry, names) = (Arc::clone(entry), Arc::clone(names));
    Task::spawn(async move {
        let mut failures: u32 = 0;
        loop {
            let result = names.look_up(&entry.place).await.map(sorted);
            let Some(roster) = roster.upgrade() else { return };
            let pause = match &result {
                Ok(found) => {
                    failures = 0;
                    found.ttl.clamp(LEAST_TTL, MOST_TTL)
                }
                Err(error) => {
                    if failures == 0 {
                        let upstream = roster.name();
                        let kept = !entry.sites().is_empty();
                        tracing::warn!(upstream, server = %entry.place, %error, kept, "the name could not be looked up");
                    }
                    failures = failures.saturating_add(1);
                    LEAST_TTL.saturating_mul(1 << failures.min(5)).min(MOST_PAUSE)
                }
            };
            if entry.take_in(&result) {
                roster.relocate();
            }
            drop(roster);
            // Signal only after `relocate`: the waiting tasks must find the servers.
            entry.done.send_modify(|n| *n = n.wrapping_add(1));
            tokio::select! {
                () = time::sleep(pause) => {}
                () = entry.wanted.notified() => {}
            }
        }
    })
}

/// Sorts the addresses and removes duplicates: resolvers rotate the addresses of an answer, which is no change.
fn sorted(mut found: Found) -> Found {
    found.sites.sort_by_key(|site| (site.rank, site.address));
    found.sites.dedup_by_key(|site| (site.rank, site.address));
    found
}
