//! Simulated splices and unsplices, by the thousand: `LONGSPLICE_CYCLES` says how many, `LONGSPLICE_SEED` replays one.

mod sim;

use sim::world::Stats;

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
    let all = number("LONGSPLICE_ALL").is_some();
    let mut seed = first;
    let mut failures = 0;
    while stats.counts.get("cycles").copied().unwrap_or(0) < cycles {
        if number("LONGSPLICE_VERBOSE").is_some() {
            println!("seed {seed}");
        }
        if let Err(report) = sim::run_seed(seed, &mut stats) {
            if !all {
                panic!("{report}");
            }
            failures += 1;
            println!("{}", report.lines().next().unwrap_or_default());
        }
        seed += 1;
    }
    for (name, n) in &stats.counts {
        println!("{n:>10} {name}");
    }
    println!("{} seeds, {failures} failed", seed - first);
    assert_eq!(failures, 0);
}
