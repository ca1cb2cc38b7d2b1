//! Budgets the descriptors of the process.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Descriptors for uses that are not counted: listeners, maps, programs, netlink, the admin interface, logs.
const RESERVED: u64 = 128;
/// Smallest budget for connections, even under a very low limit.
const FEWEST: u64 = 2;

/// Divisor and bound of the share of the rest that is for checks and look-ups of names.
const UPKEEP: u64 = 16;
const MOST_UPKEEP: u64 = 4096;

/// Divisor of the connections' share that idle connections to servers may take.
const IDLE: usize = 4;

/// Descriptors of the process: two for each client connection, one for each idle connection to a server, and a share
/// for the daemon's own checks and look-ups.
///
/// Without this budget, accepting would use up the descriptors that accepted connections need to reach their targets,
/// and each client would be reset instead of having to wait. Checks would fail, too, and take healthy servers out.
#[derive(Debug)]
pub(crate) struct Resources {
    connections: Arc<Semaphore>,
    idle: Arc<Semaphore>,
    upkeep: Arc<Semaphore>,
    most_upkeep: u32,
    /// Number of client connections that wait for descriptors.
    waiting: AtomicUsize,
    /// Wakes a task when a connection has ended and its descriptors are free.
    pub(crate) freed: Notify,
}

/// Descriptor of an idle connection, released when it is dropped.
#[derive(Debug)]
pub(crate) struct IdleDescriptor {
    _share: OwnedSemaphorePermit,
    _one: OwnedSemaphorePermit,
}

impl Resources {
    /// Returns the budget of this process. The first call raises the limit as far as the system allows, and divides it.
    pub(crate) fn of_this_process() -> &'static Arc<Resources> {
        static SHARED: OnceLock<Arc<Resources>> = OnceLock::new();
        SHARED.get_or_init(|| {
            // `None` means no limit: accept(2) fails when the system's is reached.
            let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
            let raised = Rlimit {
                current: maximum,
                maximum,
            };
            // Keep the old limit if the system refuses.
            let most = match setrlimit(Resource::Nofile, raised) {
                Ok(()) => maximum,
                Err(_) => current,
            };
            Resources::within(most.unwrap_or(u64::MAX))
        })
    }

    /// Divides this many descriptors.
    pub(crate) fn within(descriptors: u64) -> Arc<Self> {
        let rest = descriptors.saturating_sub(RESERVED);
        let upkeep = (rest / UPKEEP).clamp(1, MOST_UPKEEP);
        let connections = rest.saturating_sub(upkeep).max(FEWEST);
        let connections = usize::try_from(connections)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Arc::new(Resources {
            connections: Arc::new(Semaphore::new(connections)),
            idle: Arc::new(Semaphore::new(connections / IDLE)),
            upkeep: Arc::new(Semaphore::new(upkeep as usize)),
            most_upkeep: upkeep as u32,
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
        })
    }

    /// Takes descriptors for one connection, if they are free now.
    pub(crate) fn try_pair(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_many_owned(2).ok()
    }

    /// Takes descriptors for one connection as soon as they are free; idle connections give way. Returns `None` only if
    /// the budget is closed, which never happens. Cancel-safe.
    pub(crate) async fn pair(&self) -> Option<OwnedSemaphorePermit> {
        let _waiting = Waiting::among(&self.waiting);
        Arc::clone(&self.connections).acquire_many_owned(2).await.ok()
    }

    /// Takes a descriptor for an idle connection, if one can be spared.
    pub(crate) fn try_idle(&self) -> Option<IdleDescriptor> {
        if self.is_short() {
            return None;
        }
        Some(IdleDescriptor {
            _share: Arc::clone(&self.idle).try_acquire_owned().ok()?,
            _one: Arc::clone(&self.connections).try_acquire_owned().ok()?,
        })
    }

    /// Returns whether clients wait for descriptors.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Takes descriptors for the daemon's own work as soon as they are free: each such use ends in bounded time.
    /// Cancel-safe.
    pub(crate) async fn upkeep(&self, descriptors: u32) -> Option<OwnedSemaphorePermit> {
        let descriptors = descriptors.min(self.most_upkeep);
        Arc::clone(&self.upkeep)
            .acquire_many_owned(descriptors)
            .await
            .ok()
    }
}

/// Counts a waiting client until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn among(all: &AtomicUsize) -> Waiting<'_> {
        all.fetch_add(1, Ordering::Relaxed);
        Waiting(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_for_each_connection_and_some_kept_back() {
        for (descriptors, connections, upkeep) in
            [(0, 2, 1), (128, 2, 1), (1024, 840, 56), (20_000, 18_630, 1242)]
        {
            let resources = Resources::within(descriptors);
            assert_eq!(resources.connections.available_permits(), connections);
            assert_eq!(resources.upkeep.available_permits(), upkeep);
        }
        assert_eq!(
            Resources::within(u64::MAX).connections.available_permits(),
            Semaphore::MAX_PERMITS
        );
    }

    #[tokio::test]
    async fn idle_connections_are_counted_and_give_way() {
        let resources = Resources::within(RESERVED + 17);
        assert_eq!(resources.connections.available_permits(), 16);
        let mut idle: Vec<_> = std::iter::from_fn(|| resources.try_idle()).collect();
        assert_eq!(idle.len(), 4, "a quarter");
        let pairs: Vec<_> = std::iter::from_fn(|| resources.try_pair()).collect();
        assert_eq!(pairs.len(), 6);
        idle.pop();
        assert!(resources.try_idle().is_some() && !resources.is_short());
        let (all, mut waiting) = (Arc::clone(&resources), Box::pin(resources.pair()));
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("there are none"),
            () = std::future::ready(()) => {}
        }
        assert!(all.is_short() && all.try_idle().is_none(), "a client comes first");
        idle.clear();
        assert!(waiting.await.is_some());
        assert!(!all.is_short());
    }

    #[tokio::test]
    async fn upkeep_has_a_share_of_its_own() {
        let resources = Resources::within(0);
        let _pair = resources.try_pair().expect("the fewest");
        // A request for more than the share gets the whole share.
        assert!(resources.upkeep(2).await.is_some());
    }
}
