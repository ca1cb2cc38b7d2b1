//! Queue in front of a link with a rate, limited in bytes, packets or time: drop-tail, or with RED before it is full.

use std::collections::VecDeque;

use super::early::Early;
use crate::clock::Nanos;
use crate::link::{Direction, Queue};

/// Bytes of a full Ethernet frame, whose time at the rate is RED's unit of time.
const FULL_FRAME: u64 = 1514;

/// Packets that wait or are being sent.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    /// Rate in bit/s; without one no packet waits.
    rate: Option<u64>,
    limit: Limit,
    early: Option<Early>,
    /// Time at which the last admitted packet has been sent.
    free_at: Nanos,
    /// Departure time and length of each packet.
    waiting: VecDeque<(Nanos, u64)>,
    bytes: u64,
}

/// Limit in the unit that is counted.
#[derive(Debug, Clone, Copy)]
enum Limit {
    Bytes(u64),
    Packets(usize),
}

/// Answer of the queue to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is admitted, and its last bit is on the wire at this time.
    Sent(Nanos),
    /// There is no room.
    Full,
    /// RED drops it.
    Early,
}

impl Tail {
    pub(super) fn new(spec: &Direction) -> Self {
        let rate = spec.rate.unwrap_or(u64::MAX);
        let limit = match spec.queue {
            Queue::Bytes(bytes) => Limit::Bytes(bytes),
            Queue::Packets(packets) => Limit::Packets(packets),
            Queue::Time(time) => {
                let bytes = time.as_nanos() * u128::from(rate) / 8_000_000_000;
                // A queue that is shorter than a frame would be closed for ever.
                Limit::Bytes(u64::try_from(bytes).unwrap_or(u64::MAX).max(FULL_FRAME))
            }
        };
        let early = |red| Early::new(red, duration(FULL_FRAME, rate), spec.seed);
        Tail {
            rate: spec.rate,
            limit,
            early: spec.red.map(early),
            free_at: 0,
            waiting: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Offers a packet of `len` bytes at `now`.
    pub(super) fn admit(&mut self, now: Nanos, len: usize) -> Admission {
        let Some(rate) = self.rate else {
            return Admission::Sent(now);
        };
        while let Some(&(_, gone)) = self.waiting.front().filter(|(left, _)| *left <= now) {
            self.waiting.pop_front();
            self.bytes -= gone;
        }
        let filled = self.filled();
        let idle = now.saturating_sub(self.free_at);
        if self.early.as_mut().is_some_and(|early| early.drops(filled, idle)) {
            return Admission::Early;
        }
        let len = len as u64;
        let room = match self.limit {
            Limit::Bytes(limit) => self.bytes + len <= limit,
            Limit::Packets(limit) => self.waiting.len() < limit,
        };
        if !room {
            return Admission::Full;
        }
        self.free_at = self.free_at.max(now).saturating_add(duration(len, rate));
        self.waiting.push_back((self.free_at, len));
        self.bytes += len;
        Admission::Sent(self.free_at)
    }

    /// Returns the share of the limit that is taken.
    fn filled(&self) -> f64 {
        match self.limit {
            Limit::Bytes(limit) => self.bytes as f64 / limit as f64,
            Limit::Packets(limit) => self.waiting.len() as f64 / limit as f64,
        }
    }
}

/// Returns the time that so many bytes take at a rate in bit/s.
fn duration(bytes: u64, rate: u64) -> Nanos {
    let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate.max(1));
    Nanos::try_from(ns).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::Admission::{Early, Full, Sent};
    use super::*;
    use crate::link::Red;

    const MS: Nanos = 1_000_000;

    /// Makes a queue in front of 12 Mbit/s, where 1,500 bytes take 1 ms.
    fn tail(limit: Queue) -> Tail {
        Tail::new(&Direction {
            rate: Some(12_000_000),
            queue: limit,
            ..Direction::default()
        })
    }

    #[test]
    fn a_rate_spaces_packets_and_forgets_idle_time() {
        let mut tail = tail(Queue::Packets(1000));
        assert_eq!(tail.admit(0, 1500), Sent(MS));
        assert_eq!(tail.admit(0, 1500), Sent(2 * MS));
        assert_eq!(tail.admit(10 * MS, 750), Sent(10 * MS + MS / 2));
    }

    #[test]
    fn the_tail_is_dropped_and_room_comes_back() {
        for limit in [Queue::Packets(2), Queue::Bytes(3000), Queue::Bytes(4499)] {
            let mut tail = tail(limit);
            assert_eq!(tail.admit(0, 1500), Sent(MS));
            assert_eq!(tail.admit(0, 1500), Sent(2 * MS));
            assert_eq!(tail.admit(0, 1500), Full, "{limit:?}");
            assert_eq!(
                tail.admit(MS - 1, 1500),
                Full,
                "{limit:?}: the first is still being sent"
            );
            assert_eq!(tail.admit(MS, 1500), Sent(3 * MS), "{limit:?}");
            assert_eq!(tail.admit(MS, 1500), Full, "{limit:?}");
        }
    }

    #[test]
    fn a_small_packet_fits_where_a_large_one_does_not() {
        let mut tail = tail(Queue::Bytes(1600));
        assert!(matches!(tail.admit(0, 1500), Sent(_)));
        assert_eq!(tail.admit(0, 101), Full);
        assert!(matches!(tail.admit(0, 100), Sent(_)));
    }

    #[test]
    fn a_time_is_that_many_bytes_at_the_rate() {
        // 2 ms at 12 Mbit/s are 3,000 bytes.
        let mut tail = tail(Queue::Time(Duration::from_millis(2)));
        assert_eq!(
            [0; 3].map(|at| tail.admit(at, 1500)),
            [Sent(MS), Sent(2 * MS), Full]
        );
        let mut short = self::tail(Queue::Time(Duration::from_nanos(1)));
        assert_eq!(short.admit(0, 1500), Sent(MS), "one frame always fits");
    }

    #[test]
    fn red_drops_before_the_queue_is_full_in_each_unit() {
        for queue in [
            Queue::Packets(100),
            Queue::Bytes(150_000),
            Queue::Time(Duration::from_millis(100)),
        ] {
            let mut tail = Tail::new(&Direction {
                rate: Some(12_000_000),
                queue,
                red: Some(Red::default()),
                ..Direction::default()
            });
            // Offer twice the rate for 20 s.
            let answers: Vec<_> = (0..40_000).map(|n| tail.admit(n * MS / 2, 1500)).collect();
            let early = answers.iter().filter(|one| **one == Early).count();
            assert!(early > 10_000, "{queue:?}: {early}");
            let settled = &answers[10_000..];
            assert!(settled.iter().all(|one| *one != Full), "{queue:?}");
            assert!(tail.filled() < 0.7, "{queue:?}");
        }
    }

    proptest! {
        /// Admitted packets leave at the rate and in order; those that wait never exceed the limit, and every packet
        /// that fits is admitted.
        #[test]
        fn exactly_what_fits_is_admitted(
            packets in prop::collection::vec((0..3 * MS, (1..=15usize).prop_map(|hundreds| hundreds * 100)), 1..200),
            limit in (15..200u64).prop_map(|hundreds| hundreds * 100),
        ) {
            let mut tail = tail(Queue::Bytes(limit));
            let (mut now, mut last) = (0, 0);
            let mut waiting: Vec<(Nanos, u64)> = Vec::new();
            for (pause, len) in packets {
                now += pause;
                waiting.retain(|(leaves, _)| *leaves > now);
                let bytes: u64 = waiting.iter().map(|(_, len)| len).sum();
                let leaves = match tail.admit(now, len) {
                    Sent(leaves) => Some(leaves),
                    _ => None,
                };
                prop_assert_eq!(leaves.is_some(), bytes + len as u64 <= limit);
                if let Some(leaves) = leaves {
                    prop_assert_eq!(leaves, now.max(last) + len as u64 * 8 * 1000 / 12);
                    last = leaves;
                    waiting.push((leaves, len as u64));
                }
            }
        }
    }
}
