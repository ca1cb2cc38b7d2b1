//! Limits the time for which a flow waits for an end's acknowledgement, and for which it may fail to come back.
//!
//! A flow that has sockets takes one of few slots. TCP itself gives up an end that acknowledges nothing (RFC 1122
//! section 4.2.3.5: after 100 s at least), and an end without a socket sooner than others; so do these rules.

use std::time::Duration;

/// Limits how long an end may be silent while it owes an acknowledgement, and how long a flow may fail to come back: a
/// little more than the minimum of RFC 1122 section 4.2.3.5 (R2).
pub const GIVE_UP: Duration = Duration::from_secs(120);

/// Replaces [`GIVE_UP`] when slots run short: other flows need them to come back.
pub const GIVE_UP_SHORT: Duration = Duration::from_secs(10);

/// Limits, when slots run short, how long an end that sends segments may acknowledge nothing new.
const LIVING_SHORT: Duration = Duration::from_secs(60);

/// Time to wait after the first failure to come back; each further one is twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// Describes an end that owes an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Time since its last acknowledgement of new data.
    pub stalled: Duration,
    /// Time since its last segment.
    pub silent: Duration,
}

/// Task that waits for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiter {
    /// A drain, which lets a slow reader be as slow as it was.
    Drain,
    /// A relay that goes on meanwhile.
    Relay,
    /// A handler, or no task at all, that needs nothing of the flow any more.
    Handler,
}

/// Returns whether to give up a flow that waits for an end's acknowledgements. `short`: slots run short.
#[must_use]
pub fn is_hopeless(stall: Stall, waiter: Waiter, short: bool) -> bool {
    let lost = stall.stalled.min(stall.silent);
    let living = match (waiter, short) {
        (Waiter::Drain, _) | (Waiter::Relay, false) => None,
        (Waiter::Relay, true) => Some(LIVING_SHORT),
        (Waiter::Handler, false) => Some(GIVE_UP),
        (Waiter::Handler, true) => Some(GIVE_UP_SHORT),
    };
    lost >= if short { GIVE_UP_SHORT } else { GIVE_UP } || living.is_some_and(|most| stall.stalled >= most)
}

/// Spaces the attempts of a flow that cannot come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    next: Duration,
    waited: Duration,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            next: FIRST_RETRY,
            waited: Duration::ZERO,
        }
    }
}

impl Retry {
    /// Returns whether no attempt has failed yet.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.next == FIRST_RETRY
    }

    /// Returns how long to wait after an attempt that failed, or `None` once [`GIVE_UP`] was waited in all.
    pub fn after_failure(&mut self) -> Option<Duration> {
        let wait = self.after_harmless_failure();
        self.waited += wait;
        (self.waited < GIVE_UP).then_some(wait)
    }

    /// Returns how long to wait after an attempt that failed, and on which nothing depends: it never gives up.
    pub fn after_harmless_failure(&mut self) -> Duration {
        let wait = self.next;
        self.next = (2 * wait).min(LAST_RETRY);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(stalled: u32, silent: u32) -> Stall {
        Stall {
            stalled: SECOND * stalled,
            silent: SECOND * silent,
        }
    }

    #[test]
    fn an_end_that_is_silent_is_given_up_whoever_waits() {
        for waiter in [Waiter::Drain, Waiter::Relay, Waiter::Handler] {
            for (short, most) in [(false, 120), (true, 10)] {
                assert!(!is_hopeless(after(most - 1, most - 1), waiter, short));
                assert!(
                    is_hopeless(after(most, most), waiter, short),
                    "{waiter:?}, {short}"
                );
            }
            // The end acknowledged new data a moment ago, and no other data was due.
            assert!(!is_hopeless(after(0, 9999), waiter, true));
        }
    }

    #[test]
    fn an_end_that_lives_is_given_up_where_nobody_relays_or_slots_run_short() {
        let lives = |stalled, waiter, short| is_hopeless(after(stalled, 0), waiter, short);
        assert!(!lives(99_999, Waiter::Drain, false) && !lives(99_999, Waiter::Drain, true));
        assert!(!lives(99_999, Waiter::Relay, false));
        assert!(!lives(59, Waiter::Relay, true) && lives(60, Waiter::Relay, true));
        assert!(!lives(119, Waiter::Handler, false) && lives(120, Waiter::Handler, false));
        assert!(!lives(9, Waiter::Handler, true) && lives(10, Waiter::Handler, true));
    }

    #[test]
    fn attempts_are_few_and_have_an_end() {
        let mut retry = Retry::default();
        assert!(retry.is_first());
        let mut waits = Vec::new();
        while let Some(wait) = retry.after_failure() {
            assert!(!retry.is_first());
            waits.push(wait);
        }
        assert_eq!(waits[..3], [10, 20, 40].map(Duration::from_millis));
        assert!(waits.len() < 80, "{}", waits.len());
        let all: Duration = waits.iter().sum();
        assert!(GIVE_UP - LAST_RETRY <= all && all < GIVE_UP, "{all:?}");
    }

    #[test]
    fn attempts_on_which_nothing_depends_have_no_end() {
        let mut retry = Retry::default();
        for _ in 0..1_000 {
            assert!(retry.after_harmless_failure() <= LAST_RETRY);
            assert!(!retry.is_first());
        }
        // A packet waits from now on.
        assert_eq!(retry.after_failure(), Some(LAST_RETRY));
    }
}
