//! Keeps transfers to a rate.

use std::thread;
use std::time::{Duration, Instant};

/// Lowest piece of a paced transfer, in bytes. By smaller ones, a thousand slow transfers would keep the processors busy with
/// their waking alone.
const LEAST_PIECE: u64 = 16 << 10;

/// Waits for as long as a number of bytes takes at a rate.
#[derive(Debug)]
pub(super) struct Pacer {
    start: Instant,
    /// Number of bytes that had been moved at the start.
    done: u64,
    /// Rate in byte/s.
    rate: Option<u64>,
}

impl Pacer {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Pacer {
            start: Instant::now(),
            done: 0,
            rate: rate.filter(|rate| *rate > 0),
        }
    }

    /// Returns the number of bytes that may be moved in one go: 10 ms worth of the rate or [`LEAST_PIECE`], at most `most`.
    pub(super) fn piece(&self, most: usize) -> usize {
        let smooth = self.rate.map(|rate| (rate / 100).max(LEAST_PIECE));
        let smooth = smooth.and_then(|smooth| usize::try_from(smooth).ok());
        smooth.unwrap_or(most).clamp(1, most.max(1))
    }

    /// Sleeps until `done` bytes are due. Returns true if it slept.
    pub(super) fn keep(&self, done: u64) -> bool {
        let Some(rate) = self.rate else { return false };
        let due = self.start + Duration::from_secs_f64((done - self.done) as f64 / rate as f64);
        let wait = due.saturating_duration_since(Instant::now());
        thread::sleep(wait);
        !wait.is_zero()
    }

    /// Starts over at `done` bytes, after a pause: otherwise the bytes due in the pause would move in one burst.
    pub(super) fn start_over(&mut self, done: u64) {
        self.start = Instant::now();
        self.done = done;
    }
}
