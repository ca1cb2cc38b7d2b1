//! What all listeners of a process share: its descriptors.

use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Descriptors for everything that is no connection: listeners, maps, programs, netlink, the admin interface.
const RESERVED: u64 = 128;
/// Where the limit is so low that nothing would be left for connections.
const FEWEST_PAIRS: u64 = 1;

/// The descriptors of the process, two for each connection.
///
/// Without this budget, accepting would use up the descriptors that the connections accepted need to reach their
/// targets, and each client would be reset instead of having to wait.
#[derive(Debug)]
pub struct Resources {
    pairs: Arc<Semaphore>,
    /// Woken whenever a connection has ended and its descriptors are free.
    pub(super) freed: Notify,
}

impl Resources {
    /// Raises the limit of this process as far as the system allows, and shares it out.
    pub fn of_this_process() -> Arc<Self> {
        let raise = |(soft, hard)| {
            // Refused, the old limit is what there is.
            if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
                hard
            } else {
                soft
            }
        };
        // What cannot be read does not limit: accept(2) will say when it is reached.
        Resources::within(getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, raise))
    }

    /// Shares out this many descriptors.
    pub fn within(descriptors: u64) -> Arc<Self> {
        let pairs = (descriptors.saturating_sub(RESERVED) / 2).max(FEWEST_PAIRS);
        let pairs = usize::try_from(pairs)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Arc::new(Resources {
            pairs: Arc::new(Semaphore::new(pairs)),
            freed: Notify::new(),
        })
    }

    /// Descriptors for one connection, if there are some now.
    pub(super) fn try_pair(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.pairs).try_acquire_owned().ok()
    }

    /// The same, once there are. `None` would mean that the budget was closed, which it never is.
    pub(super) async fn pair(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.pairs).acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_for_each_connection_and_some_kept_back() {
        for (descriptors, pairs) in [(0, 1), (128, 1), (1024, 448), (20_000, 9_936)] {
            assert_eq!(Resources::within(descriptors).pairs.available_permits(), pairs);
        }
        assert_eq!(
            Resources::within(u64::MAX).pairs.available_permits(),
            Semaphore::MAX_PERMITS
        );
    }
}
