//! Progress of the receiving half of an end. The sending half may have to wait for it.

use parking_lot::{Condvar, Mutex};

/// Number of bytes received, and the end of receiving.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    received: u64,
    is_over: bool,
}

impl Progress {
    /// Sets the total number of bytes received.
    pub(super) fn advance(&self, received: u64) {
        self.state.lock().received = received;
        self.news.notify_all();
    }

    /// Ends receiving, after success or failure.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.news.notify_all();
    }

    /// Returns the number of bytes received so far.
    pub(super) fn received(&self) -> u64 {
        self.state.lock().received
    }

    /// Waits until `bytes` bytes were received; returns false when receiving ended before.
    pub(super) fn wait_for(&self, bytes: u64) -> bool {
        let waiting = |state: &mut State| state.received < bytes && !state.is_over;
        let mut state = self.state.lock();
        self.news.wait_while(&mut state, waiting);
        state.received >= bytes
    }

    /// Waits until receiving is over.
    pub(super) fn wait_end(&self) {
        self.news
            .wait_while(&mut self.state.lock(), |state| !state.is_over);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_waits_is_woken_by_what_comes_or_by_the_end() {
        let progress = Progress::default();
        thread::scope(|scope| {
            let enough = scope.spawn(|| progress.wait_for(10));
            let too_much = scope.spawn(|| progress.wait_for(11));
            let end = scope.spawn(|| progress.wait_end());
            progress.advance(9);
            progress.advance(10);
            assert!(enough.join().unwrap());
            progress.end();
            assert!(!too_much.join().unwrap());
            end.join().unwrap();
        });
        assert_eq!(progress.received(), 10);
        assert!(progress.wait_for(10), "it is there, over or not");
    }
}
