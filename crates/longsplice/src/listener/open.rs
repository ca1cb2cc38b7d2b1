//! Tracks a connection that this process holds or waits for: its resources, the decision about it, and requests to end
//! it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use longsplice_engine::{Ended, FlowHandle, FlowId, Pair, Returned, Until};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{
    Decided, Service, Settings, Standing,
    left::Parting,
    slots::Slot,
    standing::{ends, receives_alike},
};
use crate::{
    access_log::{AccessRecord, End},
    congestion,
    upstream::{Server, Tenure},
};

/// An open connection, as its handler has it. Dropping it ends the tracking.
#[derive(Debug)]
pub(crate) struct Open {
    service: Arc<Service>,
    number: u64,
    shown: Arc<Shown>,
    _slot: Slot,
    _descriptors: Option<OwnedSemaphorePermit>,
}

/// State of an open connection that other tasks see.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    flow: FlowHandle,
    decided: Mutex<Option<Box<Decided>>>,
    ending: Mutex<Ending>,
    told: Notify,
    /// True while the engine has it, or the kernel.
    is_in_engine: AtomicBool,
}

/// Request to end a connection.
#[derive(Debug, Default)]
struct Ending {
    /// Reason why it is to end.
    why: Option<End>,
    /// True once its handler has left its flow to the kernel, and heeds no request any more.
    is_left: bool,
}

/// Answer to a request to end a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Its handler ends it.
    Now,
    /// Its handler ends it, for a reason that was given before.
    Before,
    /// Its handler has left its flow to the kernel; if the flow is remembered, the tracker has it by now.
    Left,
}

impl Shown {
    /// Requests its handler to end it. The first reason stays.
    pub(super) fn end(&self, why: End) -> Told {
        self.tell(self.ending.lock(), why)
    }

    /// Requests its handler to end it, if this is its flow; `None` if it is not.
    pub(super) fn end_flow(&self, id: FlowId, why: End) -> Option<Told> {
        // Compare under the lock: the flow is forgotten under it, so the request is not for what follows the flow.
        let ending = self.ending.lock();
        (self.flow() == Some(id)).then(|| self.tell(ending, why))
    }

    fn tell(&self, mut ending: MutexGuard<'_, Ending>, why: End) -> Told {
        match *ending {
            Ending { is_left: true, .. } => return Told::Left,
            Ending { why: Some(_), .. } => return Told::Before,
            _ => ending.why = Some(why),
        }
        drop(ending);
        self.told.notify_waiters();
        Told::Now
    }

    /// Refuses further requests. Returns the reason of the one before: its handler must still heed it.
    fn leave(&self) -> Option<End> {
        let mut ending = self.ending.lock();
        ending.is_left = true;
        ending.why
    }

    /// Returns whether the engine has it, and knows what becomes of it at a shutdown, or has left it to the kernel.
    pub(super) fn is_in_engine(&self) -> bool {
        self.is_in_engine.load(Ordering::Relaxed)
    }

    /// Notes that the engine does not have it any more, and whether the kernel has. Forgets its flow if not.
    fn came_back(&self, is_in_kernel: bool) {
        self.is_in_engine.store(is_in_kernel, Ordering::Relaxed);
        if !is_in_kernel {
            let _ending = self.ending.lock();
            self.flow.clear();
        }
    }

    /// Returns its flow, while the engine or the kernel has it.
    pub(super) fn flow(&self) -> Option<FlowId> {
        self.flow.id()
    }

    /// Returns whether there is a decision about it that meets the condition.
    pub(super) fn is_decided(&self, condition: impl FnOnce(&Decided) -> bool) -> bool {
        self.decided.lock().as_deref().is_some_and(condition)
    }

    pub(super) fn to_end(&self) -> Option<End> {
        self.ending.lock().why
    }

    #[cfg(test)]
    pub(super) fn in_engine(is_in_engine: bool) -> Shown {
        Shown {
            is_in_engine: is_in_engine.into(),
            ..Shown::default()
        }
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

    /// Returns its listener.
    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Replaces the decision about it; `None` means no decision, as between two requests. `on_reload` acts on this
    /// decision.
    pub(crate) fn decide(&self, decided: Option<Decided>) {
        *self.shown.decided.lock() = decided.map(Box::new);
    }

    /// Makes the decision about a connection known that had no handler, and ends it if the decision is void: a reload that
    /// found it neither here nor among the flows without a handler has switched the settings before.
    pub(super) fn resume(&self, decided: Option<Decided>) {
        let mut shown = self.shown.decided.lock();
        *shown = decided.map(Box::new);
        if let Some(decided) = shown.as_deref() {
            self.is_void(decided, self.service.in_force().as_deref());
        }
    }

    /// Makes a decision about it known, before it has a server, and compares it with the configuration in force. Ends the
    /// connection if the decision is void.
    pub(crate) fn publish(&self, decided: Box<Decided>) -> Standing {
        let mut shown = self.shown.decided.lock();
        let decided = shown.insert(decided);
        // Compare under the lock: a reload switches settings before it looks at the decisions, one after the other. So
        // either it sees this one, or its settings are seen here.
        match self.service.in_force() {
            Some(next)
                if next.generation != decided.generation
                    && receives_alike(&decided.listener, &next.listener) =>
            {
                Standing::Superseded(next)
            }
            next if self.is_void(decided, next.as_deref()) => Standing::Void,
            _ => Standing::Holds,
        }
    }

    /// Adds the server to the decision about it. Returns false if the decision is void, now that its server is known: the
    /// connection ends.
    pub(crate) fn at_server(&self, server: &Arc<Server>) -> bool {
        let mut shown = self.shown.decided.lock();
        shown.as_deref_mut().is_none_or(|decided| {
            decided.server = Some(Arc::clone(server));
            !self.is_void(decided, self.service.in_force().as_deref())
        })
    }

    /// Returns whether the settings in force, `next`, end a connection with this decision, and requests its end then.
    fn is_void(&self, decided: &Decided, next: Option<&Settings>) -> bool {
        let is_newer = next.is_none_or(|next| next.generation != decided.generation);
        let is_void = is_newer && ends(decided, decided.facts.as_ref(), next);
        if is_void {
            self.shown.end(End::Reload);
        }
        is_void
    }

    /// Returns when the connection must end at once by a reset, because of `on_reload` or a command. Cancel-safe.
    pub(crate) async fn cancelled(&self) -> End {
        loop {
            let told = self.shown.told.notified();
            if let Some(why) = self.shown.to_end() {
                return why;
            }
            told.await;
        }
    }

    /// Returns the reason why it is to end, if it is.
    pub(crate) fn to_end(&self) -> Option<End> {
        self.shown.to_end()
    }

    /// Calls [`longsplice_engine::Splicer::splice`], and ends it with a reset of both ends if this connection is told
    /// to end. Sockets that come back have the configured congestion control.
    pub(crate) async fn splice(&self, pair: impl Into<Pair>, until: Until) -> io::Result<Ended> {
        let splicer = self.service.splicer();
        self.shown.is_in_engine.store(true, Ordering::Relaxed);
        // Box the call: it takes 12 KB, which connections with short replies only do not need.
        let mut call = Box::pin(splicer.splice(pair.into().with_handle(&self.shown.flow), until));
        let ended = tokio::select! {
            // Poll the call first: its first step sets the flow's number.
            biased;
            ended = &mut call => ended.inspect(|ended| {
                if let Ended::Returned(returned) = ended {
                    self.set_congestion(returned);
                }
            }),
            why = self.cancelled() => {
                tracing::debug!(flow = ?self.shown.flow.id(), why = why.as_str(), "told to end");
                if let Some(id) = self.shown.flow.id() {
                    // Ignore an error: the flow may have ended by itself.
                    let _ = splicer.request_end(id).await;
                }
                call.await
            }
        };
        // A flow that the kernel has is not ended by a shutdown.
        let is_in_kernel = matches!(ended, Ok(Ended::Detached(_)));
        self.shown.came_back(is_in_kernel);
        ended
    }

    /// Sets the congestion control of sockets that came back: rebuilt ones have the kernel's own. Without a decision,
    /// the server's keeps it.
    pub(super) fn set_congestion(&self, returned: &Returned) {
        if !returned.spliced {
            return;
        }
        let settings = self.service.settings();
        let decided = self.shown.decided.lock();
        let upstream = decided
            .as_deref()
            .and_then(|d| settings.upstreams.get(d.named_upstream()?));
        let to_server = upstream.and_then(|upstream| upstream.congestion());
        // Go on without it: a warning tells of a name that the kernel refuses.
        let _ = congestion::set(&returned.client, settings.listener.congestion.as_deref());
        let _ = congestion::set(&returned.server, to_server);
    }

    /// Leaves the connection to the kernel. Ends its flow there if it was told to end since its call returned, or just before.
    pub(crate) async fn detached(
        self,
        id: FlowId,
        tenure: Option<Tenure>,
        record: AccessRecord,
        began: Instant,
    ) {
        let Some(why) = self.leave(id, tenure, record, began) else {
            return;
        };
        tracing::debug!(flow = %id, why = why.as_str(), "told to end when it was detached");
        self.service.shared.tracker.end(id, why);
        // Ignore an error: the flow may have ended by itself.
        let _ = self.service.splicer().request_end(id).await;
    }

    /// Enters its flow among those without a handler. Its record is written when its end is seen; until then its server
    /// counts it. A flow that needs neither is not remembered: each takes memory. Returns the reason if it was told to end;
    /// from now on it is told so in vain.
    pub(super) fn leave(
        &self,
        id: FlowId,
        tenure: Option<Tenure>,
        record: AccessRecord,
        began: Instant,
    ) -> Option<End> {
        let shared = &self.service.shared;
        // Keep the lock until the flow is entered: a reload that finds no decision here finds it there.
        let mut decided = self.shown.decided.lock();
        if decided.as_deref().is_some_and(Decided::matters) || shared.access_log.is_on() {
            let parting = Parting {
                service: Arc::clone(&self.service),
                decided: decided.take().map(|decided| *decided),
                tenure,
                record,
                began,
            };
            shared.tracker.leave(id, parting);
        }
        drop(decided);
        self.shown.leave()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.service.shared.tracker.remove(self.number);
        self.service.open.fetch_sub(1, Ordering::Relaxed);
        self.service.splicer().note_closed();
        self.service.shared.resources.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
