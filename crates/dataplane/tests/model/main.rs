//! Compares the programs with their executable specification ([`longsplice_model`]): sends random segments through
//! random states of both. The fate of the segment, every byte of it, and the state afterwards must be the same. Needs
//! root.
//!
//! `LONGSPLICE_CASES` sets the number of states, `LONGSPLICE_SEED` the first one; a failure prints both for its case.

// The modules of one test binary share items by `pub`.
#![allow(unreachable_pub)]

#[allow(dead_code)] // not every binary uses everything
#[path = "../support/mod.rs"]
pub(crate) mod support;

pub(crate) mod both;
pub(crate) mod convert;
pub(crate) mod expect;
pub(crate) mod generate;

use self::both::Both;
use self::support::random::{Random, number, seed};

/// Number of states that `make test` tries.
const CASES: u64 = 3000;
/// Number of events for each state.
const STEPS: u32 = 8;

#[test]
fn programs_and_machine_agree() {
    let cases = number("LONGSPLICE_CASES").unwrap_or(CASES);
    let seed = seed();
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
