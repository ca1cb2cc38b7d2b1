//! A connection that this process holds, or waits for: what it takes up, what was decided about it, and how it is told to end.

use std::{
    collections::HashMap,
    io, mem,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use longsplice_core::route::Route;
use longsplice_engine::{Ended, FlowHandle, FlowId, Pair, Until};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{KeptFacts, Service, Settings};
use crate::{
    access_log::{AccessRecord, End},
    config::{ListenerConfig, OnChange},
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
    /// The server's name.
    pub server: Option<String>,
    /// What was decided on, where it is kept.
    pub facts: Option<KeptFacts>,
}

impl Decided {
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
    _permits: [Option<OwnedSemaphorePermit>; 2],
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

    fn to_end(&self) -> Option<End> {
        *self.to_end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    pub(super) fn new(service: Arc<Service>, permits: [Option<OwnedSemaphorePermit>; 2]) -> Open {
        service.open.fetch_add(1, Ordering::Relaxed);
        let shown = Arc::new(Shown::default());
        let number = service.shared.tracker.add(Arc::clone(&shown));
        Open {
            service,
            number,
            shown,
            _permits: permits,
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
        let mut call = pin!(splicer.splice(pair.into().with_handle(&self.shown.flow), until));
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

    /// The connection goes on in the kernel, without this process. Its record is written when its end is seen.
    pub fn detached(self, id: FlowId, record: AccessRecord) {
        let decided = mem::take(&mut *self.shown.decided());
        self.service.shared.tracker.leave(id, decided, record);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.service.shared.tracker.remove(self.number);
        self.service.open.fetch_sub(1, Ordering::Relaxed);
        self.service.shared.resources.freed.notify_one();
    }
}

/// All connections of the process, and what it remembers of those that run on without it.
#[derive(Debug, Default)]
pub struct Tracker {
    open: Mutex<HashMap<u64, Arc<Shown>>>,
    next: AtomicU64,
}

impl Tracker {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Shown>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, shown: Arc<Shown>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open().insert(number, shown);
        number
    }

    fn remove(&self, number: u64) {
        self.open().remove(&number);
    }

    fn leave(&self, id: FlowId, decided: Option<Box<Decided>>, record: AccessRecord) {
        let _ = (id, decided, record);
    }
}
