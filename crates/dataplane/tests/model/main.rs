//! The programs against their executable specification (`longsplice_core::machine`): random states and random segments
//! through both. What becomes of the segment, every byte of it, and the state afterwards must be the same. Needs root.
//!
//! `LONGSPLICE_CASES` says how many states, `LONGSPLICE_SEED` where to begin; a failure says both of its case.

// `pub` is how the modules of one test binary share things.
#![allow(unreachable_pub)]

#[allow(dead_code)] // not every binary uses everything
#[path = "../support/mod.rs"]
mod support;

mod both;
mod convert;
mod expect;
mod generate;
mod random;

use both::Both;
use random::Random;

/// How many states `make test` tries.
const CASES: u64 = 3000;
/// How much happens to each.
const STEPS: u32 = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn programs_and_machine_agree() {
    let cases = number("LONGSPLICE_CASES").unwrap_or(CASES);
    let seed = number("LONGSPLICE_SEED").unwrap_or_else(|| {
        let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("randomness");
        u64::from_str_radix(&uuid[..8], 16).expect("eight hex digits")
    });
    println!("LONGSPLICE_SEED={seed} LONGSPLICE_CASES={cases}");
    let mut both = Both::new();
    for case in seed..seed + cases {
        let mut random = Random::new(case);
        both.begin(&mut random);
        for step in 0..STEPS {
            if let Err(difference) = both.step(&mut random) {
                panic!("LONGSPLICE_SEED={case} LONGSPLICE_CASES=1: step {step}\n{difference}");
            }
        }
    }
    both.summary();
}
