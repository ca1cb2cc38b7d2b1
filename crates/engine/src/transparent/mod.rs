//! Intercepts connections to other hosts, lets handshakes pass through, and keeps the numbers of both legs the same.

pub mod handshake;
pub(crate) mod identity;
pub mod intercept;
