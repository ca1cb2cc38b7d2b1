//! Plays the same traffic through the relay and through splices of all kinds: the bytes that both ends receive, and the
//! ends of their streams, are the same on every way.
//!
//! A [`script`] is made from a seed, with its options: timestamps, SACK, window scales, ECN, sizes of buffers. All ways
//! of a script run at once, each over a listener of its own ([`ways`]). A failure names the seed; `LONGSPLICE_SEED`
//! plays that script first. `LONGSPLICE_CYCLES` sets the number of scripts in each laboratory; `make soak` plays many.

mod play;
mod script;
mod ways;

use std::time::Instant;

use longsplice_lab::{Family, LineOptions};
use longsplice_tests::{rng, times};
use ways::Ways;

/// Number of scripts by default.
const FEW: u64 = 30;

/// Plays scripts on nodes with these options, and compares the result of every way with that of the relay.
fn compare(name: &str, options: LineOptions) {
    let wanted = times("LONGSPLICE_CYCLES", FEW);
    let mut ways = Ways::new(name, options);
    let (first, start) = (rng().get_seed(), Instant::now());
    for seed in (0..wanted).map(|n| first.wrapping_add(n)) {
        ways.play(seed);
    }
    ways.settle(wanted);
    eprintln!(
        "{name}: {wanted} scripts in {:.1} s",
        start.elapsed().as_secs_f64()
    );
}

#[test]
fn over_ipv4() {
    compare("diff-4", LineOptions::default());
}

#[test]
fn over_ipv6() {
    compare(
        "diff-6",
        LineOptions {
            family: Family::V6,
            ..LineOptions::default()
        },
    );
}

/// Each packet is a segment with its checksum filled in, as on a wire.
#[test]
fn over_ipv4_without_offloads() {
    compare(
        "diff-wire",
        LineOptions {
            offloads: false,
            ..LineOptions::default()
        },
    );
}
