//! Keeps the addresses of the entries of an upstream's list: fixed ones, and names that are looked up again when the TTL
//! has passed.

use std::{io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time,
};
use tokio_util::task::AbortOnDropHandle;

use super::names::{Found, MOST_ADDRESSES, Names, ResolvedAddr};
use crate::config::ServerPlace;

/// Raises shorter TTLs to this: a query for each connection would cost too much.
const LEAST_TTL: Duration = Duration::from_secs(1);
/// Lowers longer TTLs to this: a mistake in a zone must not last a day.
const MOST_TTL: Duration = Duration::from_secs(300);
/// Longest pause after failed look-ups.
const MOST_PAUSE: Duration = Duration::from_secs(30);
/// Returns the error of a failed look-up again for this long, without a new one.
const FRESH: Duration = Duration::from_secs(1);

/// Keeps the addresses of one entry of the list: those that were found last, even if later look-ups fail.
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
    sites: Vec<ResolvedAddr>,
    /// Holds the error of the last look-up, if it failed wholly or in part.
    failure: Option<(time::Instant, io::ErrorKind, String)>,
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

    /// Returns whether it has to be looked up.
    pub(super) fn is_name(&self) -> bool {
        !matches!(&self.place, ServerPlace::Target(target) if target.literal().is_some())
    }

    /// Returns the addresses that are known.
    pub(super) fn sites(&self) -> Vec<ResolvedAddr> {
        self.known.lock().sites.clone()
    }

    /// Returns the error of the last look-up, if it failed wholly or in part.
    pub(super) fn failure(&self) -> Option<String> {
        self.known.lock().failure.as_ref().map(|(_, _, why)| why.clone())
    }

    /// Waits until it has an address, or until a later look-up finds none. Fails with the error of the look-up, or with
    /// `TimedOut`.
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
        let known = self.known.lock();
        match &known.failure {
            _ if !known.sites.is_empty() => Some(Ok(())),
            Some((at, kind, why)) if at.elapsed() < FRESH => Some(Err(io::Error::new(*kind, why.clone()))),
            _ => None,
        }
    }

    /// Stores the result of a look-up, and returns whether the addresses changed.
    fn take_in(&self, result: &io::Result<Found>) -> bool {
        let mut known = self.known.lock();
        match result {
            Ok(found) => {
                known.failure = found.wrong.as_ref().map(failure);
                let changed = known.sites != found.sites;
                known.sites.clone_from(&found.sites);
                changed
            }
            Err(error) => {
                known.failure = Some(failure(error));
                false
            }
        }
    }
}

/// Looks a name up when its TTL has passed or a task asks for it, until the returned task is dropped. Calls `changed` when
/// it has other addresses; `upstream` is for the log.
pub(super) fn watch(
    entry: &Arc<Entry>,
    names: &Arc<Names>,
    upstream: &str,
    changed: impl Fn() + Send + 'static,
) -> AbortOnDropHandle<()> {
    let (entry, names, upstream) = (Arc::clone(entry), Arc::clone(names), upstream.to_owned());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut failures: u32 = 0;
        let mut too_many = false;
        loop {
            let result = names.look_up(&entry.place, &entry.sites()).await;
            let (ttl, wrong) = match &result {
                Ok(found) => (found.ttl, found.wrong.as_ref()),
                Err(error) => (MOST_TTL, Some(error)),
            };
            if let (Some(error), 0) = (wrong, failures) {
                let kept = !entry.sites().is_empty();
                match result.is_ok() {
                    true => tracing::warn!(
                        upstream, server = %entry.place, %error,
                        "a part of the name could not be looked up, and keeps its last addresses"
                    ),
                    false => {
                        tracing::warn!(upstream, server = %entry.place, %error, kept, "the name could not be looked up")
                    }
                }
            }
            failures = wrong.map_or(0, |_| failures.saturating_add(1));
            let retry = LEAST_TTL.saturating_mul(1 << failures.min(5)).min(MOST_PAUSE);
            let pause = ttl.clamp(LEAST_TTL, wrong.map_or(MOST_TTL, |_| retry));
            if let Ok(Found { left_out, .. }) = result {
                if left_out > 0 && !too_many {
                    tracing::warn!(
                        upstream, server = %entry.place, left_out, most = MOST_ADDRESSES,
                        "the name has too many addresses: some are left out"
                    );
                }
                too_many = left_out > 0;
            }
            if entry.take_in(&result) {
                changed();
            }
            // Signal only after `changed`: the waiting tasks must find the servers.
            entry.done.send_modify(|n| *n = n.wrapping_add(1));
            tokio::select! {
                () = time::sleep(pause) => {}
                () = entry.wanted.notified() => {}
            }
        }
    }))
}

fn failure(error: &io::Error) -> (time::Instant, io::ErrorKind, String) {
    (time::Instant::now(), error.kind(), error.to_string())
}
