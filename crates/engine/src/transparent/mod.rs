//! Intercepts connections to other hosts, lets handshakes pass through, keeps the numbers of both legs the same, and such
//! connections out of connection tracking.

pub mod handshake;
pub(crate) mod identity;
pub mod intercept;
pub mod notrack;
