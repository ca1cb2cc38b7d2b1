//! Tracks all connections of a process, and the flows that run on without a handler.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use longsplice_engine::{FlowEnded, FlowId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Decided, KeptFacts,
    left::{Commons, LeftFlow, Parting},
    open::{Shown, Told},
};
use crate::access_log::End;

/// Number of ends that are kept of flows that are not remembered yet: their handlers are about to leave them.
const EARLY: usize = 64;

/// All connections of a process.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    open: Mutex<HashMap<u64, Arc<Shown>>>,
    next: AtomicU64,
    removed: Notify,
    left: Mutex<Left>,
}

#[derive(Debug, Default)]
struct Left {
    /// Stored inline: boxes would lie among the short-lived allocations of handlers, and keep their pages from being
    /// returned to the system.
    flows: HashMap<FlowId, LeftFlow>,
    commons: Commons,
    early: VecDeque<FlowEnded>,
}

impl Left {
    fn remove(&mut self, id: FlowId) -> Option<LeftFlow> {
        let flow = self.flows.remove(&id)?;
        if self.flows.len() < self.flows.capacity() / 8 {
            self.flows.shrink_to(2 * self.flows.len());
        }
        Some(flow)
    }
}

impl Tracker {
    pub(super) fn add(&self, shown: Arc<Shown>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(number, shown);
        number
    }

    pub(super) fn remove(&self, number: u64) {
        self.open.lock().remove(&number);
        self.removed.notify_waiters();
    }

    /// Returns the number of connections that this process holds, or waits for.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().len()
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
    pub(super) fn leave(&self, id: FlowId, parting: Parting) {
        let mut left = self.left.lock();
        let flow = LeftFlow::new(parting, &mut left.commons);
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

    /// Returns the memory of a flow to a handler; `client` is the address of its client.
    pub(super) fn take(&self, id: FlowId, client: SocketAddr) -> Option<Parting> {
        let flow = self.left.lock().remove(id);
        flow?.resume(client)
    }

    /// Records the end of a flow that has no handler.
    pub(super) fn ended(&self, end: FlowEnded) {
        let mut left = self.left.lock();
        match left.remove(end.id) {
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

    /// Ends connections that meet `condition`. Returns the number of open ones, which their handlers end, and the other
    /// flows, which the caller must end.
    pub(crate) fn end_where(
        &self,
        why: End,
        mut condition: impl FnMut(&Decided, Option<&KeptFacts>) -> bool,
    ) -> (usize, Vec<FlowId>) {
        let told = self.tell_where(why, &mut condition);
        let flows = self.left_where(why, &told, condition);
        (told.len(), flows)
    }

    /// Tells open connections that meet `condition` to end, and returns them: their handlers end them.
    pub(super) fn tell_where(
        &self,
        why: End,
        condition: &mut impl FnMut(&Decided, Option<&KeptFacts>) -> bool,
    ) -> Vec<Arc<Shown>> {
        // Copy the list, so that no handler waits for its lock while the condition is evaluated.
        let mut ending: Vec<_> = self.open.lock().values().cloned().collect();
        ending.retain(|shown| shown.is_decided(|decided| condition(decided, decided.facts.as_ref())));
        // Judge all before the first one is told: its place may go to another one, which then ends by itself, uncounted.
        ending.retain(|shown| shown.end(why) != Told::Left);
        ending
    }

    /// Returns the flows without a handler that meet `condition`, and sets the reason of their ends; not those that the
    /// handlers of the `told` have left meanwhile.
    pub(super) fn left_where(
        &self,
        why: End,
        told: &[Arc<Shown>],
        mut condition: impl FnMut(&Decided, Option<&KeptFacts>) -> bool,
    ) -> Vec<FlowId> {
        let told: HashSet<FlowId> = told.iter().filter_map(|shown| shown.flow()).collect();
        let mut left = self.left.lock();
        let mut flows = Vec::new();
        for (id, flow) in &mut left.flows {
            let decided = flow.decided().filter(|_| !told.contains(id));
            if decided.is_some_and(|(decided, facts)| condition(decided, facts)) {
                flow.set_why(why);
                flows.push(*id);
            }
        }
        flows
    }

    /// Ends up to `most` connections that are not to end yet, the newest first, and returns how many.
    pub(crate) fn end_newest(&self, most: usize, why: End) -> usize {
        let mut open: Vec<_> = self
            .open
            .lock()
            .iter()
            .map(|(n, shown)| (*n, Arc::clone(shown)))
            .collect();
        open.sort_unstable_by_key(|(n, _)| std::cmp::Reverse(*n));
        // Lazy: `take` stops it, so no further one is told.
        let told = open.iter().filter(|(_, shown)| shown.end(why) == Told::Now);
        told.take(most).count()
    }

    /// Ends all connections that the engine does not have.
    pub(crate) fn end_outside(&self, why: End) {
        for shown in self.open.lock().values().filter(|shown| !shown.is_in_engine()) {
            shown.end(why);
        }
    }

    /// Ends the connection of this flow, if a handler has it; else only sets the reason of its end. Returns whether a
    /// handler has it.
    pub(crate) fn end(&self, id: FlowId, why: End) -> bool {
        let of_it = self
            .open
            .lock()
            .values()
            .find(|shown| shown.flow() == Some(id))
            .cloned();
        let told = of_it.and_then(|shown| shown.end_flow(id, why));
        if told.is_some_and(|told| told != Told::Left) {
            return true;
        }
        if let Some(flow) = self.left.lock().flows.get_mut(&id) {
            flow.set_why(why);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_told_to_end_is_not_told_again() {
        let tracker = Tracker::default();
        let all: Vec<_> = (0..5).map(|_| Arc::<Shown>::default()).collect();
        for shown in &all {
            tracker.add(Arc::clone(shown));
        }
        all[3].end(End::Admin);
        let ends = || all.iter().map(|shown| shown.to_end()).collect::<Vec<_>>();
        let (admin, memory) = (Some(End::Admin), Some(End::Memory));
        for (ended, expected) in [
            (2, [None, None, memory, admin, memory]),
            (2, [memory, memory, memory, admin, memory]),
            (0, [memory, memory, memory, admin, memory]),
        ] {
            assert_eq!(tracker.end_newest(2, End::Memory), ended);
            assert_eq!(ends(), expected);
        }
    }

    /// A flow that is about to be detached must not be told to end: its record is in the kernel, for the next daemon.
    #[test]
    fn only_what_the_engine_does_not_have_is_ended_outside_of_it() {
        let tracker = Tracker::default();
        let [inside, outside] = [true, false].map(|is_in_engine| {
            let shown = Arc::new(Shown::in_engine(is_in_engine));
            tracker.add(Arc::clone(&shown));
            shown
        });
        tracker.end_outside(End::Shutdown);
        assert_eq!(inside.to_end(), None);
        assert_eq!(outside.to_end(), Some(End::Shutdown));
    }
}
