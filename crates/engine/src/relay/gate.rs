//! Decides when a relayed pair is spliced: by the listener's policy, and the outcome of earlier attempts.

use std::time::Duration;

use longsplice_core::policy::SplicePolicy;
use tokio::time::Instant;

/// Bytes or age after which `auto` asks the advisor: for shorter connections that does not pay.
const AUTO_BYTES: u64 = 256 << 10;
const AUTO_AGE: Duration = Duration::from_millis(100);

/// First wait after an attempt that failed for a passing reason; each further one is twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Action that is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Relay on; look again at that time, or only on request.
    NotBefore(Option<Instant>),
    /// Ask the advisor.
    Advise,
    /// Splice.
    Splice,
}

/// Decides when to splice a pair.
#[derive(Debug)]
pub(crate) struct Gate {
    policy: SplicePolicy,
    since: Instant,
    not_before: Option<Instant>,
    retry: Duration,
    closed: bool,
    /// True if the pair is known to be long enough for the advisor.
    long: bool,
}

impl Gate {
    pub(crate) fn new(policy: SplicePolicy, now: Instant) -> Gate {
        Gate {
            policy,
            since: now,
            not_before: None,
            retry: FIRST_RETRY,
            closed: policy == SplicePolicy::Never,
            long: false,
        }
    }

    /// Marks the pair as long if its number of bytes is known.
    pub(crate) fn of_length(self, length: Option<u64>) -> Gate {
        Gate {
            long: length.is_some(),
            ..self
        }
    }

    /// Returns true if a splice may be due before any byte was relayed.
    pub(crate) fn is_urgent(&self) -> bool {
        self.long && !self.closed
    }

    /// Returns the action that is due at `now`, with `bytes` passed in both directions together.
    pub(crate) fn due(&self, now: Instant, bytes: u64) -> Due {
        if self.closed {
            return Due::NotBefore(None);
        }
        if let Some(at) = self.not_before.filter(|&at| now < at) {
            return Due::NotBefore(Some(at));
        }
        let after = |age: Duration, then: Due| match self.since + age {
            at if now < at => Due::NotBefore(Some(at)),
            _ => then,
        };
        match self.policy {
            SplicePolicy::Never => Due::NotBefore(None),
            SplicePolicy::Now => Due::Splice,
            SplicePolicy::AfterBytes(n) if bytes < n => Due::NotBefore(None),
            SplicePolicy::AfterBytes(_) => Due::Splice,
            SplicePolicy::AfterTime(age) => after(age, Due::Splice),
            SplicePolicy::Auto if self.long || bytes >= AUTO_BYTES => Due::Advise,
            SplicePolicy::Auto => after(AUTO_AGE, Due::Advise),
        }
    }

    /// Waits this long, as the advisor said.
    pub(crate) fn wait(&mut self, now: Instant, again: Duration) {
        self.not_before = Some(now + again);
    }

    /// Asks the advisor at once: the legs are known well enough.
    pub(crate) fn advise_now(&mut self) {
        self.long = true;
        self.not_before = None;
    }

    /// Notes a failed attempt. After a lasting failure there is no other one, except on request.
    pub(crate) fn refused(&mut self, now: Instant, passing: bool) {
        self.closed |= !passing;
        self.not_before = Some(now + self.retry);
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_policy_has_its_moment() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let due = |policy: &str, ms, bytes| Gate::new(policy.parse().unwrap(), start).due(at(ms), bytes);
        assert_eq!(due("now", 0, 0), Due::Splice);
        assert_eq!(due("never", 1 << 40, u64::MAX), Due::NotBefore(None));
        assert_eq!(due("after=1000", 1 << 30, 999), Due::NotBefore(None));
        assert_eq!(due("after=1000", 0, 1000), Due::Splice);
        assert_eq!(due("after=5ms", 4, 0), Due::NotBefore(Some(at(5))));
        assert_eq!(due("after=5ms", 5, 0), Due::Splice);
        assert_eq!(due("auto", 0, 0), Due::NotBefore(Some(at(100))));
        assert_eq!(due("auto", 0, AUTO_BYTES), Due::Advise);
        assert_eq!(due("auto", 100, 0), Due::Advise);
        let long = |policy: &str| Gate::new(policy.parse().unwrap(), start).of_length(Some(1));
        assert_eq!(long("auto").due(start, 0), Due::Advise);
        assert_eq!(long("never").due(start, 0), Due::NotBefore(None));
        assert!(long("auto").is_urgent() && !long("never").is_urgent());
        assert_eq!(long("after=5ms").due(start, 0), Due::NotBefore(Some(at(5))));
        let mut known = Gate::new(SplicePolicy::Auto, start);
        known.wait(start, LAST_RETRY);
        known.advise_now();
        assert_eq!(known.due(start, 0), Due::Advise);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_grow_and_end_where_nothing_will_change() {
        let start = Instant::now();
        let mut gate = Gate::new(SplicePolicy::Now, start);
        gate.refused(start, true);
        assert_eq!(gate.due(start, 0), Due::NotBefore(Some(start + FIRST_RETRY)));
        gate.refused(start, true);
        assert_eq!(gate.due(start, 0), Due::NotBefore(Some(start + FIRST_RETRY * 2)));
        assert_eq!(gate.due(start + FIRST_RETRY * 2, 0), Due::Splice);
        gate.refused(start, false);
        assert_eq!(gate.due(start + LAST_RETRY * 9, 0), Due::NotBefore(None));
    }
}
