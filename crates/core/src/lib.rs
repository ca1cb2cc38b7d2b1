//! The decisions of Longsplice: no I/O, no clock, no async. Time, randomness and what sockets say are arguments,
//! so that whatever is decided here can be replayed.
#![forbid(unsafe_code)]

pub mod policy;
pub mod reason;
