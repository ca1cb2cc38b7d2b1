//! Makes the decisions of Longsplice: no I/O, no clock, no async. Time, randomness and the state of sockets are
//! arguments, so every decision can be replayed.
#![forbid(unsafe_code)]

pub mod advisor;
pub mod balance;
pub mod coupling;
pub mod drain;
pub mod family;
pub mod health;
pub mod http;
pub mod idle;
pub mod limit;
pub mod patience;
pub mod plan;
pub mod policy;
pub mod ports;
pub mod proxy_protocol;
pub mod reap;
pub mod reason;
pub mod route;
pub mod rules;
pub mod seq;
pub mod side;
pub mod terms;
mod text;
