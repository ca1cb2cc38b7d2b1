//! Runs packets of IPv4 and IPv6 through the program of rules, and compares the verdict, the counters, the mark and every
//! byte. One file for each behavior. Needs root; each test is in a network namespace of its own.

// The modules of one test binary share items by `pub`.
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
