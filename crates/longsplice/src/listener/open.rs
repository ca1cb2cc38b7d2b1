//! A connection that this process holds, or waits for: what it takes up, what was decided about it, and how it is told to end.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Instant,
};

use longsplice_core::route::Route;
use longsplice_engine::{Ended, FlowHandle, FlowId, Pair, Until};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{KeptFacts, Service, Settings, left::Parting, slots::Slot};
use crate::{
    access_log::{AccessRecord, End},
    config::{ListenerConfig, OnChange},
    upstream::{Server, Tenure},
};

/// What was decided about a connection, or about the request that it carries now.
#[derive(Debug, Clone)]
pub struct Decided {
    /// The generation that decided.
    pub generation: u64,
    /// The listener, as it was.
    pub listener: Arc<ListenerConfig>,
    /// The route that took it, as it was; `None`: what no route takes.
    pub route: Option<Route>,
    /// The upstream's name; `None`: the original destination.
    pub upstream: Option<String>,
    /// The server.
    pub server: Option<Arc<Server>>,
    /// What was decided on, where it is kept.
    pub facts: Option<KeptFacts>,
}

impl Decided {
    /// Whether a change of it, or its server's load, is of interest when it runs on in the kernel.
    fn matters(&self) -> bool {
        self.listener.on_change != OnChange::Keep || self.listener.to.is_empty() && self.upstream.is_some()
    }

    /// Whether facts are worth keeping.
    pub fn wants_facts(settings: &Settings) -> bool {
        settings.listener.on_change == OnChange::Recheck
    }
}

/// An open connection as its handler has it. Dropping it says that the connection is over.
#[derive(Debug)]
pub struct Open {
    service: Arc<Service>,
    number: u64,
    shown: Arc<Shown>,
    _slot: Slot,
    _descriptors: Option<OwnedSemaphorePermit>,
}

/// The same as others see it.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    flow: FlowHandle,
    decided: Mutex<Option<Box<Decided>>>,
    /// Why it is to end.
    to_end: Mutex<Option<End>>,
    told: Notify,
}

impl Shown {
    fn decided(&self) -> MutexGuard<'_, Option<Box<Decided>>> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has its handler end it.
    pub(crate) fn end(&self, why: End) {
        let mut to_end = self.to_end.lock().unwrap_or_else(PoisonError::into_inner);
        to_end.get_or_insert(why);
        drop(to_end);
        self.told.notify_waiters();
    }

    /// The flow that it is, or was last.
    pub(super) fn flow(&self) -> Option<FlowId> {
        self.flow.id()
    }

    /// Whether something was decided about it of which this holds.
    pub(super) fn is_decided(&self, condition: impl FnOnce(&Decided) -> bool) -> bool {
        self.decided().as_deref().is_some_and(condition)
    }

    fn to_end(&self) -> Option<End> {
        *self.to_end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    pub(super) fn new(service: Arc<Service>, slot: Slot, descriptors: Option<OwnedSemaphorePermit>) -> Open {
        service.open.fetch_add(1, Ordering::Relaxed);
        let shown = Arc::new(Shown::default());
        let number = service.shared.tracker.add(Arc::clone(&shown));
        Open {
            service,
            number,
            shown,
            _slot: slot,
            _descriptors: descriptors,
        }
    }

    /// Its listener.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Says what was decided about it, in the place of what was before; `None`: nothing, as between two requests. What
    /// `on_change` does, it does by this.
    pub fn decide(&self, decided: Option<Decided>) {
        *self.shown.decided() = decided.map(Box::new);
    }

    /// Returns when the connection is to end at once, by a reset: `on_change` or a command says so. Cancel-safe.
    pub async fn told_to_end(&self) -> End {
        loop {
            let told = self.shown.told.notified();
            if let Some(why) = self.shown.to_end() {
                return why;
            }
            told.await;
        }
    }

    /// Why it is to end, if it is.
    pub fn to_end(&self) -> Option<End> {
        self.shown.to_end()
    }

    /// [`longsplice_engine::Splicer::splice`], which ends by a reset of both ends if this connection is told to end.
    ///
    /// # Errors
    /// As there.
    pub async fn splice(&self, pair: impl Into<Pair>, until: Until) -> io::Result<Ended> {
        let splicer = self.service.splicer();
        // 12 KB, which connections that only have short replies need not have.
        let mut call = Box::pin(splicer.splice(pair.into().with_handle(&self.shown.flow), until));
        tokio::select! {
            // First: it is under its number from its first step on.
            biased;
            ended = &mut call => return ended,
            why = self.told_to_end() => tracing::debug!(flow = ?self.shown.flow.id(), why = why.as_str(), "told to end"),
        }
        if let Some(id) = self.shown.flow.id() {
            // It may have ended by itself.
            let _ = splicer.request_end(id).await;
        }
        call.await
    }

    /// The connection goes on in the kernel, without this process: its record is written when its end is seen, and until then its
    /// server has it. What nobody wants to know is not kept: it is memory for each flow.
    pub fn detached(self, id: FlowId, tenure: Option<Tenure>, record: AccessRecord, began: Instant) {
        let decided = self.shown.decided().take();
        let shared = &self.service.shared;
        let matters = decided.as_deref().is_some_and(Decided::matters);
        if !(matters || shared.access_log.is_on()) {
            return;
        }
        let parting = Parting {
            service: Arc::clone(&self.service),
            decided: decided.map(|decided| *decided),
            tenure,
            record,
            began,
        };
        shared.tracker.leave(id, parting);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.service.shared.tracker.remove(self.number);
        self.service.open.fetch_sub(1, Ordering::Relaxed);
        self.service.shared.resources.freed.notify_one();
    }
}
