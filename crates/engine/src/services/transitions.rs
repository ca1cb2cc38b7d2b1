//! Counts pairs on their way to a splice, and times the looks at each.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use longsplice_core::coupling;

/// Divisor of the share of all slots that couplings may take, and the number that they may always take.
const SHARE: usize = 16;
const LEAST: usize = 64;

/// Counts couplings and drains.
#[derive(Debug, Default)]
pub(crate) struct Transitions {
    coupling: AtomicUsize,
    draining: AtomicUsize,
    /// Maximum number of couplings at once: a pair that cannot be coupled keeps a slot and a processor from others.
    most: usize,
}

/// Keeps a pair counted.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Transitions {
    /// Bounds couplings by the number of slots.
    pub(crate) fn new(slots: u32) -> Transitions {
        let slots = usize::try_from(slots).unwrap_or(usize::MAX);
        Transitions {
            coupling: AtomicUsize::new(0),
            draining: AtomicUsize::new(0),
            most: (slots / SHARE).max(LEAST),
        }
    }

    /// Begins a coupling, unless the maximum is under way.
    pub(crate) fn couple(&self) -> Option<UnderWay<'_>> {
        let one_more = |n: usize| (n < self.most).then_some(n + 1);
        let begun = self
            .coupling
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        begun.is_ok().then_some(UnderWay(&self.coupling))
    }

    /// Begins a drain. Drains are bounded by their slots.
    pub(crate) fn drain(&self) -> UnderWay<'_> {
        self.draining.fetch_add(1, Ordering::Relaxed);
        UnderWay(&self.draining)
    }

    /// Returns the least time to wait before the next look at a pair that has been on its way for so long.
    pub(crate) fn soonest_look(&self, elapsed: Duration) -> Duration {
        let under_way = self.coupling.load(Ordering::Relaxed) + self.draining.load(Ordering::Relaxed);
        coupling::soonest_look(elapsed, under_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn couplings_take_a_part_of_the_slots_only() {
        for (slots, most) in [(1, LEAST), (64, LEAST), (4096, 256)] {
            let transitions = Transitions::new(slots);
            let mut begun: Vec<_> = (0..most).map(|_| transitions.couple().unwrap()).collect();
            assert!(transitions.couple().is_none());
            begun.pop();
            assert!(transitions.couple().is_some());
            // Drains are not bounded here.
            let drains: Vec<_> = (0..slots).map(|_| transitions.drain()).collect();
            assert_eq!(drains.len(), slots as usize);
        }
    }
}
