//! Runs a listener.

use std::{
    net::SocketAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use longsplice_engine::Splicer;
use longsplice_repair::options;
use serde::{Deserialize, Serialize};

use super::{
    Settings, Shared, Tally,
    counts::Counts,
    slots::Slots,
    standing::{carries_alike, receives_alike},
};
use crate::{
    access_log::AccessRecord,
    config::{Period, Protocol},
    http::SpliceDelay,
};

/// A running listener: its settings and counts. All of its addresses share it.
#[derive(Debug)]
pub(crate) struct Service {
    /// Key of its settings in [`Shared::generation`].
    pub(super) number: u64,
    /// Settings where [`Shared::generation`] has none: those of a new listener, or the last ones of one that is gone.
    pub(super) own: ArcSwap<Settings>,
    /// True once a reload has removed it.
    is_gone: AtomicBool,
    pub(super) shared: Arc<Shared>,
    /// Permits for the connections that this process holds.
    pub(super) slots: Arc<Slots>,
    pub(super) open: AtomicU64,
    refused: AtomicU64,
    counts: Counts,
    splice_delay: SpliceDelay,
}

/// Status of a listener.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// Addresses that it is bound to.
    pub listen: Vec<SocketAddr>,
    /// Destinations of its connections, in order of preference.
    pub to: Vec<String>,
    /// Policy for splicing.
    pub splice: String,
    /// Policy for detaching.
    pub detach: String,
    /// Conditions for returning to the relay; if empty, only a request unsplices.
    #[serde(default)]
    pub unsplice: String,
    /// Length from which on replies are spliced, in bytes; for HTTP only.
    #[serde(default)]
    pub splice_min: Option<u64>,
    /// Longest time for connecting to one address of a target.
    pub connect_timeout: String,
    /// Number of connections that the process holds now, or waits for because of `unsplice`.
    pub open: u64,
    /// Limit of `open`.
    pub max_connections: Option<u32>,
    /// Number of connections that were reset because no target answered or the limit was reached.
    pub refused_total: u64,
}

impl Service {
    /// Creates a listener that is ready to serve.
    pub(crate) fn new(settings: Settings, shared: Arc<Shared>) -> Arc<Self> {
        let counts = Counts::default();
        counts.keep_routes(route_names(&settings));
        Arc::new(Service {
            number: shared.services.fetch_add(1, Ordering::Relaxed),
            counts,
            splice_delay: SpliceDelay::default(),
            slots: Slots::new(settings.listener.max_connections),
            own: ArcSwap::from_pointee(settings),
            is_gone: AtomicBool::new(false),
            shared,
            open: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Returns the settings of new connections and requests.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        let generation = self.shared.generation.load();
        let changed = generation.get(&self.number).map(Arc::clone);
        changed.unwrap_or_else(|| self.own.load_full())
    }

    /// Notes that the configuration in force has no such listener any more. A reload calls it before it looks at the
    /// decisions on open connections.
    pub(crate) fn retire(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Returns the settings in force; `None` if the listener is gone.
    pub(super) fn in_force(&self) -> Option<Arc<Settings>> {
        let is_gone = self.is_gone.load(Ordering::Acquire);
        (!is_gone).then(|| self.settings())
    }

    /// Returns the settings for deciding about a connection that was received under these: the newest ones under which
    /// it would have been received alike.
    pub(super) fn settings_after(&self, received: Arc<Settings>) -> Arc<Settings> {
        let newest = self.settings();
        match receives_alike(&received.listener, &newest.listener) {
            true => newest,
            false => received,
        }
    }

    /// Returns the settings for the next request of a session whose last one had these; `None` if the listener is no
    /// longer one for it.
    pub(crate) fn settings_for_next(&self, last: &Settings) -> Option<Arc<Settings>> {
        let newest = self.settings();
        carries_alike(&last.listener, &newest.listener).then_some(newest)
    }

    /// Applies the limit of these settings, and counts their routes.
    pub(super) fn prepare(&self, settings: &Settings) {
        self.slots.set_limit(settings.listener.max_connections);
        self.counts.keep_routes(route_names(settings));
    }

    /// Returns the length from which on replies are spliced now, or connections under `auto` considered, in bytes; `None`
    /// if it has no part in the decision.
    pub(crate) fn splice_min(&self) -> Option<u64> {
        let settings = self.settings();
        let c = &settings.listener;
        let delay = match c.protocol {
            Protocol::Http => self.splice_delay.bytes(),
            Protocol::Tcp | Protocol::Tls => 0,
        };
        let measured = || self.shared.splice_min.bytes() + delay;
        c.has_splice_min().then(|| c.splice_min.unwrap_or_else(measured))
    }

    /// Returns the estimate of how much of a reply is relayed before its splice takes effect.
    pub(crate) fn splice_delay(&self) -> &SpliceDelay {
        &self.splice_delay
    }

    /// Returns the engine.
    pub(crate) fn splicer(&self) -> &Splicer {
        &self.shared.splicer
    }

    /// Returns the state that all listeners share, such as descriptors and logs.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns whether the daemon shuts down.
    pub(crate) fn is_stopping(&self) -> bool {
        self.shared.stopping.is_cancelled()
    }

    /// Returns when the daemon shuts down. Cancel-safe.
    pub(crate) async fn stopping(&self) {
        self.shared.stopping.cancelled().await;
    }

    /// Counts and logs a request that ended, or a connection of which no requests are read.
    pub(crate) fn finished(&self, record: AccessRecord) {
        self.count(&Tally::from(&record));
        self.shared.access_log.write(record);
    }

    /// Resets a connection: its client learns at once that it is not served.
    pub(super) fn refuse(&self, client: impl AsFd, record: AccessRecord, reason: &str) {
        // Ignore an error: the client then sees a FIN, which ends the connection, too.
        let _ = options::set_reset_on_close(&client, true);
        drop(client);
        self.note_refused(record, reason);
    }

    /// Counts a refused connection, and logs the reason.
    pub(super) fn note_refused(&self, record: AccessRecord, reason: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::info!(listener = record.listener, peer = %record.client, reason, "connection refused");
        self.finished(record);
    }

    /// Counts a request or connection that ended, without logging it.
    pub(crate) fn count(&self, tally: &Tally<'_>) {
        self.counts.add(tally);
    }

    /// Returns the counters.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of connections that the process holds now, or waits for.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that were reset unserved.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the status; `listen` are the addresses that it is bound to.
    pub(crate) fn status(&self, listen: &[SocketAddr]) -> ListenerStatus {
        let settings = self.settings();
        let c = &settings.listener;
        ListenerStatus {
            name: c.name.clone(),
            listen: listen.to_vec(),
            to: match (&c.upstream, c.to.is_empty()) {
                (Some(name), _) => vec![name.clone()],
                (None, true) => vec!["original destination".to_owned()],
                (None, false) => c.to.iter().map(ToString::to_string).collect(),
            },
            splice: c.splice.to_string(),
            detach: c.detach.to_string(),
            unsplice: c.unsplice.to_string(),
            splice_min: self.splice_min(),
            connect_timeout: Period(c.connect_timeout).to_string(),
            open: self.open(),
            max_connections: c.max_connections,
            refused_total: self.refused(),
        }
    }
}

fn route_names(settings: &Settings) -> impl Iterator<Item = &str> {
    settings
        .listener
        .routes
        .routes()
        .iter()
        .map(|route| route.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::standing::tests::{begin, reload};
    use super::*;

    #[tokio::test]
    async fn settings_are_released_when_others_replace_them_or_the_listener_ends() {
        let (service, open) = begin("");
        let first = Arc::downgrade(&service.settings());
        reload(&service, 2, "");
        assert!(first.upgrade().is_none(), "replaced");
        let last = Arc::downgrade(&service.settings());
        let shared = Arc::clone(&service.shared);
        service.retire();
        shared.switch(Vec::new());
        assert_eq!(
            service.settings().generation,
            2,
            "its connections still need them"
        );
        drop((service, open));
        assert!(last.upgrade().is_none(), "gone");
    }
}
