//! Removes what this process made when it is interrupted, and what a killed process left behind.

use std::sync::Once;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Error;
use crate::{netns, registry};

pub use crate::registry::remove_all;

/// Makes SIGINT and SIGTERM remove everything and then end the process with status 130 or 143.
///
/// A panic that unwinds drops the guards of its own thread and leaves those of other threads, such as other tests,
/// alone. A panic under `panic = "abort"` drops nothing, so a hook removes everything. Calling this twice does no
/// harm.
///
/// # Errors
/// [`Error::Io`] when the signals cannot be caught.
pub fn install() -> Result<(), Error> {
    install_then(|| ())
}

/// Does as [`install`], and calls `last` once a signal has ended all processes and removed all namespaces: it removes
/// what they leave elsewhere.
///
/// # Errors
/// Those of [`install`].
pub fn install_then(last: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    static INSTALLED: Once = Once::new();
    let mut result = Ok(());
    INSTALLED.call_once(|| result = catch_signals(last));
    result
}

fn catch_signals(last: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Error::io("catch signals"))?;
    thread::Builder::new()
        .name("lab-signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                registry::exit(128 + signal, last);
            }
        })
        .map_err(Error::io("start the signal thread"))?;
    if cfg!(panic = "abort") {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            remove_all();
        }));
    }
    Ok(())
}

/// Removes the namespaces made by [`crate::Namespace::new`] with a prefix that starts with `prefix`, and the processes
/// in them, when the process that made them is gone. Returns their number.
///
/// A process id that was given to a new process hides leftovers until that process ends too.
///
/// # Errors
/// [`Error::Io`] when the list of namespaces cannot be read, [`Error::Tool`] when one cannot be removed; the others are
/// removed by then.
pub fn sweep(prefix: &str) -> Result<usize, Error> {
    let (mut swept, mut failed) = (0, None);
    for name in netns::names()? {
        if !name.starts_with(prefix) || !netns::is_left_over(&name) {
            continue;
        }
        match netns::destroy(&name) {
            Ok(()) => swept += 1,
            // Another process has removed it meanwhile.
            Err(_) if !netns::names()?.contains(&name) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(swept), Err)
}
