//! How the daemon is watched: metrics, the access log, and what a reload does to open flows.

use serde::Deserialize;
use toml::Spanned;

use super::settle::Settler;

/// What is to be seen from outside.
#[derive(Debug, Clone, Default)]
pub struct OperationsConfig {}

/// What becomes of open flows when what decided about them changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// They go on as they are.
    #[default]
    Keep,
    /// They go on if the new configuration would have decided likewise; else they are reset.
    Recheck,
    /// They are reset.
    Reset,
}

/// `[metrics]` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMetrics {}

/// `[access_log]` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAccessLog {}

impl Settler<'_> {
    /// What the tables mean.
    pub(super) fn operations(
        &mut self,
        metrics: Option<Spanned<RawMetrics>>,
        access_log: Option<Spanned<RawAccessLog>>,
    ) -> OperationsConfig {
        let _ = (metrics, access_log);
        OperationsConfig::default()
    }
}
