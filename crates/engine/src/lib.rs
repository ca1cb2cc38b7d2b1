//! The public library of Longsplice: [`Splicer`] takes a pair of connected sockets, relays between them, and, when
//! its policy says so, splices them: the sockets leave the path and eBPF translates the segments of the one
//! connection into those of the other.
#![forbid(unsafe_code)]

mod adopt;
mod announce;
mod api;
mod flow;
mod gate;
mod held;
mod interfaces;
mod legs;
mod mapped;
mod meter;
mod packet;
mod pair;
mod parked;
mod ports;
mod pump;
mod reaper;
mod reclaim;
mod registry;
mod splicer;
mod splicing;
mod stats;
mod traps;
mod until;
mod wake;

pub use api::*;
pub use longsplice_core::{policy, reason};
pub use longsplice_dataplane::Side;
pub use splicer::{OpenError, Splicer};
pub use until::{ParseUntilError, Trap, Until};
