//! Tests functions that need `CAP_NET_ADMIN`. Run as root; without it each test fails and says so. All traffic is on
//! the loopback.
#![expect(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

mod close;
mod common;
mod promise;
mod round_trip;
mod seed;
mod thaw;
