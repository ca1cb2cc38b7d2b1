//! The real binary: the command line, and the daemon over loopback. No test here needs privileges, and none uses
//! them: splicing is tested in the workspace's `tests`.
#![allow(clippy::unwrap_used, reason = "what helps a test may panic as a test may")]

mod command;
mod common;
mod daemon;
mod explain;
mod full;
mod servers;
