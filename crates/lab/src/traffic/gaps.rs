//! Measures the gaps between reads.

use std::time::Duration;

use super::outcome::Gap;

/// Length above which gaps are listed one by one.
pub const LONG_GAP: Duration = Duration::from_millis(1);

/// Largest number of listed gaps: those of a slow connection would fill the memory.
const MAX_LISTED: usize = 65_536;

/// Measures the time between successive reads. The time before the first one does not count.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    last_ns: Option<u64>,
    longest_ns: u64,
    listed: Vec<Gap>,
}

impl Gaps {
    /// Notes that data came at `now_ns`, after `offset` bytes.
    pub(super) fn read(&mut self, now_ns: u64, offset: u64) {
        if let Some(last_ns) = self.last_ns {
            let length_ns = now_ns.saturating_sub(last_ns);
            self.longest_ns = self.longest_ns.max(length_ns);
            if u128::from(length_ns) > LONG_GAP.as_nanos() && self.listed.len() < MAX_LISTED {
                self.listed.push(Gap {
                    end_ns: now_ns,
                    length_ns,
                    offset,
                });
            }
        }
        self.last_ns = Some(now_ns);
    }

    /// Ends a pause of the reader at `now_ns`: a gap begins there at the earliest.
    pub(super) fn resume(&mut self, now_ns: u64) {
        self.last_ns = Some(now_ns);
    }

    /// Notes that the other end was not to send before `ns`: a gap begins there at the earliest.
    pub(super) fn not_before(&mut self, ns: u64) {
        self.last_ns = self.last_ns.map(|last_ns| last_ns.max(ns));
    }

    /// Returns the longest gap in microseconds, and the list of the long ones.
    pub(super) fn finish(self) -> (u64, Vec<Gap>) {
        (self.longest_ns / 1000, self.listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_begins_when_the_other_end_may_send() {
        let mut gaps = Gaps::default();
        gaps.not_before(1_000_000);
        gaps.read(9_000_000, 0);
        gaps.not_before(12_000_000);
        gaps.read(14_000_000, 10);
        gaps.not_before(12_000_000);
        gaps.read(15_000_000, 20);
        assert_eq!(gaps.finish().0, 2000);
    }

    #[test]
    fn the_longest_is_kept_and_long_ones_are_listed() {
        let mut gaps = Gaps::default();
        gaps.read(5_000_000, 0);
        gaps.read(5_900_000, 10);
        gaps.read(8_900_000, 20);
        gaps.resume(50_000_000);
        gaps.read(50_000_500, 30);
        let (longest_us, listed) = gaps.finish();
        assert_eq!(longest_us, 3000);
        assert_eq!(
            listed,
            [Gap {
                end_ns: 8_900_000,
                length_ns: 3_000_000,
                offset: 20
            }]
        );
    }
}
