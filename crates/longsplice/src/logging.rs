//! Structured logs, on standard error.

use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat, LogLevel};

/// The variable that overrides the level, for each module if need be.
pub(crate) const ENV: &str = "LONGSPLICE_LOG";

/// Changes the filter of the logs that were started.
static SET_FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Starts logging. Only the first call of a process has an effect.
pub(crate) fn start(config: LogConfig) {
    let from_env = EnvFilter::try_from_env(ENV).ok();
    let given = from_env.is_some();
    let filter = from_env.unwrap_or_else(|| EnvFilter::new(level(config.level)));
    let builder = fmt().with_env_filter(filter).with_writer(io::stderr);
    // The journal has its own clock.
    let in_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    match config.format {
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_target(false);
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            begin(builder.try_init().is_ok() && !given, move |f| {
                handle.reload(f).is_ok()
            });
        }
        LogFormat::Text => {
            let builder = builder.with_target(false).with_ansi(io::stderr().is_terminal());
            if in_journal {
                let builder = builder.without_time().with_filter_reloading();
                let handle = builder.reload_handle();
                begin(builder.try_init().is_ok() && !given, move |f| {
                    handle.reload(f).is_ok()
                });
            } else {
                let builder = builder.with_filter_reloading();
                let handle = builder.reload_handle();
                begin(builder.try_init().is_ok() && !given, move |f| {
                    handle.reload(f).is_ok()
                });
            }
        }
    }
}

/// Remembers how to change the filter, where that is not fixed. (A second start is refused; the first one's settings hold.)
fn begin(changes: bool, set: impl Fn(EnvFilter) -> bool + Send + Sync + 'static) {
    if changes {
        let _ = SET_FILTER.set(Box::new(move |filter| {
            if !set(filter) {
                tracing::warn!("the level of the log stays as it is");
            }
        }));
    }
}

/// Logs from this level on, unless the environment says otherwise.
pub(crate) fn set_level(to: LogLevel) {
    if let Some(set) = SET_FILTER.get() {
        set(EnvFilter::new(level(to)));
    }
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
