//! Random events of packets: what the seed of a direction does to the first, second and third packet.

use crate::clock::Nanos;
use crate::link::{Burst, Direction, Distribution};
use crate::random::Rng;

/// Time without a packet after which a burst of losses is over, in nanoseconds.
///
/// The model counts packets, not time. A sender that repeats one segment with back-off would meet the bad state again
/// each time: with `leave` at 25 %, one burst in twenty would last for more than half a minute.
const QUIET: Nanos = 100_000_000;

/// Random events of one packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PacketEvents {
    /// True if the wire loses it, alone or in a burst.
    pub(super) lost: bool,
    /// True if it is held back.
    pub(super) held_back: bool,
    /// True if it arrives twice.
    pub(super) duplicated: bool,
    /// Index of the bit that is flipped, modulo the number of bits; `None` leaves the packet intact.
    pub(super) corrupted: Option<u64>,
    /// Difference of its delay from the mean, in nanoseconds.
    pub(super) jitter: f64,
}

/// Draws [`PacketEvents`] for each packet that comes to the link. Every impairment draws from a sequence of its own, and draws
/// for every packet, even for one that is dropped. So the events of the n-th packet depend on the seed and on n alone, and
/// on a quiet time that has ended a burst: neither other packets nor other impairments change them.
#[derive(Debug, Clone)]
pub(super) struct LossModel {
    spec: Direction,
    loss: Rng,
    burst: Rng,
    reorder: Rng,
    duplicate: Rng,
    corrupt: Rng,
    jitter: Rng,
    /// Number of packets since the last one that might be held back.
    since_gap: u32,
    /// True while the link is in the bad state of its [`Burst`].
    is_bad: bool,
    /// Time of the last packet.
    last: Nanos,
}

impl LossModel {
    pub(super) fn new(spec: &Direction) -> Self {
        let stream = |purpose| Rng::stream(spec.seed, purpose);
        LossModel {
            spec: spec.clone(),
            loss: stream(0),
            burst: stream(1),
            reorder: stream(2),
            duplicate: stream(3),
            corrupt: stream(4),
            jitter: stream(5),
            since_gap: 0,
            is_bad: false,
            last: 0,
        }
    }

    /// Draws the events of the next packet, which comes at `now`.
    pub(super) fn draw(&mut self, now: Nanos) -> PacketEvents {
        if now.saturating_sub(self.last) >= QUIET && self.spec.burst.is_some_and(|burst| burst.leave > 0.0) {
            self.is_bad = false;
        }
        self.last = now;
        let alone = self.loss.share() < self.spec.loss;
        let in_burst = self.spec.burst.is_some_and(|burst| self.burst(burst));
        let bit = self.corrupt.number();
        PacketEvents {
            lost: alone || in_burst,
            held_back: self.held_back(),
            duplicated: self.duplicate.share() < self.spec.duplicate,
            corrupted: (self.corrupt.share() < self.spec.corrupt).then_some(bit),
            jitter: self.jitter(),
        }
    }

    /// Returns true if the state of the link loses this packet; the state may change afterwards, as in netem.
    fn burst(&mut self, burst: Burst) -> bool {
        let [loss, change] = [self.burst.share(), self.burst.share()];
        let (lost, changes) = if self.is_bad {
            (loss < burst.loss_bad, change < burst.leave)
        } else {
            (loss < burst.loss_good, change < burst.enter)
        };
        self.is_bad ^= changes;
        lost
    }

    fn held_back(&mut self) -> bool {
        let drawn = self.reorder.share() < self.spec.reorder;
        self.since_gap += 1;
        if self.since_gap < self.spec.reorder_gap {
            return false;
        }
        self.since_gap = 0;
        drawn
    }

    fn jitter(&mut self) -> f64 {
        let [one, other] = [self.jitter.share(), self.jitter.share()];
        let unit = match self.spec.distribution {
            Distribution::Uniform => 2.0 * one - 1.0,
            // Box-Muller transform. `1 - one` is never 0, which has no logarithm.
            Distribution::Normal => (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos(),
        };
        unit * self.spec.jitter.as_nanos() as f64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn draw_all(spec: &Direction, count: usize) -> Vec<PacketEvents> {
        let mut model = LossModel::new(spec);
        (0..count).map(|_| model.draw(0)).collect()
    }

    fn share(drawn: &[PacketEvents], what: impl Fn(&PacketEvents) -> bool) -> f64 {
        drawn.iter().filter(|events| what(events)).count() as f64 / drawn.len() as f64
    }

    #[test]
    fn all_shares_are_as_asked() {
        let spec = Direction {
            loss: 0.01,
            reorder: 0.02,
            duplicate: 0.03,
            corrupt: 0.04,
            seed: 7,
            ..Direction::default()
        };
        let drawn = draw_all(&spec, 100_000);
        // Five standard deviations; the seed is fixed, so the test cannot fail by chance.
        for (is, asked) in [
            (share(&drawn, |events| events.lost), 0.01),
            (share(&drawn, |events| events.held_back), 0.02),
            (share(&drawn, |events| events.duplicated), 0.03),
            (share(&drawn, |events| events.corrupted.is_some()), 0.04),
        ] {
            let deviation = (asked * (1.0 - asked) / 100_000.0_f64).sqrt();
            assert!((is - asked).abs() < 5.0 * deviation, "{is} for {asked}");
        }
    }

    #[test]
    fn the_same_seed_has_the_same_in_store_and_another_one_has_not() {
        let spec = Direction {
            loss: 0.5,
            jitter: Duration::from_millis(1),
            seed: 3,
            ..Direction::default()
        };
        assert_eq!(draw_all(&spec, 1000), draw_all(&spec, 1000));
        assert_ne!(
            draw_all(&spec, 1000),
            draw_all(&Direction { seed: 4, ..spec }, 1000)
        );
    }

    #[test]
    fn impairments_do_not_change_each_others_luck() {
        let loss_only = Direction {
            loss: 0.1,
            seed: 3,
            ..Direction::default()
        };
        let more = Direction {
            jitter: Duration::from_millis(3),
            distribution: Distribution::Normal,
            duplicate: 0.5,
            reorder: 0.2,
            corrupt: 0.3,
            ..loss_only.clone()
        };
        let lost = |spec| {
            draw_all(spec, 1000)
                .iter()
                .map(|events| events.lost)
                .collect::<Vec<_>>()
        };
        assert_eq!(lost(&loss_only), lost(&more));
    }

    #[test]
    fn losses_in_bursts_are_as_many_and_as_long_as_asked() {
        let spec = Direction {
            burst: Some(Burst::new(0.01, 0.25)),
            seed: 11,
            ..Direction::default()
        };
        let drawn = draw_all(&spec, 200_000);
        let lost = share(&drawn, |events| events.lost);
        let expected = 0.01 / (0.01 + 0.25);
        assert!((lost / expected - 1.0).abs() < 0.1, "{lost} for {expected}");
        let bursts = drawn
            .windows(2)
            .filter(|pair| !pair[0].lost && pair[1].lost)
            .count();
        let mean = lost * drawn.len() as f64 / bursts as f64;
        assert!((3.7..4.3).contains(&mean), "{mean} packets in a burst on average");
    }

    #[test]
    fn a_burst_ends_by_itself_when_no_packet_comes() {
        let spec = Direction {
            burst: Some(Burst::new(1.0, 0.000_001)),
            ..Direction::default()
        };
        let mut model = LossModel::new(&spec);
        model.draw(0);
        assert!(model.draw(QUIET - 1).lost, "a short silence changes nothing");
        assert!(!model.draw(2 * QUIET).lost);
    }

    #[test]
    fn the_states_of_a_burst_lose_as_they_are_told() {
        let of = |burst| {
            let spec = Direction {
                burst: Some(burst),
                ..Direction::default()
            };
            share(&draw_all(&spec, 20_000), |events| events.lost)
        };
        let good_only = Burst {
            loss_good: 0.1,
            ..Burst::new(0.0, 1.0)
        };
        assert!((0.09..0.11).contains(&of(good_only)));
        let bad_for_ever = Burst {
            loss_bad: 0.3,
            ..Burst::new(1.0, 0.0)
        };
        assert!((0.28..0.32).contains(&of(bad_for_ever)));
    }

    #[test]
    fn a_gap_lets_only_one_in_so_many_be_held_back() {
        let held = |gap, reorder| -> Vec<usize> {
            let spec = Direction {
                reorder,
                reorder_gap: gap,
                ..Direction::default()
            };
            let drawn = draw_all(&spec, 1000);
            (0..1000).filter(|&n| drawn[n].held_back).collect()
        };
        assert_eq!(held(4, 1.0), (3..1000).step_by(4).collect::<Vec<_>>());
        assert_eq!(held(0, 1.0).len(), 1000);
        let some = held(5, 0.5);
        assert!(some.iter().all(|n| n % 5 == 4));
        assert!((80..120).contains(&some.len()), "{}", some.len());
    }

    #[test]
    fn jitter_is_distributed_as_asked() {
        let of = |distribution| -> (f64, f64, f64) {
            let spec = Direction {
                jitter: Duration::from_micros(1),
                distribution,
                seed: 5,
                ..Direction::default()
            };
            let drawn: Vec<f64> = draw_all(&spec, 50_000)
                .iter()
                .map(|events| events.jitter)
                .collect();
            let mean = drawn.iter().sum::<f64>() / 50_000.0;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 50_000.0;
            let furthest = drawn.iter().fold(0.0_f64, |far, x| far.max(x.abs()));
            (mean, variance.sqrt(), furthest)
        };
        let (mean, deviation, furthest) = of(Distribution::Uniform);
        assert!(mean.abs() < 10.0 && furthest <= 1000.0, "{mean} {furthest}");
        assert!((deviation - 1000.0 / 3.0_f64.sqrt()).abs() < 5.0, "{deviation}");
        let (mean, deviation, furthest) = of(Distribution::Normal);
        assert!(mean.abs() < 20.0, "{mean}");
        assert!((985.0..1015.0).contains(&deviation), "{deviation}");
        assert!((3500.0..6000.0).contains(&furthest), "{furthest}");
    }
}
