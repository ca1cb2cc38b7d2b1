//! Loads programs while signals come: the kernel's verifier gives up when one is pending for its thread (`bpf_check`:
//! EAGAIN). libbpf tries five times at once, which a busy moment may use up.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::error::Error;

/// Maximum number of attempts to load programs. Interruptions that come although signals are blocked, by a freezer or a
/// debugger, are rare.
const ATTEMPTS: u32 = 10;

/// Signals of the thread's own faults: they cannot be deferred.
const FAULTS: [Signal; 5] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
    Signal::SIGTRAP,
];

/// Loads programs with this thread's signals blocked, and again if the verifier was interrupted all the same. Fails
/// with the error of `load`, or with [`Error::Interrupted`] after the last attempt.
pub(crate) fn retry_load<T>(load: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let _quiet = Quiet::begin();
    for attempt in 1..ATTEMPTS {
        match load() {
            Err(Error::Interrupted { what }) => tracing::debug!(what, attempt, "interrupted: once more"),
            done => return done,
        }
    }
    load()
}

/// Blocks the signals of this thread for as long as it lives; those of the process find other threads.
#[derive(Debug)]
struct Quiet {
    before: Option<SigSet>,
}

impl Quiet {
    fn begin() -> Quiet {
        let mut all = SigSet::all();
        FAULTS.into_iter().for_each(|fault| all.remove(fault));
        Quiet {
            before: all.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok(),
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // It cannot fail: this mask was in force before.
            let _ = before.thread_set_mask();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn interrupted() -> Error {
        let busy = libbpf_rs::Error::from(std::io::Error::from_raw_os_error(libc::EAGAIN));
        Error::from_load("cannot load", &busy)
    }

    #[test]
    fn an_interruption_is_no_end_and_many_are() {
        for (interruptions, attempts) in [(0, 1), (1, 2), (ATTEMPTS - 1, ATTEMPTS), (1000, ATTEMPTS)] {
            let tried = Cell::new(0);
            let done = retry_load(|| {
                tried.set(tried.get() + 1);
                if tried.get() > interruptions {
                    Ok(())
                } else {
                    Err(interrupted())
                }
            });
            assert_eq!(tried.get(), attempts);
            match done {
                Ok(()) => assert!(interruptions < ATTEMPTS),
                Err(error) => {
                    assert!(interruptions >= ATTEMPTS);
                    assert!(error.to_string().contains("interrupted"), "{error}");
                }
            }
        }
    }

    #[test]
    fn another_error_is_the_end() {
        let tried = Cell::new(0);
        let done: Result<(), Error> = retry_load(|| {
            tried.set(tried.get() + 1);
            let refused = libbpf_rs::Error::from(std::io::Error::from_raw_os_error(libc::EACCES));
            Err(Error::from_load("cannot load", &refused))
        });
        assert!(matches!(done, Err(Error::Unsupported { .. })));
        assert_eq!(tried.get(), 1);
    }

    #[test]
    fn signals_are_as_before_afterwards() {
        let before = SigSet::thread_get_mask().expect("a mask");
        let within = retry_load(|| Ok(SigSet::thread_get_mask().expect("a mask")));
        let within = within.expect("it loads nothing");
        assert!(within.contains(Signal::SIGTERM) && !within.contains(Signal::SIGSEGV));
        assert_eq!(SigSet::thread_get_mask().expect("a mask"), before);
    }
}
