//! Waiting for what must come, without knowing when.

use std::{
    env,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// How long something may take that takes moments on an idle machine. Only a test that fails waits so long.
pub const SOON: Duration = Duration::from_secs(20);

/// How often one looks where no event tells.
const LOOK: Duration = Duration::from_millis(5);

/// A limit of time on this machine: so many times longer as the environment variable `LONGSPLICE_PATIENCE` says, for one that is
/// emulated; without it, as it is.
pub fn patient(limit: Duration) -> Duration {
    static FACTOR: LazyLock<u32> = LazyLock::new(|| {
        let word = env::var("LONGSPLICE_PATIENCE");
        word.map_or(1, |word| {
            word.parse().expect("LONGSPLICE_PATIENCE: a whole number")
        })
    });
    limit * *FACTOR
}

/// Waits until `probe` answers something, at most for `limit` ([`patient`]).
pub fn eventually<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    eventually_or(|| what.to_owned(), limit, probe)
}

/// The same; in the end `what` says what it waited for, and what there was instead.
pub fn eventually_or<T>(
    what: impl Fn() -> String,
    limit: Duration,
    mut probe: impl FnMut() -> Option<T>,
) -> T {
    let (limit, start) = (patient(limit), Instant::now());
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain for {}", what());
        thread::sleep(LOOK);
    }
}

/// Waits until `condition` holds, for [`SOON`].
pub fn soon(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, SOON, || condition().then_some(()));
}
