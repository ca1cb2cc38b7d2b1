//! Remembers when flows were made, by their serial numbers: a record has no room for it.

use std::collections::VecDeque;

/// Maximum number of moments to keep; beyond it, older ones are thinned out more than younger ones.
const MOMENTS: usize = 4096;

/// Denominator of the exactness: an age may be wrong by four of so many parts of it. Some 2,600 moments are enough for a
/// month then, in ticks of a second.
const EXACTNESS: u32 = 256;

/// Holds moments at which serial numbers were given out, in the order of both.
#[derive(Debug, Clone)]
pub(crate) struct StartTimes {
    /// Time before the first number of this process: its flows' ages begin here.
    start: u32,
    moments: VecDeque<(u32, u32)>,
}

impl StartTimes {
    /// Begins at `now`, in ticks ([`crate::time`]).
    pub(crate) fn new(now: u32) -> StartTimes {
        StartTimes {
            start: now,
            moments: VecDeque::new(),
        }
    }

    /// Notes that this serial number is given out; the numbers grow by one, and wrap.
    pub(crate) fn note(&mut self, serial: u32, now: u32) {
        if self.moments.back().is_some_and(|&(_, at)| at >= now) {
            return;
        }
        if self.moments.len() >= MOMENTS {
            let mut kept = self.start;
            self.moments.retain(|&(_, at)| {
                let keep = at - kept > (now - at) / EXACTNESS;
                kept = if keep { at } else { kept };
                keep
            });
        }
        self.moments.push_back((serial, now));
    }

    /// Returns the time at which it was given out, in ticks; never too early, and hardly too late if moments were thinned
    /// out.
    pub(crate) fn of(&self, serial: u32) -> u32 {
        let is_later = |&(first, _): &(u32, u32)| serial.wrapping_sub(first) as i32 >= 0;
        let after = self.moments.partition_point(is_later);
        match after.checked_sub(1) {
            Some(i) => self.moments[i].1,
            None => self.start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_has_the_moment_of_its_number() {
        let mut start_times = StartTimes::new(100);
        for (serial, now) in [(u32::MAX - 1, 110), (u32::MAX, 110), (0, 110), (1, 112), (2, 113)] {
            start_times.note(serial, now);
        }
        let ages = [u32::MAX - 9, u32::MAX - 1, 0, 1, 2, 3].map(|serial| start_times.of(serial));
        assert_eq!(ages, [100, 110, 110, 112, 113, 113]);
    }

    #[test]
    fn it_forgets_what_is_too_much_and_stays_right_about_the_rest() {
        let mut start_times = StartTimes::new(0);
        for now in 1..100_000 {
            start_times.note(now * 10, now);
        }
        assert!(start_times.moments.len() <= MOMENTS);
        for now in (1..100_000).step_by(777) {
            let found = start_times.of(now * 10 + 5);
            let age = 100_000 - now;
            assert!(
                found <= now && now - found <= 4 * (age / EXACTNESS + 1),
                "{now} {found}"
            );
        }
    }
}
