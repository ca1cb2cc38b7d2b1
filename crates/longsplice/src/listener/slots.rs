//! Enforces `max_connections`, the limit of a listener's connections in this process. The limit can change meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};

/// Permits for connections.
#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    limit: Option<u32>,
    taken: u32,
}

/// A permit, released when it is dropped.
#[derive(Debug)]
pub(super) struct Slot(Arc<Slots>);

impl Slots {
    /// Creates permits with this limit; `None` means no limit.
    pub(super) fn new(limit: Option<u32>) -> Arc<Slots> {
        Arc::new(Slots {
            state: Mutex::new(State { limit, taken: 0 }),
            freed: Notify::new(),
        })
    }

    /// Changes the limit. Permits beyond it stay valid.
    pub(super) fn set_limit(&self, limit: Option<u32>) {
        self.state.lock().limit = limit;
        self.freed.notify_waiters();
    }

    /// Returns a permit, if one is free.
    pub(super) fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let mut state = self.state.lock();
        if state.limit.is_some_and(|limit| state.taken >= limit) {
            return None;
        }
        Some(self.taken(&mut state))
    }

    /// Returns a permit, even beyond the limit.
    pub(super) fn take_beyond(self: &Arc<Self>) -> Slot {
        self.taken(&mut self.state.lock())
    }

    fn taken(self: &Arc<Self>, state: &mut State) -> Slot {
        state.taken = state.taken.saturating_add(1);
        Slot(Arc::clone(self))
    }

    /// Returns once a permit is freed, or the limit changes, after this call. Another task may be the first to take it.
    pub(super) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.taken -= 1;
        drop(state);
        // Wake all waiting tasks: there are few, one for each address of the listener.
        self.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn the_limit_holds_and_can_change() {
        let slots = Slots::new(Some(1));
        let first = slots.try_take().expect("a place");
        assert!(slots.try_take().is_none());
        slots.set_limit(Some(2));
        let second = slots.try_take().expect("a place more");
        slots.set_limit(Some(1));
        drop(first);
        assert!(slots.try_take().is_none(), "the second one has the only place");
        drop(second);
        assert!(slots.try_take().is_some());
        slots.set_limit(None);
        let many: Vec<_> = (0..100).map(|_| slots.try_take()).collect();
        assert!(many.iter().all(Option::is_some));
    }

    #[tokio::test]
    async fn who_waits_is_told_of_a_free_place_and_of_a_higher_limit() {
        for free in [true, false] {
            let slots = Slots::new(Some(1));
            let held = slots.try_take();
            let mut freed = pin!(slots.freed());
            assert!(!freed.as_mut().enable(), "none is free yet");
            match free {
                true => drop(held),
                false => slots.set_limit(Some(2)),
            }
            timeout(Duration::from_secs(5), freed).await.expect("in time");
            assert!(slots.try_take().is_some());
        }
    }
}
