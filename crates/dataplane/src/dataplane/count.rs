//! Counts the directions of flows that have records.

use parking_lot::Mutex;

/// Counts the directions that have records. The number may be too high: the kernel half removes some itself, which the next walk over
/// all flows finds.
#[derive(Debug, Default)]
pub(super) struct Count(Mutex<Directions>);

#[derive(Debug, Default)]
struct Directions {
    present: u32,
    /// Number of those ever added, modulo 2^32.
    added: u32,
}

/// Beginning of a walk over all flows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walk {
    added: u32,
}

impl Count {
    pub(super) fn get(&self) -> u32 {
        self.0.lock().present
    }

    pub(super) fn add(&self, added: u32) {
        let mut directions = self.0.lock();
        directions.present += added;
        directions.added = directions.added.wrapping_add(added);
    }

    pub(super) fn remove(&self, gone: u32) {
        let mut directions = self.0.lock();
        directions.present = directions.present.saturating_sub(gone);
    }

    pub(super) fn walk(&self) -> Walk {
        Walk {
            added: self.0.lock().added,
        }
    }

    /// Ends a walk that has found so many. It may have missed those that were added meanwhile.
    pub(super) fn found(&self, walk: Walk, found: u32) {
        let mut directions = self.0.lock();
        directions.present = found + directions.added.wrapping_sub(walk.added);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_corrects_the_count_and_forgets_none_that_is_added_meanwhile() {
        let count = Count::default();
        count.add(6);
        let walk = count.walk();
        count.found(walk, 2);
        assert_eq!(count.get(), 2);

        let walk = count.walk();
        count.add(2);
        count.remove(1);
        count.found(walk, 2);
        assert_eq!(
            count.get(),
            4,
            "those of the walk, and those that it may have missed"
        );
    }
}
