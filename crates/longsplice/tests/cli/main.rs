//! Tests the real binary: the command line, and the daemon over loopback. These tests neither need nor use privileges:
//! the workspace's `tests` cover splicing.
#![allow(clippy::unwrap_used, reason = "what helps a test may panic as a test may")]

mod command;
mod common;
mod daemon;
mod explain;
mod full;
mod servers;
