//! Provides the daemon and the command line of Longsplice: listeners, targets, configuration, the admin socket,
//! `doctor`.
//!
//! [`longsplice_engine`] splices; this crate decides which clients reach which servers, and hands it the pairs.
#![forbid(unsafe_code)]

mod accelerator;
mod access_log;
mod address;
pub mod admin;
pub mod cli;
mod client;
mod config;
mod config_status;
mod congestion;
mod daemon;
mod doctor;
mod handover;
mod http;
mod instance;
mod listener;
mod logging;
mod memory;
mod metrics;
mod mountinfo;
mod notify;
mod proxy_header;
mod rate_limiter;
mod reload;
mod resources;
mod rule_manager;
mod show;
mod signals;
mod tls;
mod upstream;
