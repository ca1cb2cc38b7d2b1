//! TLS of a listener: what is terminated, by which certificates.

use serde::Deserialize;
use toml::Spanned;

use super::settle::Settler;

/// Certificates of a listener.
#[derive(Debug, Clone)]
pub struct TlsConfig {}

/// The table as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {}

impl Settler<'_> {
    /// What the table means.
    pub(super) fn tls(&mut self, given: Option<Spanned<Raw>>) -> Option<TlsConfig> {
        given.map(|_| TlsConfig {})
    }
}
