//! URL-aware switch between real clients and real servers. Each behaviour in the modes plain, spliced with parked
//! sockets, and spliced without sockets; a persistent connection has a splice and an unsplice for every request.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod abort_on_close;
mod access_log;
mod clients;
mod closing;
mod congestion;
mod connection_auth;
mod errors;
mod framing;
mod git;
mod heads;
mod long_replies;
mod on_reload;
mod pace;
mod pipelining;
mod retries;
mod sigkill;
mod silent_clients;
mod smuggling;
mod sticky;
mod successor;
mod terminated;
mod threshold;
mod unasked;
mod under_load;
mod upgrades;
mod uploads;
mod websockets;
