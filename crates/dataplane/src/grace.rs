//! Waits for grace periods of RCU: an entry that a running program may have found is reused only after that program has
//! ended (docs/decisions/0024).

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
    thread,
    time::Duration,
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapType,
    libbpf_sys::{self, bpf_map_create_opts},
};
use parking_lot::{Condvar, Mutex};

use crate::{error::Error, flows::to_io};

/// Time that the thread waits after the kernel has refused, until it asks again.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Key of the only element of the map that is updated.
const KEY: [u8; 4] = [0; 4];

/// Names the end of a grace period; later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// Counts grace periods, which its thread waits for whenever one is wanted. The thread ends after this value.
#[derive(Debug)]
pub(crate) struct Grace {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    counts: Mutex<Counts>,
    changed: Condvar,
}

/// Numbers of grace periods, counted from 1.
#[derive(Debug, Default)]
struct Counts {
    begun: u64,
    passed: u64,
    wanted: u64,
    over: bool,
}

impl Shared {
    /// Waits for one period after the other, as long as more are wanted.
    fn work(&self, wait: impl Fn() -> io::Result<()>) {
        let mut has_failed = false;
        let mut counts = self.counts.lock();
        loop {
            if counts.over {
                return;
            }
            if counts.wanted <= counts.passed {
                self.changed.wait(&mut counts);
                continue;
            }
            counts.begun = counts.passed + 1;
            drop(counts);
            let waited = wait();
            counts = self.counts.lock();
            match waited {
                Ok(()) => {
                    counts.passed = counts.begun;
                    self.changed.notify_all();
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::error!(%error, "cannot wait for a grace period: slots and records that are freed cannot be used again");
                    }
                    self.changed.wait_for(&mut counts, AFTER_FAILURE);
                }
            }
        }
    }
}

impl Grace {
    /// Starts the thread. `wait` returns when every program is done that ran when it was called.
    pub(crate) fn new(wait: impl Fn() -> io::Result<()> + Send + 'static) -> io::Result<Grace> {
        let shared = Arc::<Shared>::default();
        let working = shared.clone();
        thread::Builder::new()
            .name("grace".into())
            .spawn(move || working.work(wait))?;
        Ok(Grace { shared })
    }

    /// Starts the thread with the kernel's grace periods.
    pub(crate) fn of_kernel() -> Result<Grace, Error> {
        let wait = kernels_wait().map_err(|e| Error::from_bpf("cannot make a map of maps", &e))?;
        Grace::new(wait).map_err(|e| Error::from_io("cannot start a thread", e))
    }

    /// Names the end of the first grace period that begins after this call, and makes the thread wait for it.
    pub(crate) fn next(&self) -> Moment {
        let mut counts = self.shared.counts.lock();
        let next = counts.begun + 1;
        if counts.wanted < next {
            counts.wanted = next;
            self.shared.changed.notify_all();
        }
        Moment(next)
    }

    /// Returns true if a grace period has passed.
    pub(crate) fn has_passed(&self, moment: Moment) -> bool {
        self.shared.counts.lock().passed >= moment.0
    }

    /// Waits until a whole grace period has passed from now on, or the kernel has refused for so long.
    pub(crate) fn wait(&self, longest: Duration) -> io::Result<()> {
        let Moment(end) = self.next();
        let mut counts = self.shared.counts.lock();
        let waiting = |counts: &mut Counts| counts.passed < end;
        self.shared.changed.wait_while_for(&mut counts, waiting, longest);
        match counts.passed >= end {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.shared.counts.lock().over = true;
        self.shared.changed.notify_all();
    }
}

/// Makes a map of maps. An update of it returns when every program that ran before it is done: the kernel promises that,
/// so that no program has the old map any more (`maybe_wait_bpf_programs`).
fn kernels_wait() -> libbpf_rs::Result<impl Fn() -> io::Result<()> + Send + 'static> {
    let opts = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let inner = MapHandle::create(MapType::Array, Some("ls_grace_inner"), 4, 4, 1, &opts)?;
    let opts = bpf_map_create_opts {
        inner_map_fd: inner.as_fd().as_raw_fd() as u32,
        ..opts
    };
    let outer = MapHandle::create(MapType::ArrayOfMaps, Some("ls_grace"), 4, 4, 1, &opts)?;
    Ok(move || {
        let value = inner.as_fd().as_raw_fd().to_ne_bytes();
        outer.update(&KEY, &value, MapFlags::ANY).map_err(to_io)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Simulates a kernel whose grace periods end when the test says so.
    pub(crate) struct Kernel {
        pub(crate) begins: Receiver<()>,
        pub(crate) ends: Sender<()>,
    }

    impl Kernel {
        pub(crate) fn new() -> (Grace, Kernel) {
            let ((begin, begins), (ends, end)) = (channel(), channel());
            let wait = move || {
                let told = begin.send(()).map_err(io::Error::other);
                told.and_then(|()| end.recv().map_err(io::Error::other))
            };
            (Grace::new(wait).expect("a thread"), Kernel { begins, ends })
        }

        /// Ends one grace period that is wanted.
        pub(crate) fn pass(&self, grace: &Grace) {
            self.begins.recv().expect("it is wanted");
            let begun = grace.shared.counts.lock().begun;
            self.ends.send(()).expect("it is waited for");
            while !grace.has_passed(Moment(begun)) {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_period_that_has_begun_is_not_enough() {
        let (grace, kernel) = Kernel::new();
        let first = grace.next();
        kernel.begins.recv().expect("it begins");
        let later = grace.next();
        assert!(later > first && !grace.has_passed(first));
        kernel.ends.send(()).expect("it is waited for");
        kernel.begins.recv().expect("the next one begins");
        assert!(grace.has_passed(first) && !grace.has_passed(later));
        kernel.ends.send(()).expect("it is waited for");
        while !grace.has_passed(later) {
            thread::yield_now();
        }
        assert!(kernel.begins.try_recv().is_err(), "no more is wanted");
    }

    #[test]
    fn the_thread_ends_with_its_owner() {
        let (grace, kernel) = Kernel::new();
        drop(grace);
        assert!(kernel.begins.recv().is_err(), "it has let go of its end");
    }
}
