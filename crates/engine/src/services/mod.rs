//! Services of a splicer. Each knows the kernel half and its own state, and none of them knows a session.

pub(crate) mod ends;
mod exhaustion;
pub(crate) mod interfaces;
pub(crate) mod maintenance;
pub(crate) mod network_interface;
pub(crate) mod order;
pub(crate) mod pinning;
pub(crate) mod ports;
pub(crate) mod registry;
pub(crate) mod routes;
pub mod rules;
pub(crate) mod sighting;
pub(crate) mod stats;
pub(crate) mod targets;
pub(crate) mod transitions;
pub(crate) mod unpaired;
pub(crate) mod xdp;
