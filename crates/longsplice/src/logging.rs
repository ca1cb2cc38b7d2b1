//! Writes structured logs to standard error.

mod limit;
mod writer;

use std::{
    env,
    io::{self, IsTerminal},
    os::fd::AsFd,
    sync::OnceLock,
};

use rustix::fs::fstat;
use tracing_subscriber::{EnvFilter, fmt};

use limit::Limited;
pub(crate) use limit::{PERIOD, limit, tell_suppressed};
use writer::StandardError;

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Environment variable that overrides the level, also for single modules.
pub(crate) const ENV: &str = "LONGSPLICE_LOG";

/// Changes the filter of the running log.
static SET_FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Form of the running log.
static FORM: OnceLock<LogFormat> = OnceLock::new();

/// Returns the form of the log; `None` before its start.
pub(crate) fn form() -> Option<LogFormat> {
    FORM.get().copied()
}

/// Starts logging. Only the first call of a process has an effect.
pub(crate) fn start(config: LogConfig) {
    if FORM.set(config.format).is_err() {
        return;
    }
    limit().set(config.lines_per_second);
    let (from_env, wrong) = match EnvFilter::try_from_env(ENV) {
        Ok(filter) => (Some(filter), None),
        Err(error) => (None, env::var_os(ENV).map(|text| (text, error))),
    };
    let given = from_env.is_some();
    let filter = from_env.unwrap_or_else(|| EnvFilter::new(level(config.level)));
    // An internal error of the formatter would be printed to standard error, with a panic if that takes nothing.
    let builder = fmt()
        .with_env_filter(filter)
        .with_writer(|| StandardError)
        .log_internal_errors(false);
    // The journal adds its own time.
    let in_journal = env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stream(io::stderr(), &stream));
    match config.format {
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_target(false);
            let builder = builder.map_event_format(Limited).with_filter_reloading();
            let handle = builder.reload_handle();
            begin(builder.try_init().is_ok() && !given, move |f| {
                handle.reload(f).is_ok()
            });
        }
        LogFormat::Text => {
            let builder = builder.with_target(false).with_ansi(io::stderr().is_terminal());
            if in_journal {
                let builder = builder
                    .without_time()
                    .map_event_format(Limited)
                    .with_filter_reloading();
                let handle = builder.reload_handle();
                begin(builder.try_init().is_ok() && !given, move |f| {
                    handle.reload(f).is_ok()
                });
            } else {
                let builder = builder.map_event_format(Limited).with_filter_reloading();
                let handle = builder.reload_handle();
                begin(builder.try_init().is_ok() && !given, move |f| {
                    handle.reload(f).is_ok()
                });
            }
        }
    }
    if let Some((text, error)) = wrong {
        tracing::warn!(
            %error,
            "{ENV}={} is not understood: the level of the configuration is in force",
            text.display()
        );
    }
}

/// Returns whether a file is the stream that `JOURNAL_STREAM` names as DEVICE:INODE. A program that a service starts has
/// the variable, too, wherever its output goes.
fn is_stream(file: impl AsFd, named: &str) -> bool {
    fstat(file).is_ok_and(|stat| format!("{}:{}", stat.st_dev, stat.st_ino) == named)
}

/// Stores the function that changes the filter, unless the filter is fixed. (A second start is refused; the settings of
/// the first remain.)
fn begin(changes: bool, set: impl Fn(EnvFilter) -> bool + Send + Sync + 'static) {
    if changes {
        let _ = SET_FILTER.set(Box::new(move |filter| {
            if !set(filter) {
                tracing::warn!("the level of the log stays as it is");
            }
        }));
    }
}

/// Applies the level, unless the environment sets it, and the limit of lines of a kind.
pub(crate) fn set(to: LogConfig) {
    limit().set(to.lines_per_second);
    if let Some(set) = SET_FILTER.get() {
        set(EnvFilter::new(level(to.level)));
    }
}

fn level(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        // Show details of this project only: those of the libraries would bury them. libbpf logs through the last
        // module.
        LogLevel::Debug => {
            "info,longsplice=debug,longsplice_engine=debug,longsplice_repair=debug,\
             longsplice_dataplane=debug,longsplice_dataplane::dataplane=info"
        }
        LogLevel::Trace => "trace",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_journal_is_known_by_its_device_and_inode() {
        let file = tempfile::tempfile().unwrap();
        let m = file.metadata().unwrap();
        let (device, inode) = (m.dev(), m.ino());
        assert!(is_stream(&file, &format!("{device}:{inode}")));
        for other in [
            format!("{device}:{}", inode + 1),
            format!("{}:{inode}", device + 1),
            String::new(),
        ] {
            assert!(!is_stream(&file, &other), "{other}");
        }
    }
}
