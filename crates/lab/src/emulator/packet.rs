//! Packets under way, in the order of their arrival.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::schedule::Nanos;

/// Packet under way on a lane. Packets are ordered by arrival; those that arrive together keep their order.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) arrival: Nanos,
    pub(super) second_copy: bool,
    /// Index of the lane that it is on.
    pub(super) lane: usize,
    /// Longest time that it may have waited at a device before it was taken in: it is delivered late by that much.
    pub(super) waited: Nanos,
    pub(super) frame: Vec<u8>,
}

/// Packets of all lanes.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    heap: BinaryHeap<Reverse<Numbered>>,
    count: u64,
}

impl UnderWay {
    pub(super) fn push(&mut self, packet: Packet) {
        let number = self.count;
        self.count += 1;
        self.heap.push(Reverse(Numbered { packet, number }));
    }

    /// Returns the time of the next arrival.
    pub(super) fn next_arrival(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(next)| next.packet.arrival)
    }

    /// Takes the packet that arrives next, if it is due at `now`.
    pub(super) fn due(&mut self, now: Nanos) -> Option<Packet> {
        let next = self.next_arrival()?;
        let Reverse(next) = if next <= now {
            self.heap.pop()?
        } else {
            return None;
        };
        Some(next.packet)
    }
}

/// Packet with its place among all.
#[derive(Debug)]
struct Numbered {
    packet: Packet,
    number: u64,
}

impl Numbered {
    fn key(&self) -> (Nanos, u64) {
        (self.packet.arrival, self.number)
    }
}

impl PartialEq for Numbered {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Numbered {}

impl PartialOrd for Numbered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Numbered {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_by_arrival_and_then_in_their_order() {
        let mut under_way = UnderWay::default();
        for (lane, arrival) in [(0, 5), (1, 3), (2, 5), (3, 9)] {
            under_way.push(Packet {
                arrival,
                second_copy: false,
                lane,
                waited: 0,
                frame: Vec::new(),
            });
        }
        assert_eq!(under_way.next_arrival(), Some(3));
        let mut due = |now| under_way.due(now).map(|packet| packet.lane);
        assert_eq!(
            [due(5), due(5), due(5), due(5)],
            [Some(1), Some(0), Some(2), None]
        );
        assert_eq!(due(9), Some(3));
    }
}
