//! Shares values between flows that were decided alike.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Weak},
    time::Instant,
};

use crate::{
    access_log::AccessRecord,
    config::{ListenerConfig, Protocol},
    listener::{Decided, Service},
    upstream::{ServerId, Site},
};

/// Index of the shared values.
#[derive(Debug, Default)]
pub(in super::super) struct Commons {
    known: HashMap<Names, Weak<Common>>,
}

/// Values that flows share if they were decided alike.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) names: Names,
    pub(super) service: Arc<Service>,
    /// Decision without the facts.
    pub(super) decided: Option<Decided>,
    /// Server in its upstream; `None` if no upstream counts the flows.
    pub(super) site: Option<Site>,
    pub(super) made: Instant,
}

/// Key of the shared values; only two routes of one name share a key. It holds addresses of objects that a [`Common`]
/// keeps alive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Names {
    service: usize,
    listener_as_it_was: Option<usize>,
    generation: Option<u64>,
    site: Option<ServerId>,
    listener: String,
    pub(super) route: Option<String>,
    upstream: Option<String>,
    server: Option<String>,
}

impl Commons {
    pub(super) fn of(
        &mut self,
        names: Names,
        service: Arc<Service>,
        decided: Option<Decided>,
        site: Option<Site>,
    ) -> Arc<Common> {
        if let Some(known) = self.known.get(&names).and_then(Weak::upgrade)
            && known.decided.as_ref().map(|d| &d.route) == decided.as_ref().map(|d| &d.route)
        {
            return known;
        }
        // Remove unused entries when the map is full.
        if self.known.len() == self.known.capacity() {
            self.known.retain(|_, common| common.strong_count() > 0);
        }
        let common = Arc::new(Common {
            names: names.clone(),
            service,
            decided,
            site,
            made: Instant::now(),
        });
        self.known.insert(names, Arc::downgrade(&common));
        common
    }
}

impl Names {
    pub(super) fn take(
        record: &mut AccessRecord,
        service: &Arc<Service>,
        decided: Option<&Decided>,
        site: Option<&Site>,
    ) -> Names {
        let listener = decided.map(|d| &d.listener);
        Names {
            service: Arc::as_ptr(service).addr(),
            listener_as_it_was: listener.map(|l: &Arc<ListenerConfig>| Arc::as_ptr(l).addr()),
            generation: decided.map(|d| d.generation),
            site: site.map(Site::id),
            listener: mem::take(&mut record.listener),
            route: record.route.take(),
            upstream: record.upstream.take(),
            server: record.server.take(),
        }
    }

    pub(super) fn give(&self, record: AccessRecord) -> AccessRecord {
        let Names {
            listener,
            route,
            upstream,
            server,
            ..
        } = self.clone();
        AccessRecord {
            listener,
            route,
            upstream,
            server,
            ..record
        }
    }
}

impl Common {
    /// Returns whether the client's address is the peer address of its connection.
    pub(super) fn can_tell_client(&self) -> bool {
        let listener = self.decided.as_ref().map(|d| &d.listener);
        listener.is_some_and(|listener| listener.accept_proxy.is_empty())
    }

    pub(super) fn is_http(&self) -> bool {
        let listener = self.decided.as_ref().map(|d| &d.listener);
        listener.is_some_and(|listener| listener.protocol == Protocol::Http)
    }
}
