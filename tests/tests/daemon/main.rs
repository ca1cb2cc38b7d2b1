//! Daemon as its operator meets it: configuration, reload, shutdown, logs, metrics, interception, TLS, the documents.
//! One behaviour a file.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod access_log;
mod congestion;
mod doctor;
mod documents;
mod imports;
mod intercept;
mod load;
mod log_limit;
mod memory;
mod metrics;
mod names;
mod order;
mod packet_walk;
mod pins;
mod proxy_protocol;
mod readme;
mod reload;
mod replace;
mod rules;
mod shutdown;
mod tls;
mod unit;
mod unprivileged;
