//! Drop-tail queue in front of a link with a rate, limited in bytes or packets.

use std::collections::VecDeque;

use crate::clock::Nanos;
use crate::link::{Direction, Queue};

/// Packets that wait or are being sent.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    /// Rate in bit/s; without one no packet waits.
    rate: Option<u64>,
    limit: Queue,
    /// Time at which the last admitted packet has been sent.
    free_at: Nanos,
    /// Departure time and length of each packet.
    waiting: VecDeque<(Nanos, u64)>,
    bytes: u64,
}

impl Tail {
    pub(super) fn new(spec: &Direction) -> Self {
        Tail {
            rate: spec.rate,
            limit: spec.queue,
            free_at: 0,
            waiting: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Admits a packet of `len` bytes at `now`. Returns the time at which its last bit is on the wire, or `None` when
    /// there is no room.
    pub(super) fn admit(&mut self, now: Nanos, len: usize) -> Option<Nanos> {
        let Some(rate) = self.rate else {
            return Some(now);
        };
        while let Some(&(_, gone)) = self.waiting.front().filter(|(left, _)| *left <= now) {
            self.waiting.pop_front();
            self.bytes -= gone;
        }
        let len = len as u64;
        let room = match self.limit {
            Queue::Bytes(limit) => self.bytes + len <= limit,
            Queue::Packets(limit) => self.waiting.len() < limit,
        };
        if !room {
            return None;
        }
        let duration = u128::from(len * 8) * 1_000_000_000 / u128::from(rate.max(1));
        let duration = Nanos::try_from(duration).unwrap_or(Nanos::MAX);
        self.free_at = self.free_at.max(now).saturating_add(duration);
        self.waiting.push_back((self.free_at, len));
        self.bytes += len;
        Some(self.free_at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        assert_eq!(tail.admit(0, 1500), Some(MS));
        assert_eq!(tail.admit(0, 1500), Some(2 * MS));
        assert_eq!(tail.admit(10 * MS, 750), Some(10 * MS + MS / 2));
    }

    #[test]
    fn the_tail_is_dropped_and_room_comes_back() {
        for limit in [Queue::Packets(2), Queue::Bytes(3000), Queue::Bytes(4499)] {
            let mut tail = tail(limit);
            assert_eq!(tail.admit(0, 1500), Some(MS));
            assert_eq!(tail.admit(0, 1500), Some(2 * MS));
            assert_eq!(tail.admit(0, 1500), None, "{limit:?}");
            assert_eq!(
                tail.admit(MS - 1, 1500),
                None,
                "{limit:?}: the first is still being sent"
            );
            assert_eq!(tail.admit(MS, 1500), Some(3 * MS), "{limit:?}");
            assert_eq!(tail.admit(MS, 1500), None, "{limit:?}");
        }
    }

    #[test]
    fn a_small_packet_fits_where_a_large_one_does_not() {
        let mut tail = tail(Queue::Bytes(1600));
        assert!(tail.admit(0, 1500).is_some());
        assert!(tail.admit(0, 101).is_none());
        assert!(tail.admit(0, 100).is_some());
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
                let leaves = tail.admit(now, len);
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
