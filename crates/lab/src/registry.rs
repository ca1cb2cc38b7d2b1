//! Lists what this process made and still holds.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::Error;

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

/// Notes `thing`, before it is created: an interruption must find it however early it comes.
pub(crate) fn remember(thing: Weak<dyn Remove>) -> Result<Ticket, Error> {
    let mut live = LIVE.lock();
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
    if let Some(map) = LIVE.lock().as_mut() {
        map.remove(&ticket);
    }
}

/// Removes every namespace and process that this process made and still holds. No more can be made afterwards.
pub fn remove_all() {
    let things: Vec<_> = {
        let mut live = LIVE.lock();
        CLOSING.store(true, Ordering::Relaxed);
        live.take().into_iter().flat_map(HashMap::into_values).collect()
    };
    // Release the lock first: removing a thing may drop guards, which call `forget`.
    for thing in things.iter().filter_map(Weak::upgrade) {
        thing.remove();
    }
}

/// Removes everything, calls `last`, and ends the process with a status.
pub(crate) fn exit(status: i32, last: impl FnOnce()) -> ! {
    EXITING.store(true, Ordering::Relaxed);
    remove_all();
    last();
    std::process::exit(status)
}
