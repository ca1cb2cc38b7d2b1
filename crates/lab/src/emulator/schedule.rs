//! When a packet leaves an emulated link, if it does. No I/O and no clock: time is an argument.

use std::collections::VecDeque;

use crate::link::{Direction, Queue};
use crate::random::Luck;

/// An instant in nanoseconds since any fixed moment.
pub type Nanos = u64;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// There was no room in the queue.
    Dropped,
    /// The wire lost it.
    Lost,
    /// It arrives.
    Delivered {
        /// When it arrives.
        at: Nanos,
        /// Whether it was held back, so that later packets may overtake it.
        reordered: bool,
        /// Whether it arrives twice, the second time at once after the first.
        duplicated: bool,
    },
}

/// The state of one direction of a link.
#[derive(Debug, Clone)]
pub struct Schedule {
    spec: Direction,
    luck: Luck,
    /// When the last packet that was admitted will have left the queue.
    free_at: Nanos,
    /// What waits in the queue or is being sent: when it will have left, and its length.
    waiting: VecDeque<(Nanos, usize)>,
    waiting_bytes: u64,
    /// The arrival of the last packet that was not held back: jitter must not overtake it.
    last_arrival: Nanos,
}

impl Schedule {
    /// An idle link.
    pub fn new(spec: Direction) -> Self {
        Schedule {
            luck: Luck::new(spec.seed),
            spec,
            free_at: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            last_arrival: 0,
        }
    }

    /// Decides about a packet of `len` bytes that comes to the link at `now`. `now` never goes back.
    pub fn offer(&mut self, now: Nanos, len: usize) -> Fate {
        // Every packet draws all its lots, used or not: so the luck of the n-th packet depends on the seed and
        // on n, and not on what happened to the packets before it.
        let [lost, held_back, twice, jitter] = self.luck.draw();
        let Some(sent) = self.send(now, len) else {
            return Fate::Dropped;
        };
        if lost < self.spec.loss {
            return Fate::Lost;
        }
        let jitter = (jitter * nanos(self.spec.jitter) as f64) as Nanos;
        let arrival = self.last_arrival.max(sent + nanos(self.spec.delay) + jitter);
        let duplicated = twice < self.spec.duplicate;
        if held_back < self.spec.reorder {
            return Fate::Delivered {
                at: arrival + nanos(self.spec.reorder_delay),
                reordered: true,
                duplicated,
            };
        }
        self.last_arrival = arrival;
        Fate::Delivered {
            at: arrival,
            reordered: false,
            duplicated,
        }
    }

    /// Passes a packet through the queue: when its last bit is on the wire, or `None` when there is no room.
    fn send(&mut self, now: Nanos, len: usize) -> Option<Nanos> {
        let Some(rate) = self.spec.rate else {
            return Some(now);
        };
        while let Some(&(_, gone)) = self.waiting.front().filter(|(left, _)| *left <= now) {
            self.waiting.pop_front();
            self.waiting_bytes -= gone as u64;
        }
        let room = match self.spec.queue {
            Queue::Bytes(limit) => self.waiting_bytes + len as u64 <= limit,
            Queue::Packets(limit) => self.waiting.len() < limit,
        };
        if !room {
            return None;
        }
        let duration = u128::from(len as u64 * 8) * 1_000_000_000 / u128::from(rate.max(1));
        self.free_at = self.free_at.max(now) + Nanos::try_from(duration).unwrap_or(Nanos::MAX / 2);
        self.waiting.push_back((self.free_at, len));
        self.waiting_bytes += len as u64;
        Some(self.free_at)
    }
}

fn nanos(duration: std::time::Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX / 4)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Nanos = 1_000_000;

    fn plain(at: Nanos) -> Fate {
        Fate::Delivered {
            at,
            reordered: false,
            duplicated: false,
        }
    }

    /// The fates of `count` packets of 1,500 bytes that come 1 ms apart.
    fn fates(spec: Direction, count: u64) -> Vec<Fate> {
        let mut schedule = Schedule::new(spec);
        (0..count).map(|i| schedule.offer(i * MS, 1500)).collect()
    }

    #[test]
    fn a_wire_delivers_at_once() {
        assert_eq!(
            fates(Direction::default(), 3),
            [plain(0), plain(MS), plain(2 * MS)]
        );
    }

    #[test]
    fn delay_is_added() {
        let spec = Direction {
            delay: Duration::from_millis(25),
            ..Direction::default()
        };
        assert_eq!(fates(spec, 2), [plain(25 * MS), plain(26 * MS)]);
    }

    #[test]
    fn a_rate_spaces_packets_and_forgets_idle_time() {
        // 1,500 bytes at 12 Mbit/s take 1 ms.
        let spec = Direction {
            rate: Some(12_000_000),
            ..Direction::default()
        };
        let mut schedule = Schedule::new(spec);
        assert_eq!(schedule.offer(0, 1500), plain(MS));
        assert_eq!(schedule.offer(0, 1500), plain(2 * MS));
        assert_eq!(schedule.offer(10 * MS, 750), plain(10 * MS + MS / 2));
    }

    #[test]
    fn the_queue_drops_its_tail_and_drains() {
        for queue in [Queue::Packets(2), Queue::Bytes(3000)] {
            let spec = Direction {
                rate: Some(12_000_000),
                queue,
                ..Direction::default()
            };
            let mut schedule = Schedule::new(spec);
            assert_eq!(schedule.offer(0, 1500), plain(MS));
            assert_eq!(schedule.offer(0, 1500), plain(2 * MS));
            assert_eq!(schedule.offer(0, 1500), Fate::Dropped);
            assert_eq!(
                schedule.offer(MS, 1500),
                plain(3 * MS),
                "{queue:?}: one has left, there is room"
            );
            assert_eq!(schedule.offer(MS, 1500), Fate::Dropped);
        }
    }

    #[test]
    fn losses_are_as_many_as_asked_and_repeat_with_the_seed() {
        let spec = Direction {
            loss: 0.01,
            seed: 7,
            ..Direction::default()
        };
        let first = fates(spec.clone(), 100_000);
        let lost = first.iter().filter(|fate| **fate == Fate::Lost).count();
        // The standard deviation is 31; a fixed seed cannot be unlucky one day.
        assert!((900..1100).contains(&lost), "{lost}");
        assert_eq!(first, fates(spec.clone(), 100_000));
        assert_ne!(first, fates(Direction { seed: 8, ..spec }, 100_000));
    }

    #[test]
    fn the_luck_of_a_packet_does_not_depend_on_other_impairments() {
        let loss_only = Direction {
            loss: 0.1,
            seed: 3,
            ..Direction::default()
        };
        let more = Direction {
            jitter: Duration::from_millis(3),
            duplicate: 0.5,
            reorder: 0.2,
            ..loss_only.clone()
        };
        let lost = |spec| {
            fates(spec, 1000)
                .iter()
                .map(|fate| *fate == Fate::Lost)
                .collect::<Vec<_>>()
        };
        assert_eq!(lost(loss_only), lost(more));
    }

    #[test]
    fn jitter_varies_the_delay_but_keeps_the_order() {
        let spec = Direction {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(5),
            ..Direction::default()
        };
        let mut last = 0;
        let mut different = 0;
        for (i, fate) in fates(spec, 1000).into_iter().enumerate() {
            let Fate::Delivered {
                at, reordered: false, ..
            } = fate
            else {
                panic!("{fate:?}")
            };
            let delay = at - i as Nanos * MS;
            assert!((10 * MS..15 * MS).contains(&delay), "{delay}");
            assert!(at >= last);
            different += u32::from(delay != 10 * MS);
            last = at;
        }
        assert!(different > 900, "{different}");
    }

    #[test]
    fn reordered_packets_are_overtaken() {
        let spec = Direction {
            reorder: 0.1,
            reorder_delay: Duration::from_millis(3),
            ..Direction::default()
        };
        let held: Vec<_> = fates(spec, 1000)
            .into_iter()
            .enumerate()
            .filter_map(|(i, fate)| match fate {
                Fate::Delivered {
                    at, reordered: true, ..
                } => Some((i as Nanos, at)),
                _ => None,
            })
            .collect();
        assert!((70..130).contains(&held.len()), "{}", held.len());
        assert!(
            held.iter().all(|(i, at)| *at == i * MS + 3 * MS),
            "the next two packets pass it"
        );
    }

    #[test]
    fn duplicates_are_as_many_as_asked() {
        let spec = Direction {
            duplicate: 0.05,
            ..Direction::default()
        };
        let twice = fates(spec, 10_000)
            .iter()
            .filter(|f| matches!(f, Fate::Delivered { duplicated: true, .. }))
            .count();
        assert!((440..560).contains(&twice), "{twice}");
    }
}
