//! Provides the daemon and the command line of Longsplice: listeners, targets, configuration, the admin socket,
//! `doctor`.
//!
//! [`longsplice_engine`] splices; this crate decides which clients reach which servers, and hands it the pairs.
#![forbid(unsafe_code)]

pub mod accelerator;
pub mod access_log;
pub mod address;
pub mod admin;
pub mod cli;
pub mod client;
pub mod config;
pub mod config_status;
mod congestion;
pub mod daemon;
pub mod doctor;
pub mod handover;
pub mod http;
pub mod instance;
pub mod listener;
mod logging;
pub mod memory;
pub mod metrics;
mod notify;
pub mod proxy_header;
pub mod rate_limiter;
pub mod reload;
pub mod resources;
pub mod rule_manager;
pub mod show;
mod signals;
pub mod tls;
pub mod upstream;
