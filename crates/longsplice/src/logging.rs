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
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt,
    layer::{Layered, SubscriberExt},
    reload,
    util::SubscriberInitExt,
};

use limit::Limited;
pub(crate) use limit::{PERIOD, limit, tell_suppressed};
use writer::StandardError;

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Environment variable that overrides the level, also for single modules.
pub(crate) const ENV: &str = "LONGSPLICE_LOG";

/// Formats lines, and writes them.
type Lines = Box<dyn Layer<Registry> + Send + Sync>;

/// Filter of the running log, unless the environment fixes it.
static FILTER: OnceLock<reload::Handle<EnvFilter, Layered<Lines, Registry>>> = OnceLock::new();

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
    let lines = fmt::layer()
        .with_target(false)
        .with_writer(|| StandardError)
        .log_internal_errors(false);
    let lines: Lines = match config.format {
        LogFormat::Json => lines.json().flatten_event(true).map_event_format(Limited).boxed(),
        LogFormat::Text => {
            let lines = lines.with_ansi(io::stderr().is_terminal());
            // The journal adds its own time.
            match env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stream(io::stderr(), &stream)) {
                true => lines.without_time().map_event_format(Limited).boxed(),
                false => lines.map_event_format(Limited).boxed(),
            }
        }
    };
    let (filter, handle) = reload::Layer::new(filter);
    let started = tracing_subscriber::registry().with(lines).with(filter).try_init();
    // A second start is refused; the settings of the first remain.
    if started.is_ok() && !given {
        let _ = FILTER.set(handle);
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

/// Applies the level, unless the environment sets it, and the limit of lines of a kind.
pub(crate) fn set(to: LogConfig) {
    limit().set(to.lines_per_second);
    if let Some(filter) = FILTER.get()
        && filter.reload(EnvFilter::new(level(to.level))).is_err()
    {
        tracing::warn!("the level of the log stays as it is");
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
