//! Allocates serial numbers of flows: they wrap, and one that is in use is not given out.

use std::collections::BTreeSet;

/// Numbers that are reserved in the pinned map at once: a successor begins after the last block.
const BLOCK: u32 = 4096;

/// Numbers that are checked for use at once: each check walks over all records.
const STRETCH: u32 = 1 << 24;

/// Number of checked numbers below which the next walk for another purpose is asked to check more.
const SOON: u32 = STRETCH / 2;

/// Task that must be done before a number can be given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Write to the map that a successor begins here.
    Reserve(u32),
    /// Look for records that use the next numbers.
    Look,
}

/// Holds the next number, and the numbers in use.
#[derive(Debug)]
pub(crate) struct Serials {
    next: u32,
    /// End of the numbers that no successor gives out.
    reserved: u32,
    /// End of the numbers that are checked: `taken` has those in use below it.
    known: u32,
    /// End of the numbers that a walk is checking.
    looking: u32,
    taken: BTreeSet<u32>,
}

/// Returns true if a number is among those from `from` up to `to`.
fn is_between(serial: u32, from: u32, to: u32) -> bool {
    serial.wrapping_sub(from) < to.wrapping_sub(from)
}

/// Returns the first number of a successor that starts while a process of its instance still gives out numbers, of which
/// `next` is not reserved yet.
pub(crate) fn of_successor(next: u32) -> u32 {
    next.wrapping_add(STRETCH).max(1)
}

impl Serials {
    /// Begins with `first`.
    pub(crate) fn new(first: u32) -> Serials {
        Serials {
            next: first,
            reserved: first,
            known: first,
            looking: first,
            taken: BTreeSet::new(),
        }
    }

    /// Gives out a number that is not in use and is not 0, or returns the task to do first.
    pub(crate) fn next(&mut self) -> Result<u32, Due> {
        loop {
            if self.next == self.known {
                return Err(Due::Look);
            }
            if self.next == self.reserved {
                self.reserved = self.reserved.wrapping_add(BLOCK);
                return Err(Due::Reserve(self.reserved));
            }
            let serial = self.next;
            self.next = serial.wrapping_add(1);
            if !self.taken.remove(&serial) && serial != 0 {
                return Ok(serial);
            }
        }
    }

    /// Returns true if a number was given out so lately that it cannot have been given out again.
    pub(crate) fn is_recent(&self, serial: u32) -> bool {
        self.next.wrapping_sub(serial) as i32 > 0
    }

    /// Returns true if a walk over all records should report those in use.
    pub(crate) fn wants_look(&self) -> bool {
        self.known.wrapping_sub(self.next) < SOON
    }

    /// Begins a walk, and returns the end of the numbers to check. Report numbers in use to [`Serials::note`] from now
    /// on.
    pub(crate) fn begin_look(&mut self) -> u32 {
        self.looking = self.next.wrapping_add(STRETCH);
        self.looking
    }

    /// Notes that a number is in use.
    pub(crate) fn note(&mut self, serial: u32) {
        if is_between(serial, self.next, self.looking) {
            self.taken.insert(serial);
        }
    }

    /// Ends a walk up to there, which has met every record that was there when it began. Another walk may have gone
    /// further.
    pub(crate) fn end_look(&mut self, to: u32) {
        if is_between(self.known, self.next, to) {
            self.known = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out a number, with a look at these numbers in use if one is due.
    fn next(serials: &mut Serials, in_use: &[u32]) -> u32 {
        loop {
            match serials.next() {
                Ok(serial) => return serial,
                Err(Due::Reserve(_)) => {}
                Err(Due::Look) => {
                    let to = serials.begin_look();
                    in_use.iter().for_each(|&serial| serials.note(serial));
                    serials.end_look(to);
                }
            }
        }
    }

    #[test]
    fn what_is_in_use_is_left_out() {
        let start = u32::MAX - 2;
        let in_use = [u32::MAX - 1, 1, 2, 4, start.wrapping_sub(1)];
        let mut serials = Serials::new(start);
        let given: Vec<u32> = (0..5).map(|_| next(&mut serials, &in_use)).collect();
        assert_eq!(given, [start, u32::MAX, 3, 5, 6]);
        assert!(serials.is_recent(start) && serials.is_recent(6) && !serials.is_recent(7));
        // A number from before the wrap that comes to be in use later is skipped, too.
        serials.note(7);
        serials.note(5);
        assert_eq!((next(&mut serials, &[]), next(&mut serials, &[])), (8, 9));
    }

    #[test]
    fn each_stretch_is_looked_at_before_its_first_number() {
        let mut serials = Serials::new(1);
        assert_eq!(next(&mut serials, &[]), 1);
        assert!(!serials.wants_look());
        serials.next = serials.known.wrapping_sub(SOON).wrapping_add(1);
        serials.reserved = serials.next.wrapping_add(1);
        assert!(serials.wants_look());
        let later = serials.known.wrapping_add(5);
        // Noted by a walk, or by a registration during the walk.
        let to = serials.begin_look();
        serials.note(later);
        serials.end_look(to);
        assert!(!serials.wants_look());
        serials.next = later;
        assert_eq!(next(&mut serials, &[]), later.wrapping_add(1));
        let end = serials.known;
        serials.next = end;
        assert_eq!(serials.next(), Err(Due::Look));
        assert_eq!(next(&mut serials, &[end, end + 1]), end + 2);
    }

    #[test]
    fn a_successor_begins_behind_all_that_was_given_out() {
        let mut serials = Serials::new(100);
        let mut reserved = 100;
        let to = serials.begin_look();
        serials.end_look(to);
        for _ in 0..10_000 {
            match serials.next() {
                Ok(serial) => assert!(serial < reserved),
                Err(Due::Reserve(to)) => reserved = to,
                Err(Due::Look) => unreachable!("all are known"),
            }
        }
        assert_eq!(reserved, 100 + 3 * BLOCK);
    }
}
