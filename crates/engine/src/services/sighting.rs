//! Tells which of the flows that a process remembers have no records any more: those that walks over all records miss.

/// Mark of a remembered flow: whether the last walk saw it. It is small, as there may be a million.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    /// Parity of the last walk that has dealt with it: parities alternate from walk to walk.
    walk: bool,
    /// True if that walk did not see it.
    missed: bool,
}

impl Sighting {
    /// Returns the mark of a flow that is seen in this walk.
    pub(crate) fn new(walk: bool) -> Sighting {
        Sighting { walk, missed: false }
    }

    /// Ends a walk for this flow. Returns true if it is gone: records change during a walk, so two walks in a row must have
    /// missed it.
    pub(crate) fn is_gone_after(&mut self, walk: bool) -> bool {
        if self.walk == walk {
            return false;
        }
        self.walk = walk;
        std::mem::replace(&mut self.missed, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_walks_in_a_row_must_miss_a_flow() {
        let mut sighting = Sighting::new(false);
        assert!(!sighting.is_gone_after(false));
        assert!(!sighting.is_gone_after(true), "missed once");
        sighting = Sighting::new(false);
        assert!(!sighting.is_gone_after(false), "seen again");
        assert!(!sighting.is_gone_after(true));
        assert!(sighting.is_gone_after(false));
    }
}
