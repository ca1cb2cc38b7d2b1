//! Generates random numbers that are near enough to each other to matter.

use std::{env, fs};

use fastrand::Rng;

/// Reads a number from the environment, if it is there.
pub fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// Returns the seed of `LONGSPLICE_SEED`, or another one each time.
pub fn seed() -> u64 {
    number("LONGSPLICE_SEED").unwrap_or_else(|| {
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("randomness");
        u64::from_str_radix(&uuid[..8], 16).expect("eight hex digits")
    })
}

/// Generates random numbers of a seed.
pub struct Random(Rng);

impl Random {
    /// Creates the sequence of a seed. The seeds of a run are consecutive: the fork sets their sequences apart.
    pub fn new(seed: u64) -> Random {
        Random(Rng::with_seed(seed).fork())
    }

    pub fn u32(&mut self) -> u32 {
        self.0.u32(..)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        self.0.u32(..bound)
    }

    /// Returns true once in so many times.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    /// Returns the distance of two numbers of the same stream: mostly none, or a little.
    pub fn distance(&mut self) -> u32 {
        match self.below(12) {
            0..4 => 0,
            4 => self.pick(&[1, 2]),
            5 => self.pick(&[1u32, 2]).wrapping_neg(),
            6 | 7 => self.below(8) * 100,
            8 => (self.below(8) * 100).wrapping_neg(),
            9 => self.below(3000),
            10 => self.below(300_000),
            // Never exactly half a circle: before and after are the same there.
            _ => self.pick(&[
                1_000_001,
                (1 << 30) + 13,
                (1 << 31) - 7777,
                (1 << 31) + 7777,
                (3 << 30) + 101,
                70_000,
            ]),
        }
    }

    /// Returns a number at this distance.
    pub fn near(&mut self, anchor: u32) -> u32 {
        anchor.wrapping_add(self.distance())
    }
}
