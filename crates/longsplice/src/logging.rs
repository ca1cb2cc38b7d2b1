//! Structured logs, on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat, LogLevel};

/// The variable that overrides the level, for each module if need be.
pub(crate) const ENV: &str = "LONGSPLICE_LOG";

/// Starts logging. Only the first call of a process has an effect.
pub(crate) fn start(config: LogConfig) {
    let filter = EnvFilter::try_from_env(ENV).unwrap_or_else(|_| EnvFilter::new(level(config.level)));
    let builder = fmt().with_env_filter(filter).with_writer(io::stderr);
    // The journal has its own clock.
    let in_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let started = match config.format {
        LogFormat::Json => builder.json().flatten_event(true).with_target(false).try_init(),
        LogFormat::Text => {
            let builder = builder.with_target(false).with_ansi(io::stderr().is_terminal());
            if in_journal {
                builder.without_time().try_init()
            } else {
                builder.try_init()
            }
        }
    };
    // A second start is refused; the first one's settings hold.
    drop(started);
}

fn level(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        // Ours in detail, the libraries' not: theirs would bury it. libbpf speaks through the last module.
        LogLevel::Debug => {
            "info,longsplice=debug,longsplice_engine=debug,longsplice_repair=debug,\
             longsplice_dataplane=debug,longsplice_dataplane::dataplane=info"
        }
        LogLevel::Trace => "trace",
    }
}
