//! Numbers that are random, but near enough to each other to matter.

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.word();
        random
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn u32(&mut self) -> u32 {
        (self.word() >> 32) as u32
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        self.u32() % bound
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    /// How far two numbers of the same stream are apart: mostly not, or a little.
    pub fn distance(&mut self) -> u32 {
        match self.below(12) {
            0..4 => 0,
            4 => self.pick(&[1, 2]),
            5 => self.pick(&[1u32, 2]).wrapping_neg(),
            6 | 7 => self.below(8) * 100,
            8 => (self.below(8) * 100).wrapping_neg(),
            9 => self.below(3000),
            10 => self.below(300_000),
            // Never exactly half a circle: there before and after are the same.
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

    /// A number at this distance.
    pub fn near(&mut self, anchor: u32) -> u32 {
        anchor.wrapping_add(self.distance())
    }
}
