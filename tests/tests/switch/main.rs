//! The URL-aware switch between real clients and real servers. Each behaviour in the modes plain, spliced with parked sockets,
//! and spliced without sockets; on a persistent connection that is a splice and an unsplice for every request.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod clients;
mod closing;
mod errors;
mod framing;
mod git;
mod heads;
mod long_replies;
mod on_change;
mod pace;
mod pipelining;
mod retries;
mod sigkill;
mod smuggling;
mod sticky;
mod successor;
mod terminated;
mod threshold;
mod under_load;
mod upgrades;
mod uploads;
mod websockets;
