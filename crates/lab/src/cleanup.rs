//! Removes what this process made when it is interrupted, and what a killed process left behind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Error;
use crate::netns;

/// Thing that outlives this process unless it is removed.
pub(crate) trait Remove: Send + Sync {
    /// Removes it; does nothing if it is already removed.
    fn remove(&self);
}

/// Entry in the list of live things. Give it up with [`forget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(u64);

static LIVE: Mutex<Option<HashMap<Ticket, Weak<dyn Remove>>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(0);
static CLOSING: AtomicBool = AtomicBool::new(false);
/// True once a signal was received: the process ends as soon as everything is removed.
static EXITING: AtomicBool = AtomicBool::new(false);

fn live() -> MutexGuard<'static, Option<HashMap<Ticket, Weak<dyn Remove>>>> {
    // The map is valid after any panic of another holder.
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes `thing`, before it is created: an interruption must find it however early it comes.
pub(crate) fn remember(thing: Weak<dyn Remove>) -> Result<Ticket, Error> {
    let mut live = live();
    if CLOSING.load(Ordering::Relaxed) {
        return Err(Error::Closing);
    }
    let ticket = Ticket(NEXT.fetch_add(1, Ordering::Relaxed));
    live.get_or_insert_default().insert(ticket, thing);
    Ok(ticket)
}

/// Takes a removed thing off the list. Does not return after a signal: the thread may be here only because the signal
/// handler killed the program that it waited for, and must not end the process with a status of its own.
pub(crate) fn forget(ticket: Ticket) {
    while EXITING.load(Ordering::Relaxed) {
        thread::park();
    }
    if let Some(map) = live().as_mut() {
        map.remove(&ticket);
    }
}

/// Removes every namespace and process that this process made and still holds. No more can be made afterwards.
pub fn remove_all() {
    let things: Vec<_> = {
        let mut live = live();
        CLOSING.store(true, Ordering::Relaxed);
        live.take().into_iter().flat_map(HashMap::into_values).collect()
    };
    // Release the lock first: removing a thing may drop guards, which call `forget`.
    for thing in things.iter().filter_map(Weak::upgrade) {
        thing.remove();
    }
}

/// Makes SIGINT and SIGTERM remove everything and then end the process with status 130 or 143.
///
/// A panic that unwinds drops the guards of its own thread and leaves those of other threads, such as other tests,
/// alone. A panic under `panic = "abort"` drops nothing, so a hook removes everything. Calling this twice does no
/// harm.
///
/// # Errors
/// [`Error::Io`] when the signals cannot be caught.
pub fn install() -> Result<(), Error> {
    static INSTALLED: Once = Once::new();
    let mut result = Ok(());
    INSTALLED.call_once(|| result = catch_signals());
    result
}

fn catch_signals() -> Result<(), Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Error::io("catch signals"))?;
    thread::Builder::new()
        .name("lab-signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                EXITING.store(true, Ordering::Relaxed);
                remove_all();
                std::process::exit(128 + signal);
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
