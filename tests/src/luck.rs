//! Random numbers that repeat with their seed (SplitMix64).

use std::{env, ops::Range, time::SystemTime};

/// Sequence of random numbers.
#[derive(Debug, Clone)]
pub struct Luck(u64);

impl Luck {
    /// Creates a new sequence for each run. It prints its seed, which the harness shows for a failed test, and
    /// `LONGSPLICE_SEED` sets it.
    pub fn new() -> Luck {
        let given = env::var("LONGSPLICE_SEED").ok().map(|s| s.parse().unwrap());
        let seed = given.unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            since.unwrap().as_nanos() as u64
        });
        eprintln!("LONGSPLICE_SEED={seed} repeats this");
        Luck(seed)
    }

    /// Creates the sequence of this seed.
    pub fn from_seed(seed: u64) -> Luck {
        Luck(seed)
    }

    /// Returns the seed of a sequence that goes on as this one does.
    pub fn seed(&self) -> u64 {
        self.0
    }

    /// Returns true in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.of(0..100) < percent
    }

    /// Creates a sequence of its own, for another thread.
    pub fn branch(&mut self) -> Luck {
        Luck(self.number())
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number of this range.
    pub fn of(&mut self, range: Range<u64>) -> u64 {
        range.start + self.number() % (range.end - range.start)
    }
}

impl Default for Luck {
    fn default() -> Self {
        Luck::new()
    }
}
