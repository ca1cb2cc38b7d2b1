//! Reads the files of a configuration. A file may be on a file system that hangs, or be a pipe that nothing is written to.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};

use super::ReloadError;
use crate::{access_log::LogTarget, config::Config, tls::Terminator};

/// Longest time for reading the configuration, and for reading the files that it names.
pub(super) const READING: Duration = Duration::from_secs(10);

/// Objects that the files of a configuration make.
pub(super) struct Files {
    pub(super) terminators: HashMap<String, Arc<Terminator>>,
    pub(super) log: Option<LogTarget>,
}

impl Files {
    /// Reads the certificates of a configuration, and opens its access log. Cancel-safe.
    pub(super) async fn open(config: &Config) -> Result<Files, ReloadError> {
        let config = config.clone();
        let open = move || {
            Ok(Files {
                terminators: terminators(&config)?,
                log: config
                    .operations
                    .access_log
                    .as_ref()
                    .map(LogTarget::open)
                    .transpose()?,
            })
        };
        in_time(READING, open).await
    }
}

fn terminators(config: &Config) -> Result<HashMap<String, Arc<Terminator>>, ReloadError> {
    let mut all = HashMap::new();
    for listener in &config.listeners {
        let terminator = Terminator::of(listener).map_err(|e| ReloadError::Tls(listener.name.clone(), e))?;
        all.extend(terminator.map(|terminator| (listener.name.clone(), terminator)));
    }
    Ok(all)
}

/// Reads files in a thread of its own, which is left behind if it takes longer than this. Cancel-safe.
pub(super) async fn in_time<T: Send + 'static>(
    limit: Duration,
    read: impl FnOnce() -> Result<T, ReloadError> + Send + 'static,
) -> Result<T, ReloadError> {
    match timeout(limit, spawn_blocking(read)).await {
        Ok(read) => read?,
        Err(_) => Err(ReloadError::Late(limit)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_read_to_its_end_is_given_up() {
        let (end, never) = mpsc::channel::<()>();
        let stuck = move || Ok(never.recv().is_ok());
        let error = in_time(Duration::from_millis(1), stuck).await.unwrap_err();
        assert!(error.to_string().contains("took longer than 1ms"), "{error}");
        drop(end);
        assert!(in_time(READING, || Ok(true)).await.unwrap());
        let error = in_time(READING, || Err::<(), _>(ReloadError::NoFile)).await;
        assert!(matches!(error, Err(ReloadError::NoFile)), "{error:?}");
    }
}
