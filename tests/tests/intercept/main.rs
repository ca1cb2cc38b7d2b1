//! Interception: connections to others are served, spliced and come back, without a rule of netfilter; what was there before is
//! not touched; and nothing of it is left behind.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod http;
mod lab;
mod left_behind;
mod others;
mod real;
mod served;
