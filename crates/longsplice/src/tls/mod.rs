//! TLS: ClientHellos that are read and passed on, and connections that are terminated here.

mod hello;
mod terminator;

use std::time::Duration;

pub use hello::{HelloError, LONGEST, peek};
pub use terminator::Terminator;

/// How long a ClientHello may take to come; where TLS is terminated, the whole handshake.
pub const TIMEOUT: Duration = Duration::from_secs(10);
