//! Random numbers that repeat with their seed.

use std::env;

use fastrand::Rng;

/// Creates a new sequence for each run. It prints its seed, which the harness shows for a failed test, and
/// `LONGSPLICE_SEED` sets it.
pub fn rng() -> Rng {
    let given = env::var("LONGSPLICE_SEED").ok().map(|s| s.parse().unwrap());
    let rng = given.map_or_else(Rng::new, Rng::with_seed);
    eprintln!("LONGSPLICE_SEED={} repeats this", rng.get_seed());
    rng
}
