//! All connections of a process, and what it remembers of those that run on without it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use longsplice_engine::{FlowEnd, FlowEnded, FlowId};
use tokio::sync::Notify;

use super::{Decided, Service, open::Shown};
use crate::{
    access_log::{AccessRecord, End},
    upstream::Tenure,
};

/// So many ends are kept of flows that nobody has spoken of yet: their handlers are about to.
const EARLY: usize = 64;

/// All connections of a process.
#[derive(Debug, Default)]
pub struct Tracker {
    open: Mutex<HashMap<u64, Arc<Shown>>>,
    next: AtomicU64,
    removed: Notify,
    left: Mutex<Left>,
}

#[derive(Debug, Default)]
struct Left {
    flows: HashMap<FlowId, Box<LeftFlow>>,
    early: VecDeque<FlowEnded>,
}

/// A flow that runs on in the kernel, and what is to be done when it ends.
#[derive(Debug)]
pub(crate) struct LeftFlow {
    pub(crate) service: Arc<Service>,
    pub(crate) decided: Option<Box<Decided>>,
    /// It counts as one of its server's connections.
    pub(crate) tenure: Option<Tenure>,
    pub(crate) record: AccessRecord,
    pub(crate) began: Instant,
}

impl Tracker {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Shown>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, shown: Arc<Shown>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open().insert(number, shown);
        number
    }

    pub(super) fn remove(&self, number: u64) {
        self.open().remove(&number);
        self.removed.notify_waiters();
    }

    /// How many connections this process holds, or waits for.
    pub fn count(&self) -> usize {
        self.open().len()
    }

    /// Returns when there are none, or at this time.
    pub(crate) async fn wait_empty(&self, until: Instant) {
        let gone = async {
            loop {
                let removed = self.removed.notified();
                if self.count() == 0 {
                    return;
                }
                removed.await;
            }
        };
        let _ = tokio::time::timeout_at(until.into(), gone).await;
    }

    /// Remembers a flow that its handler has left to the kernel.
    pub(super) fn leave(&self, id: FlowId, flow: Box<LeftFlow>) {
        let mut left = self.left();
        let ended = left.early.iter().position(|end| end.id == id);
        match ended.and_then(|n| left.early.remove(n)) {
            Some(end) => {
                drop(left);
                flow.finish(&end);
            }
            None => {
                left.flows.insert(id, flow);
            }
        }
    }

    /// Somebody has the flow again.
    pub(super) fn take(&self, id: FlowId) -> Option<Box<LeftFlow>> {
        self.left().flows.remove(&id)
    }

    /// A flow that nobody waited for has ended.
    pub(super) fn ended(&self, end: FlowEnded) {
        let mut left = self.left();
        match left.flows.remove(&end.id) {
            Some(flow) => {
                drop(left);
                flow.finish(&end);
            }
            None => {
                if left.early.len() == EARLY {
                    left.early.pop_front();
                }
                left.early.push_back(end);
            }
        }
    }

    /// Has those end of which `condition` holds, open or left; the flows among those left, which the caller is to end.
    pub(crate) fn end_where(
        &self,
        why: End,
        mut condition: impl FnMut(&Decided) -> bool,
    ) -> (usize, Vec<FlowId>) {
        // No handler waits for what is asked here.
        let open: Vec<_> = self.open().values().cloned().collect();
        let mut ending = 0;
        for shown in open {
            if shown.is_decided(&mut condition) {
                shown.end(why);
                ending += 1;
            }
        }
        let mut left = self.left();
        let mut flows = Vec::new();
        for (id, flow) in &mut left.flows {
            if flow.decided.as_deref().is_some_and(&mut condition) {
                flow.record.end = why;
                flows.push(*id);
            }
        }
        (ending, flows)
    }

    /// Has the connection end whose flow this is, if a handler has it; says why it ends, if none has. Whether one has.
    pub(crate) fn end(&self, id: FlowId, why: End) -> bool {
        let of_it = self
            .open()
            .values()
            .find(|shown| shown.flow() == Some(id))
            .cloned();
        if let Some(shown) = of_it {
            shown.end(why);
            return true;
        }
        if let Some(flow) = self.left().flows.get_mut(&id) {
            flow.record.end = why;
        }
        false
    }
}

impl LeftFlow {
    fn finish(self: Box<Self>, end: &FlowEnded) {
        let LeftFlow {
            service,
            mut record,
            began,
            ..
        } = *self;
        if let Some([to_server, to_client]) = end.bytes {
            record.bytes_to_server += to_server;
            record.bytes_to_client += to_client;
        }
        record.bytes_spliced += end.bytes_spliced.unwrap_or_default();
        let how = match end.how {
            FlowEnd::Closed => End::Complete,
            FlowEnd::Reset => End::Reset,
            FlowEnd::Idle => End::Idle,
            // Who asked has said why.
            FlowEnd::Asked => record.end,
            FlowEnd::Replaced => End::Lost,
        };
        service.finished(record.ended(began, how));
    }
}
