//! What concerns HTTP of a listener.

use serde::Deserialize;
use toml::Spanned;

use super::settle::Settler;

/// Limits and habits of a listener that speaks HTTP.
#[derive(Debug, Clone, Default)]
pub struct HttpConfig {}

/// The table as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {}

impl Settler<'_> {
    /// What the table means.
    pub(super) fn http(&mut self, given: Option<Spanned<Raw>>) -> HttpConfig {
        let _ = given;
        HttpConfig::default()
    }
}
