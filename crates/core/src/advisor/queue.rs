//! Watches the round-trip time of a leg for a queue that does not empty.

use std::time::Duration;

/// Shortest delay that counts as a queue: processors that are shared delay acknowledgements by as much.
const LEAST: Duration = Duration::from_millis(3);

/// Queue that stands on a leg: it has not been empty for a time (RFC 8289 section 3.1, with the smoothed round-trip time
/// in place of single packets).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandingQueue {
    /// Highest delay by it.
    pub highest: Duration,
    /// Time for which it stands.
    pub time: Duration,
}

/// Watches a leg: keeps its lowest round-trip time, and when the present queue began.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueWatch {
    lowest: Option<Duration>,
    /// Age of the connection at which the queue was first seen, and the highest delay since.
    queue: Option<(Duration, Duration)>,
}

impl QueueWatch {
    /// Notes a round-trip time at an age of the connection: the smoothed one, and the lowest as far as the kernel knows
    /// it. A queue is longer than a quarter of the round trip of the whole `path`, so that it feeds the path's bottleneck
    /// while a sender at its far end halves its rate. Returns the queue, if there is one.
    pub fn note(
        &mut self,
        age: Duration,
        rtt: Duration,
        min_rtt: Option<Duration>,
        path: Duration,
    ) -> Option<StandingQueue> {
        if rtt.is_zero() {
            return None;
        }
        let known = [self.lowest, min_rtt, Some(rtt)].into_iter().flatten().min();
        self.lowest = known;
        let delay = rtt.saturating_sub(known.unwrap_or(rtt));
        if delay < (path / 4).max(LEAST) {
            self.queue = None;
            return None;
        }
        let (began, highest) = self.queue.unwrap_or((age, delay));
        let highest = highest.max(delay);
        self.queue = Some((began, highest));
        Some(StandingQueue {
            highest,
            time: age.saturating_sub(began),
        })
    }

    /// Forgets the queue: the leg rests. Its round-trip time is still that of its last bytes.
    pub fn rest(&mut self) {
        self.queue = None;
    }

    /// Returns the lowest round-trip time so far.
    pub fn lowest(&self) -> Option<Duration> {
        self.lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_queue_stands_from_when_it_was_first_seen_until_it_is_short_once() {
        let mut watch = QueueWatch::default();
        let mut at = |age, rtt| watch.note(ms(age), ms(rtt), None, ms(140));
        assert_eq!(at(100, 80), None);
        assert_eq!(at(300, 110), None, "a quarter of the path is 35 ms");
        let seen = |highest, time| {
            Some(StandingQueue {
                highest: ms(highest),
                time: ms(time),
            })
        };
        assert_eq!(at(500, 120), seen(40, 0));
        assert_eq!(at(900, 180), seen(100, 400));
        assert_eq!(at(1_500, 130), seen(100, 1_000));
        assert_eq!(at(1_700, 90), None);
        assert_eq!(at(2_000, 130), seen(50, 0));
        assert_eq!(watch.lowest(), Some(ms(80)));
        watch.rest();
        let next = watch.note(ms(9_000), ms(130), None, ms(140));
        assert_eq!(next, seen(50, 0), "it did not stand meanwhile");
    }

    #[test]
    fn the_kernels_lowest_time_counts_and_no_time_does_not() {
        let mut watch = QueueWatch::default();
        assert_eq!(watch.note(ms(1), Duration::ZERO, None, ms(40)), None);
        assert_eq!(watch.lowest(), None);
        let queue = watch.note(ms(2), ms(60), Some(ms(20)), ms(40));
        assert_eq!(queue.map(|queue| queue.highest), Some(ms(40)));
    }

    #[test]
    fn extreme_times_do_not_panic() {
        let mut watch = QueueWatch::default();
        for time in [Duration::MAX, Duration::ZERO, ms(1), Duration::MAX] {
            let _ = watch.note(time, time, Some(time), time);
        }
    }
}
