//! Tests [`longsplice_model`] by simulated splices and unsplices, by the thousand, and by sequences of
//! operations as property tests.
//!
//! `LONGSPLICE_CYCLES` sets the number of cycles (10,000), `LONGSPLICE_FIRST` the first seed (1), `LONGSPLICE_SEED`
//! replays one; `LONGSPLICE_TRACE` sets how many lines of the trace a failure shows (60), `LONGSPLICE_ALL=1` goes on
//! after one.

#[allow(unreachable_pub)] // The fuzzer has these files, too.
mod sim;

use proptest::prelude::*;
use sim::{operations::run_operations, world::Stats};

/// Situations that must occur among ten thousand cycles: without them, a run without failure proves little.
const INTERESTING: [&str; 23] = [
    "a forwarded FIN given to a socket",
    "aborted",
    "captured",
    "adopted",
    "detached",
    "drained, not parkable",
    "drain: shared",
    "forged",
    "half-closed early",
    "held",
    "injected",
    "killed while detached",
    "killed while dormant",
    "killed with sockets in the path",
    "legs alone",
    "looked at again",
    "parked",
    "rebuilt",
    "reset by an end",
    "straddlers",
    "wakes after a FIN was forwarded",
    "wakes with bytes outstanding both ways",
    "woken by a packet",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_byte_arrives_once_in_order_or_both_ends_see_a_reset() {
    let mut stats = Stats::default();
    if let Some(seed) = number("LONGSPLICE_SEED") {
        sim::run_seed(seed, &mut stats).unwrap_or_else(|report| panic!("{report}"));
        return;
    }
    let cycles = number("LONGSPLICE_CYCLES").unwrap_or(10_000);
    let first = number("LONGSPLICE_FIRST").unwrap_or(1);
    let mut seed = first;
    let mut failures = 0;
    while stats.of("cycles") < cycles {
        if let Err(report) = sim::run_seed(seed, &mut stats) {
            assert!(number("LONGSPLICE_ALL").is_some(), "{report}");
            println!("{}", report.lines().next().unwrap_or_default());
            failures += 1;
        }
        seed += 1;
    }
    for (name, n) in &stats.counts {
        println!("{n:>10} {name}");
    }
    println!("{} seeds, {failures} failed", seed - first);
    assert_eq!(failures, 0);
    let missing: Vec<_> = INTERESTING
        .into_iter()
        .filter(|name| stats.of(name) == 0)
        .collect();
    assert!(
        missing.is_empty() || cycles < 10_000,
        "never happened: {missing:?}"
    );
}

/// Sequences of operations that once violated an invariant.
const FOUND: [&[u8]; 2] = [
    // User space armed a trap between the two steps of a move from the records to the slot, which it makes in one.
    &[
        116, 224, 68, 185, 192, 103, 238, 238, 162, 39, 178, 40, 252, 72, 210, 84, 58, 40, 104, 71, 12, 186,
        10, 40, 168, 52, 105, 168, 24, 242, 24, 184, 16, 1, 0, 0, 7, 0, 0, 0,
    ],
    // A socket without window scaling, whose edge was widened further than one of its segments can say.
    &[
        33, 211, 232, 75, 190, 245, 91, 54, 43, 104, 185, 0, 34, 40, 84, 108, 36, 72, 154, 40, 58, 40, 88, 0,
        88, 0, 94, 40, 94, 40, 24, 54, 16, 0, 161, 0, 93, 210, 60, 140, 114, 6, 228, 8, 76, 0, 187, 25, 24,
        6, 252, 96, 132, 104, 153, 22, 4, 0, 36, 76, 154, 40, 64, 0, 52, 0, 10, 154, 131, 222, 209, 121, 88,
        0, 146, 105, 214, 113, 248, 81, 28, 148, 55, 216, 171, 20, 216, 246, 117, 99, 255, 208, 77, 229, 201,
        52, 21, 45, 108, 84, 1, 18, 190, 84, 127, 59, 167, 254, 24, 52, 141, 88, 78, 81, 6, 34, 55, 52, 108,
        45, 88, 4, 19, 195, 174, 68, 4, 72, 154,
    ],
];

#[test]
fn sequences_that_were_found_stay_mended() {
    for bytes in FOUND {
        assert_eq!(run_operations(bytes), Ok(()), "{bytes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_keeps_the_invariants(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert_eq!(run_operations(&bytes), Ok(()));
    }
}
