//! Reads `[log]`.

use serde::Deserialize;
use toml::Spanned;

use super::settler::Settler;

/// Default limit of lines of one kind in a second.
pub(crate) const DEFAULT_LINES_PER_SECOND: u32 = 10;

/// Format and level of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogConfig {
    /// Format for people or for machines.
    pub format: LogFormat,
    /// Lowest level that is written.
    pub level: LogLevel,
    /// Average limit of lines of one kind in a second; 0 means no limit.
    pub lines_per_second: u32,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            format: LogFormat::default(),
            level: LogLevel::default(),
            lines_per_second: DEFAULT_LINES_PER_SECOND,
        }
    }
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Lowest level that is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// Failures.
    Error,
    /// Conditions that will need attention.
    Warn,
    /// Starts, stops, refused connections.
    #[default]
    Info,
    /// Each connection.
    Debug,
    /// Each step.
    Trace,
}

/// The table `[log]` as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLog {
    format: Option<LogFormat>,
    level: Option<LogLevel>,
    lines_per_second: Option<Spanned<i64>>,
}

impl Settler<'_> {
    /// Checks and converts the table.
    pub(super) fn log(&mut self, log: &RawLog) -> LogConfig {
        let default = LogConfig::default();
        let given = log.lines_per_second.as_ref();
        LogConfig {
            format: log.format.unwrap_or_default(),
            level: log.level.unwrap_or_default(),
            lines_per_second: self.number(
                "log.lines_per_second",
                given,
                default.lines_per_second,
                0..=1_000_000,
            ),
        }
    }
}
