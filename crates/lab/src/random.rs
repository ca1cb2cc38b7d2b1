//! Random numbers that repeat with their seed (SplitMix64): small, fast, and good for any seed, zero included.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Maps 64 bits to 64 random-looking bits, one to one.
pub(crate) fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Sequence of independent numbers.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Creates one of many sequences with the same seed, each for a purpose of its own.
    pub(crate) fn stream(seed: u64, purpose: u64) -> Self {
        Rng(mix(seed ^ mix(purpose)))
    }

    /// Returns the next number.
    pub(crate) fn number(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// Returns the next number, evenly distributed from 0 up to but not including 1.
    pub(crate) fn share(&mut self) -> f64 {
        // The upper 53 bits: as many as an f64 holds exactly.
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}
