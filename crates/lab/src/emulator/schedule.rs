//! Decides if and when a packet leaves an emulated link. No I/O and no clock: time is an argument.

use super::loss_model::LossModel;
use super::queue::{Admission, Tail};
pub use crate::clock::Nanos;
use crate::link::Direction;

/// Fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// There was no room in the queue.
    Dropped,
    /// RED dropped it before the queue was full.
    DroppedEarly,
    /// The wire lost it.
    Lost,
    /// It arrives.
    Delivered {
        /// Time of its arrival.
        at: Nanos,
        /// True if it is held back, so that later packets may overtake it, or overtakes one by its jitter.
        reordered: bool,
        /// True if it arrives twice, the second time directly after the first.
        duplicated: bool,
        /// Index of the bit that is flipped, modulo the number of bits; `None` leaves it intact.
        corrupted: Option<u64>,
    },
}

/// State of one direction of a link. Its decisions follow from its specification, the seed included, and from the
/// arrival times and lengths of packets; the random events of the n-th packet follow from the seed and n alone, but that a
/// quiet time ends a burst of losses.
#[derive(Debug, Clone)]
pub struct Schedule {
    spec: Direction,
    model: LossModel,
    tail: Tail,
    /// Latest arrival of a packet that was not held back.
    latest: Nanos,
}

impl Schedule {
    /// Creates an idle link.
    pub fn new(spec: Direction) -> Self {
        Schedule {
            model: LossModel::new(&spec),
            tail: Tail::new(&spec),
            spec,
            latest: 0,
        }
    }

    /// Decides the fate of a packet of `len` bytes that comes to the link at `now`. `now` never goes back.
    pub fn offer(&mut self, now: Nanos, len: usize) -> Fate {
        let events = self.model.draw(now);
        let sent = match self.tail.admit(now, len) {
            Admission::Sent(sent) => sent,
            Admission::Full => return Fate::Dropped,
            Admission::Early => return Fate::DroppedEarly,
        };
        if events.lost {
            return Fate::Lost;
        }
        // A packet arrives after it was sent: the conversion from a negative number gives 0.
        let delay = (nanos(self.spec.delay) as f64 + events.jitter) as Nanos;
        let mut at = sent.saturating_add(delay.min(MOST));
        let overtakes = self.spec.jitter_reorders && at < self.latest;
        if !self.spec.jitter_reorders {
            at = at.max(self.latest);
        }
        if events.held_back {
            at = at.saturating_add(nanos(self.spec.reorder_delay));
        } else {
            self.latest = self.latest.max(at);
        }
        Fate::Delivered {
            at,
            reordered: events.held_back || overtakes,
            duplicated: events.duplicated,
            corrupted: events.corrupted,
        }
    }

    /// Returns the specification that it was made from.
    pub fn spec(&self) -> &Direction {
        &self.spec
    }
}

/// Longest delay, some 73 years: sums of a few of them still fit.
const MOST: Nanos = Nanos::MAX / 8;

fn nanos(duration: std::time::Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).map_or(MOST, |ns| ns.min(MOST))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::link::{Distribution, Queue};

    const MS: Nanos = 1_000_000;

    fn plain(at: Nanos) -> Fate {
        Fate::Delivered {
            at,
            reordered: false,
            duplicated: false,
            corrupted: None,
        }
    }

    /// Returns the fates of `count` packets of 1,500 bytes that come 1 ms apart.
    fn fates(spec: &Direction, count: u64) -> Vec<Fate> {
        let mut schedule = Schedule::new(spec.clone());
        (0..count).map(|i| schedule.offer(i * MS, 1500)).collect()
    }

    /// Returns the arrival time of each packet, and whether it was reordered.
    fn arrivals(spec: &Direction, count: u64) -> Vec<(Nanos, bool)> {
        let arrival = |fate| match fate {
            Fate::Delivered { at, reordered, .. } => (at, reordered),
            other => panic!("{other:?}"),
        };
        fates(spec, count).into_iter().map(arrival).collect()
    }

    #[test]
    fn a_wire_delivers_at_once() {
        assert_eq!(
            fates(&Direction::default(), 3),
            [plain(0), plain(MS), plain(2 * MS)]
        );
    }

    #[test]
    fn the_delay_is_added_behind_the_queue() {
        let spec = Direction {
            delay: Duration::from_millis(25),
            rate: Some(12_000_000),
            queue: Queue::Packets(1),
            ..Direction::default()
        };
        let mut schedule = Schedule::new(spec);
        assert_eq!(schedule.offer(0, 1500), plain(26 * MS));
        assert_eq!(schedule.offer(0, 1500), Fate::Dropped);
        assert_eq!(schedule.offer(MS, 1500), plain(27 * MS));
    }

    #[test]
    fn a_dropped_packet_has_used_its_luck() {
        let spec = Direction {
            loss: 0.5,
            rate: Some(12_000_000),
            queue: Queue::Packets(1),
            seed: 2,
            ..Direction::default()
        };
        let lost = |every: usize| -> Vec<bool> {
            let mut schedule = Schedule::new(spec.clone());
            // With two at a time the second one is dropped.
            let fate = |n| schedule.offer((n / every as u64) * MS, 1500);
            let fates: Vec<Fate> = (0..200).map(fate).collect();
            fates.iter().step_by(2).map(|fate| *fate == Fate::Lost).collect()
        };
        assert_eq!(lost(1), lost(2));
    }

    #[test]
    fn everything_repeats_with_the_seed() {
        let spec = Direction {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(5),
            jitter_reorders: true,
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
            corrupt: 0.1,
            seed: 7,
            ..Direction::default()
        };
        assert_eq!(fates(&spec, 10_000), fates(&spec, 10_000));
        assert_ne!(
            fates(&spec, 10_000),
            fates(&Direction { seed: 8, ..spec }, 10_000)
        );
    }

    #[test]
    fn jitter_varies_the_delay_but_keeps_the_order() {
        let spec = Direction {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(5),
            ..Direction::default()
        };
        let arrivals = arrivals(&spec, 1000);
        assert!(arrivals.is_sorted());
        let delays: Vec<Nanos> = (0..).zip(&arrivals).map(|(i, (at, _))| at - i * MS).collect();
        assert!(delays.iter().all(|delay| (5 * MS..15 * MS).contains(delay)));
        assert!(delays.iter().filter(|delay| **delay != 10 * MS).count() > 900);
        assert!(arrivals.iter().all(|(_, reordered)| !reordered));
    }

    #[test]
    fn jitter_changes_the_order_where_it_may_and_says_so() {
        let spec = Direction {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(5),
            distribution: Distribution::Normal,
            jitter_reorders: true,
            ..Direction::default()
        };
        let arrivals = arrivals(&spec, 1000);
        let mut latest = 0;
        for (at, reordered) in &arrivals {
            assert_eq!(*reordered, *at < latest);
            latest = latest.max(*at);
        }
        let overtaking = arrivals.iter().filter(|(_, reordered)| *reordered).count();
        assert!(overtaking > 300, "{overtaking}");
    }

    #[test]
    fn no_jitter_delivers_before_the_packet_was_sent() {
        for distribution in [Distribution::Uniform, Distribution::Normal] {
            let spec = Direction {
                delay: Duration::from_millis(1),
                jitter: Duration::from_millis(50),
                jitter_reorders: true,
                distribution,
                ..Direction::default()
            };
            let early = (0..)
                .zip(arrivals(&spec, 1000))
                .filter(|(i, (at, _))| *at < i * MS);
            assert_eq!(early.count(), 0);
        }
    }

    #[test]
    fn reordered_packets_are_overtaken() {
        let spec = Direction {
            reorder: 0.1,
            reorder_delay: Duration::from_millis(3),
            ..Direction::default()
        };
        let held: Vec<_> = (0..)
            .zip(arrivals(&spec, 1000))
            .filter(|(_, (_, reordered))| *reordered)
            .collect();
        assert!((70..130).contains(&held.len()), "{}", held.len());
        assert!(
            held.iter().all(|(i, (at, _))| *at == i * MS + 3 * MS),
            "the next two packets pass it"
        );
    }

    #[test]
    fn times_without_end_do_not_overflow() {
        let spec = Direction {
            delay: Duration::MAX,
            jitter: Duration::MAX,
            reorder: 0.5,
            reorder_delay: Duration::MAX,
            rate: Some(1),
            ..Direction::default()
        };
        assert!(arrivals(&spec, 1000).iter().all(|(at, _)| *at > MOST / 2));
    }
}
