//! What the program of rules makes of packets, IPv4 and IPv6: the verdict, the counters, the mark and every byte. One file
//! for each behaviour. Needs root; each test is in a network namespace of its own.

// `pub` is how the modules of one test binary share things.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

#[allow(dead_code)] // not every binary uses everything
#[path = "../support/mod.rs"]
mod support;

mod deliver;
mod differential;
mod frames;
mod limits;
mod matching;
mod program;
mod replace;
mod translate;
mod ways;
