//! Counts events of this process.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use longsplice_core::reason::RelayReason;
use parking_lot::Mutex;

use crate::{
    api::Trap,
    api::{Counters, TransitionTimes},
};

/// Number of switches that the quantiles cover.
const SAMPLES: usize = 4096;

/// Counts events.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Outcome of a spliced flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum End {
    Closed,
    Reset,
    Idle,
    Admin,
}

longsplice_core::named!(End);

/// Holds the last durations, up to `SAMPLES`.
#[derive(Debug, Default)]
pub(crate) struct Times(Mutex<(Vec<u64>, usize)>);

impl Times {
    pub(crate) fn add(&self, time: Duration) {
        let mut ring = self.0.lock();
        let (samples, next) = &mut *ring;
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if samples.len() < SAMPLES {
            samples.push(ns);
        } else {
            samples[*next] = ns;
        }
        *next = (*next + 1) % SAMPLES;
    }

    fn quantiles(&self) -> TransitionTimes {
        let mut samples = self.0.lock().0.clone();
        samples.sort_unstable();
        let at = |percent: usize| samples.get(samples.len() * percent / 100).copied().unwrap_or(0);
        TransitionTimes {
            samples: samples.len() as u32,
            median_ns: at(50),
            p99_ns: at(99),
        }
    }
}

/// Holds all counters.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) accepted: Count,
    pub(crate) spliced: Count,
    pub(crate) detached: Count,
    pub(crate) unspliced: Count,
    pub(crate) captured: Count,
    pub(crate) adopted: Count,
    pub(crate) relay_bytes: Count,
    pub(crate) to_dormant: Times,
    pub(crate) to_detached: Times,
    pub(crate) rebuild: Times,
    pub(crate) take_over: Times,
    returned: Mutex<BTreeMap<String, u64>>,
    relayed: Mutex<BTreeMap<RelayReason, u64>>,
    ended: Mutex<BTreeMap<End, u64>>,
}

impl Stats {
    /// Counts a pair that ended, or is done for its caller, without ever having been spliced.
    pub(crate) fn relayed(&self, reason: RelayReason) {
        *self.relayed.lock().entry(reason).or_default() += 1;
    }

    /// Counts a spliced pair that came back.
    pub(crate) fn returned(&self, why: Trap) {
        let name = why.as_str().to_owned();
        *self.returned.lock().entry(name).or_default() += 1;
    }

    /// Counts a spliced flow that ended.
    pub(crate) fn ended(&self, how: End) {
        *self.ended.lock().entry(how).or_default() += 1;
    }

    /// Returns the counters for `status`; `segments` are the kernel half's.
    pub(crate) fn snapshot(&self, segments: BTreeMap<String, u64>) -> Counters {
        let relayed = self.relayed.lock();
        let ended = self.ended.lock();
        let returned = self.returned.lock();
        Counters {
            accepted_total: self.accepted.get(),
            spliced_total: self.spliced.get(),
            detached_total: self.detached.get(),
            resumed_total: self.unspliced.get(),
            captured_total: self.captured.get(),
            unsplices_total: returned.clone(),
            adopted_total: self.adopted.get(),
            flows_ended_total: ended
                .iter()
                .map(|(how, n)| (how.as_str().to_owned(), *n))
                .collect(),
            relayed_total: relayed.values().sum(),
            relayed_reasons: relayed.iter().map(|(why, n)| (why.to_string(), *n)).collect(),
            relay_bytes_total: self.relay_bytes.get(),
            segments,
            transition_to_dormant: self.to_dormant.quantiles(),
            transition_to_detached: self.to_detached.quantiles(),
            rebuild: self.rebuild.quantiles(),
            take_over: self.take_over.quantiles(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_last_samples() {
        let times = Times::default();
        assert_eq!(times.quantiles().samples, 0);
        for ns in 0..2 * SAMPLES as u64 {
            times.add(Duration::from_nanos(ns));
        }
        let q = times.quantiles();
        assert_eq!(q.samples, SAMPLES as u32);
        assert_eq!(q.median_ns, SAMPLES as u64 * 3 / 2);
    }
}
