//! Runs work in the kernel half that may take longer than a connection should wait: walks over all records, programs put
//! on interfaces. It runs on threads that may block, on none of the runtime's workers, and never after the splicer's end.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering},
};

use longsplice_dataplane::Dataplane;
use tokio::task::spawn_blocking;

use crate::splicer::Inner;

/// Says if such work may be done.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// Held for reading by each thread that works.
    over: RwLock<bool>,
    ending: AtomicBool,
}

impl Upkeep {
    /// Does the work, unless the splicer has ended.
    pub(crate) fn work<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let over = self.over.read().unwrap_or_else(PoisonError::into_inner);
        (!*over).then(work)
    }

    /// Returns true if a task waits for the end: leave to a successor what can be left.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Waits for the work under way, a walk at most; no work begins from now on.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        *self.over.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl Inner {
    /// Does work on a thread that may block. The work is done even if the future is dropped. `None`: it was not done, as
    /// this splicer has no kernel half, or has ended.
    pub(crate) async fn aside<T: Send + 'static>(
        self: &Arc<Inner>,
        work: impl FnOnce(&Inner, &Dataplane) -> T + Send + 'static,
    ) -> Option<T> {
        let splicer = self.clone();
        let done = spawn_blocking(move || {
            let plane = splicer.plane.as_ref()?;
            splicer.upkeep.work(|| work(&splicer, plane))
        });
        match done.await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "work in the kernel half was cut off");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use super::*;

    #[test]
    fn the_end_waits_for_what_is_under_way_and_nothing_begins_after_it() {
        let upkeep = Upkeep::default();
        assert_eq!(upkeep.work(|| 1), Some(1));
        let (began, begins) = channel();
        let (go_on, goes_on) = channel::<()>();
        assert!(!upkeep.is_ending());
        let ended = thread::scope(|scope| {
            let upkeep = &upkeep;
            let working = scope.spawn(move || {
                upkeep.work(|| {
                    began.send(()).expect("somebody waits");
                    goes_on.recv().expect("it is told to");
                    std::time::Instant::now()
                })
            });
            begins.recv().expect("it begins");
            let ending = scope.spawn(|| {
                upkeep.end();
                std::time::Instant::now()
            });
            go_on.send(()).expect("it waits");
            let worked = working.join().expect("no panic").expect("it had begun");
            ending.join().expect("no panic") >= worked
        });
        assert!(ended && upkeep.is_ending());
        assert_eq!(upkeep.work(|| 1), None);
    }
}
