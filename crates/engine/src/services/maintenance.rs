//! Runs work in the kernel half that may take longer than a connection should wait: walks over all records, programs put
//! on interfaces. It runs on threads that may block, on none of the runtime's workers, and never after the splicer's end.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

/// Says if such work may be done.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    /// Held for reading by each thread that works.
    over: RwLock<bool>,
    ending: AtomicBool,
}

impl Maintenance {
    /// Does the work, unless the splicer has ended.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let over = self.over.read();
        (!*over).then(work)
    }

    /// Returns true if a task waits for the end: leave to a successor what can be left.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Waits for the work under way, a walk at most; no work begins from now on.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        *self.over.write() = true;
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use super::*;

    #[test]
    fn the_end_waits_for_what_is_under_way_and_nothing_begins_after_it() {
        let maintenance = Maintenance::default();
        assert_eq!(maintenance.run(|| 1), Some(1));
        let (began, begins) = channel();
        let (go_on, goes_on) = channel::<()>();
        assert!(!maintenance.is_ending());
        let ended = thread::scope(|scope| {
            let maintenance = &maintenance;
            let working = scope.spawn(move || {
                maintenance.run(|| {
                    began.send(()).expect("the test waits");
                    goes_on.recv().expect("it is told to");
                    std::time::Instant::now()
                })
            });
            begins.recv().expect("it begins");
            let ending = scope.spawn(|| {
                maintenance.end();
                std::time::Instant::now()
            });
            go_on.send(()).expect("it waits");
            let worked = working.join().expect("no panic").expect("it had begun");
            ending.join().expect("no panic") >= worked
        });
        assert!(ended && maintenance.is_ending());
        assert_eq!(maintenance.run(|| 1), None);
    }
}
