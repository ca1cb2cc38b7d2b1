//! The laboratory does what was configured: namespaces, links, topologies, traffic that is checked, and the program.
//! Needs root.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod checker;
mod common;
mod exchanges;
mod experiments;
mod graph;
mod interrupted;
mod links;
mod multi_server;
mod namespaces;
mod program;
mod router;
