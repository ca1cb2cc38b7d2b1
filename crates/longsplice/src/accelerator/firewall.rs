//! Lets connections pass through while a firewall of this host keeps their segments from the sockets of the node, or what these
//! send from the ends.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time after a connection whose segments were dropped until another one is tried. Each trial delays its connection.
const RETRY: Duration = Duration::from_secs(60);

/// Number of connections in a row whose segments were dropped after which others are not tried. A single one among others
/// that were opened may be a client's doing: it can send what no socket takes.
const FEW: u32 = 3;

/// Knows whether a firewall drops the segments of taken-over connections.
#[derive(Debug, Default)]
pub(super) struct Firewall(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// True if a connection was opened.
    has_opened: bool,
    /// Number of those since whose segments were dropped.
    dropped: u32,
    /// Time of the last trial; `None` while connections are taken over.
    closed_at: Option<Instant>,
}

impl Firewall {
    /// Returns whether a connection must pass through. `has_answer`: its server has answered, so this is the trial if one
    /// is due.
    pub(super) fn objects(&self, has_answer: bool) -> bool {
        self.0.lock().objects(has_answer, Instant::now())
    }

    /// Returns true while connections pass through, or one of them is tried.
    pub(super) fn is_closed(&self) -> bool {
        self.0.lock().closed_at.is_some()
    }

    /// Notes that segments of a connection reached its socket.
    pub(super) fn note_opened(&self) {
        if self.0.lock().open() {
            tracing::info!("the firewall lets taken-over connections pass again");
        }
    }

    /// Notes that the segments of a connection were dropped. The first one is logged.
    pub(super) fn note_dropped(&self) {
        if self.0.lock().close(Instant::now()) {
            tracing::warn!(
                "a firewall of this host drops the segments of connections that are taken over: they pass through (`firewall`). Accept \
                 what has the mark in its chains of input and output: `meta mark & 0xff000000 == 0x4c000000 accept` \
                 (docs/accelerator.md#connection-tracking)"
            );
        }
    }
}

impl State {
    fn objects(&mut self, has_answer: bool, now: Instant) -> bool {
        match self.closed_at {
            None => false,
            Some(at) if now.saturating_duration_since(at) < RETRY => true,
            Some(_) => {
                if has_answer {
                    // Others wait for what becomes of this one.
                    self.closed_at = Some(now);
                }
                false
            }
        }
    }

    /// Returns true if connections passed through so far.
    fn open(&mut self) -> bool {
        let was_closed = self.closed_at.is_some();
        *self = State {
            has_opened: true,
            ..State::default()
        };
        was_closed
    }

    /// Returns true if connections were taken over so far, and pass through from now on.
    fn close(&mut self, now: Instant) -> bool {
        self.dropped += 1;
        let is_single = self.has_opened && self.dropped < FEW;
        !is_single && self.closed_at.replace(now).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_is_tried_at_a_time_until_one_is_opened() {
        let (mut state, start) = (State::default(), Instant::now());
        assert!(!state.objects(false, start));
        assert!(state.close(start));
        assert!(!state.close(start), "it is told once");
        assert!(state.objects(false, start) && state.objects(true, start));
        let later = start + RETRY;
        assert!(!state.objects(false, later), "its SYN");
        assert!(!state.objects(true, later), "its answer");
        assert!(state.objects(false, later) && state.objects(true, later));
        assert!(!state.close(later), "it is told once");
        let later = later + RETRY;
        assert!(!state.objects(true, later));
        assert!(state.open());
        assert!(!state.open());
        assert!(!state.objects(false, later));
    }

    #[test]
    fn a_connection_beside_others_that_are_opened_stops_none() {
        let (mut state, now) = (State::default(), Instant::now());
        for _ in 0..2 {
            assert!(!state.open());
            for _ in 1..FEW {
                assert!(!state.close(now));
                assert!(!state.objects(false, now));
            }
        }
        assert!(state.close(now));
        assert!(state.objects(false, now));
    }
}
