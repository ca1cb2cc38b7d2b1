//! The same traffic through the relay and through splices of all kinds: what both ends receive, and how their streams end, is
//! the same whichever way it went.
//!
//! What is played is a [`script`] made from a seed, with its options: timestamps, SACK, window scales, ECN, sizes of buffers. All ways
//! of a script run at once, each over a listener of its own ([`ways`]). A failure names the seed; `LONGSPLICE_SEED` plays that script
//! first. `LONGSPLICE_CYCLES` says how many scripts there are to be in each laboratory; `make soak` plays many.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod play;
mod script;
mod ways;

use std::{env, time::Instant};

use longsplice_lab::{Family, ThreeOptions};
use longsplice_tests::Luck;
use ways::Ways;

/// How many scripts are a few.
const FEW: u64 = 30;

/// Plays scripts on nodes like these, and compares what every way made of each with what the relay did.
fn compare(name: &str, options: ThreeOptions) {
    let wanted = env::var("LONGSPLICE_CYCLES").map_or(FEW, |s| s.parse().unwrap());
    let mut ways = Ways::new(name, options);
    let (first, start) = (Luck::new().seed(), Instant::now());
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
    compare("diff-4", ThreeOptions::default());
}

#[test]
fn over_ipv6() {
    compare(
        "diff-6",
        ThreeOptions {
            family: Family::V6,
            ..ThreeOptions::default()
        },
    );
}

/// Each packet is a segment with its checksum filled in, as on a wire.
#[test]
fn over_ipv4_without_offloads() {
    compare(
        "diff-wire",
        ThreeOptions {
            offloads: false,
            ..ThreeOptions::default()
        },
    );
}
