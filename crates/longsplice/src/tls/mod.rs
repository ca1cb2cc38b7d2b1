//! Reads ClientHellos that are passed on, and terminates TLS.

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

pub(crate) use certificate::{CertificateError, CertificateFiles};
pub(crate) use hello::peek;
pub(crate) use relay::relay;
pub(crate) use terminator::{Terminator, TerminatorError};

/// Limit of the bytes before the hello is complete; it covers the longest valid handshake message.
pub(crate) const LONGEST: usize = 64 << 10;

/// Longest time for a ClientHello; if TLS is terminated, for the whole handshake.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Checks whether the files of a certificate can be used now. Fails with the first error in them.
pub(crate) fn check(files: &CertificateFiles) -> Result<(), CertificateError> {
    certificate::load(files, &terminator::provider()).map(drop)
}
