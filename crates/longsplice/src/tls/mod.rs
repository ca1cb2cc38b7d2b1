//! TLS: ClientHellos that are read and passed on, and connections that are terminated here.

mod certificate;
mod choice;
mod hello;
mod keyring;
mod relay;
mod supplement;
mod terminator;
#[cfg(test)]
pub(crate) mod testing;

use std::time::Duration;

pub use certificate::{CertificateError, CertificateFiles};
pub use hello::{HelloError, LONGEST, peek};
pub use relay::{Passed, relay};
pub use terminator::{Terminator, TerminatorError};

/// How long a ClientHello may take to come; where TLS is terminated, the whole handshake.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the files of a certificate can be used, as they are now.
///
/// # Errors
/// What is wrong with them.
pub fn check(files: &CertificateFiles) -> Result<(), CertificateError> {
    certificate::load(files, &terminator::provider()).map(drop)
}
