//! Decides when a relayed pair is spliced: by the listener's policy, and the outcome of earlier attempts.

use std::{ops::RangeInclusive, time::Duration};

use longsplice_core::policy::SplicePolicy;
use tokio::time::Instant;

/// Bytes after which `auto` asks the advisor if the caller does not say from how many on a splice pays.
const AUTO_BYTES: u64 = 256 << 10;

/// Age after which `auto` asks the advisor whatever has passed: an idle connection costs no processor time, but two sockets.
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
    /// Bytes after which `auto` asks the advisor.
    least: u64,
    rest: Option<Rest>,
}

/// Last look at a pair that may rest.
#[derive(Debug, Clone, Copy)]
struct Rest {
    /// Sum of what both sockets had counted.
    activity: u64,
    /// Wait that followed.
    wait: Duration,
    /// Bytes that had been relayed, if the pair rests: a further one ends the wait.
    rests_at: Option<u64>,
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
            least: AUTO_BYTES,
            rest: None,
        }
    }

    /// Makes `auto` ask the advisor after so many bytes; `None`: after 256 KiB.
    pub(crate) fn asking_after(self, least: Option<u64>) -> Gate {
        Gate {
            least: least.unwrap_or(AUTO_BYTES),
            ..self
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
        let rests_at = self.rest.and_then(|rest| rest.rests_at);
        let is_roused = rests_at.is_some_and(|before| before != bytes);
        if let Some(at) = self.not_before.filter(|&at| now < at && !is_roused) {
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
            SplicePolicy::Auto if self.long || bytes >= self.least => Due::Advise,
            SplicePolicy::Auto => after(AUTO_AGE, Due::Advise),
        }
    }

    /// Waits this long, as the advisor said, and returns when that is over.
    pub(crate) fn wait(&mut self, now: Instant, again: Duration) -> Instant {
        *self.not_before.insert(now + again)
    }

    /// Waits as long as the advisor said, the least of `waits`. If nothing has passed since the last time, waits twice as long as
    /// then, up to the longest of them: a look costs some system calls, and thousands of pairs may rest. The first byte ends such
    /// a wait.
    /// `activity` is a sum of what both sockets count, `bytes` the relayed bytes that [`Gate::due`] is asked with.
    pub(crate) fn rest(
        &mut self,
        now: Instant,
        waits: RangeInclusive<Duration>,
        activity: u64,
        bytes: u64,
    ) -> Instant {
        let (least, longest) = waits.into_inner();
        let rests = self.rest.filter(|last| last.activity == activity);
        let wait = rests.map_or(least, |last| (2 * last.wait).min(longest).max(least));
        self.rest = Some(Rest {
            activity,
            wait,
            rests_at: rests.map(|_| bytes),
        });
        self.wait(now, wait)
    }

    /// Asks the advisor at once: the legs are known well enough.
    pub(crate) fn advise_now(&mut self) {
        self.long = true;
        self.not_before = None;
    }

    /// Notes a failed attempt. After a lasting failure there is no other one, except on request.
    pub(crate) fn refused(&mut self, now: Instant, passing: bool) {
        self.closed |= !passing;
        self.rest = None;
        self.not_before = Some(now + self.retry);
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pair_at_rest_is_looked_at_ever_less_often_until_a_byte_passes() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut gate = Gate::new(SplicePolicy::Auto, start);
        let mut now = start + second;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            gate.rest(now, second..=60 * second, 10, 3);
            now += seconds * second;
            assert_eq!(gate.due(now - second / 2, 3), Due::NotBefore(Some(now)));
            assert_eq!(gate.due(now, 3), Due::Advise);
        }
        gate.rest(now, second..=60 * second, 10, 3);
        assert_eq!(gate.due(now, 4), Due::Advise);
        // From then on it is looked at as often as the advisor says, however much passes.
        gate.rest(now, second..=60 * second, 12, 4);
        assert_eq!(gate.due(now, 5), Due::NotBefore(Some(now + second)));
        // A retry has its own time, whatever passes.
        for bytes in [4, 5] {
            gate.rest(now, second..=60 * second, 12, bytes);
        }
        gate.refused(now, true);
        assert_eq!(gate.due(now, 6), Due::NotBefore(Some(now + FIRST_RETRY)));
        // Bytes may leave a socket without any that comes.
        gate.rest(now, second..=60 * second, 13, 4);
        assert_eq!(gate.due(now, 4), Due::NotBefore(Some(now + second)));
    }

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
        let measured = Gate::new(SplicePolicy::Auto, start).asking_after(Some(1000));
        assert_eq!(measured.due(start, 999), Due::NotBefore(Some(at(100))));
        assert_eq!(measured.due(start, 1000), Due::Advise);
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
