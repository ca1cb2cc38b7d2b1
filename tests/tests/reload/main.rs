//! The configuration is loaded again while the daemon runs: all of it or nothing, and no connection notices that it does not concern.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod end;
mod on_change;
mod refused;
mod under_load;
