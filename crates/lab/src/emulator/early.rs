//! Random early detection (RED): drops packets at random before a queue is full (Floyd and Jacobson, 1993), with the gentle
//! slope between the upper threshold and twice that.

use crate::clock::Nanos;
use crate::link::Red;
use crate::random::Rng;

/// Weight of a new sample in the average length of the queue, as Floyd and Jacobson recommend.
const WEIGHT: f64 = 0.002;

/// Purpose of the random sequence: those below it belong to the other impairments.
const PURPOSE: u64 = 6;

/// State of RED in front of one queue.
#[derive(Debug, Clone)]
pub(super) struct Early {
    red: Red,
    /// Average length of the queue, as a share of its limit.
    average: f64,
    /// Packets admitted since the last drop, while the average is above the lower threshold.
    since_drop: f64,
    /// Time that a full packet takes at the rate, at least 1 ns: an idle queue ages by one sample in each.
    packet_time: Nanos,
    rng: Rng,
}

impl Early {
    pub(super) fn new(red: Red, packet_time: Nanos, seed: u64) -> Self {
        Early {
            red,
            average: 0.0,
            since_drop: 0.0,
            packet_time: packet_time.max(1),
            rng: Rng::stream(seed, PURPOSE),
        }
    }

    /// Decides on a packet that finds the queue filled to the share `filled`, or empty for the time `idle`. Returns true
    /// if it is dropped. Each packet draws one number.
    pub(super) fn drops(&mut self, filled: f64, idle: Nanos) -> bool {
        let drawn = self.rng.share();
        if filled > 0.0 {
            self.average += WEIGHT * (filled - self.average);
        } else {
            let missed = idle as f64 / self.packet_time as f64;
            self.average *= (1.0 - WEIGHT).powf(missed);
        }
        let Some(probability) = self.probability() else {
            self.since_drop = 0.0;
            return false;
        };
        // Spread the drops evenly: the probability grows with the packets since the last one.
        let left = 1.0 - self.since_drop * probability;
        let dropped = left <= 0.0 || drawn < probability / left;
        self.since_drop = if dropped { 0.0 } else { self.since_drop + 1.0 };
        dropped
    }

    /// Returns the probability of a drop at the present average; `None` below the lower threshold.
    fn probability(&self) -> Option<f64> {
        let Red {
            min,
            max,
            probability,
        } = self.red;
        if self.average < min {
            None
        } else if self.average < max {
            Some(probability * (self.average - min) / (max - min))
        } else if self.average < 2.0 * max {
            Some(probability + (1.0 - probability) * (self.average - max) / max)
        } else {
            Some(1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Red = Red {
        min: 0.1,
        max: 0.3,
        probability: 0.1,
    };

    /// Returns the share of packets that are dropped while the queue stays filled to `filled`, after the average has
    /// settled.
    fn dropped(filled: f64) -> f64 {
        let mut early = Early::new(RED, 1_000_000, 1);
        (0..5000).for_each(|_| {
            early.drops(filled, 0);
        });
        let drops = (0..20_000).filter(|_| early.drops(filled, 0)).count();
        drops as f64 / 20_000.0
    }

    #[test]
    fn the_share_of_drops_follows_the_average() {
        assert_eq!(dropped(0.09), 0.0);
        // Even spacing doubles the share of a small probability: the gap is uniform between 1 and 1 / p packets.
        let (middle, upper) = (dropped(0.2), dropped(0.299));
        assert!((0.08..0.11).contains(&middle), "{middle}");
        assert!((0.16..0.2).contains(&upper), "{upper}");
        assert!(dropped(0.45) > 0.5, "the gentle slope is steep");
        assert_eq!(dropped(0.7), 1.0);
    }

    #[test]
    fn a_burst_passes_and_an_idle_time_is_forgotten() {
        let mut early = Early::new(RED, 1_000_000, 1);
        let burst = (0..40).filter(|_| early.drops(0.9, 0)).count();
        assert_eq!(burst, 0, "the average is still small");
        (0..5000).for_each(|_| {
            early.drops(0.9, 0);
        });
        assert!(early.drops(0.9, 0));
        assert!(!early.drops(0.0, 10_000_000_000), "10,000 packets have not come");
    }

    #[test]
    fn drops_repeat_with_the_seed() {
        let fates = |seed| {
            let mut early = Early::new(RED, 1_000_000, seed);
            (0..5000).map(|_| early.drops(0.25, 0)).collect::<Vec<_>>()
        };
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
    }
}
