//! The public library of Longsplice: [`Splicer`] takes a pair of connected sockets, relays between them, and, when
//! its policy says so, splices them: the sockets leave the path and eBPF translates the segments of the one
//! connection into those of the other.
#![forbid(unsafe_code)]

mod adopt;
mod announce;
mod api;
mod flow;
mod gate;
mod interfaces;
mod legs;
mod meter;
mod pair;
mod ports;
mod pump;
mod reaper;
mod registry;
mod splicer;
mod splicing;
mod stats;

pub use api::*;
pub use longsplice_core::{policy, reason};
pub use splicer::{OpenError, Splicer};
