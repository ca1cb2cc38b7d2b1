//! Names a flow for tasks that do not hold the pair.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use std::time::Duration;

use longsplice_core::reason::SpliceReason;
use longsplice_dataplane::{PerSide, Side};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::api::FlowId;

/// Names the flow of a pair while [`crate::Splicer::splice`] has it: [`crate::Pair::with_handle`]. All clones name the
/// same flow.
#[derive(Debug, Clone, Default)]
pub struct FlowHandle(Arc<Named>);

#[derive(Debug, Default)]
struct Named {
    /// Number of the flow plus one; 0 if there is none yet.
    number: AtomicU64,
    /// True if it was spliced in the present call.
    spliced: AtomicBool,
    /// Reason of the advisor for the last splice; `None` if it was asked for otherwise.
    reason: Mutex<Option<SpliceReason>>,
    changed: Notify,
    /// Lowest round-trip times of the legs, in nanoseconds; 0: not measured.
    round_trips: PerSide<AtomicU64>,
    measured: Notify,
}

/// Converts a round-trip time; 0 stands for one that was not measured.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl FlowHandle {
    /// Returns the flow; the last one, if there were several. `None` before the first call has begun, and from
    /// [`FlowHandle::clear`] to the next call.
    pub fn id(&self) -> Option<FlowId> {
        let number = self.0.number.load(Ordering::Acquire).checked_sub(1)?;
        u32::try_from(number).ok().map(FlowId)
    }

    /// Waits until the pair is spliced: in the present call, or the next one that has this handle. Waits for ever if it
    /// is only relayed. Cancel-safe.
    pub async fn spliced(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.0.spliced.load(Ordering::Acquire) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the advisor's reason for the splice of the present call; `None` if a policy or a request asked for it.
    pub fn reason(&self) -> Option<SpliceReason> {
        *self.0.reason.lock()
    }

    /// Sets the advisor's reason for the splice that begins.
    pub(crate) fn set_reason(&self, reason: SpliceReason) {
        *self.0.reason.lock() = Some(reason);
    }

    /// Notes the round-trip time of a leg's handshake, and tells the task that relays the pair.
    pub fn note_round_trip(&self, side: Side, time: Duration) {
        self.0.round_trips[side].store(nanoseconds(time), Ordering::Release);
        self.0.measured.notify_one();
    }

    /// Returns the round-trip times of the legs, as far as they were measured: those of their handshakes, and once the pair
    /// is spliced the lowest ones that it has met.
    pub fn round_trips(&self) -> PerSide<Option<Duration>> {
        PerSide::from_fn(|side| match self.0.round_trips[side].load(Ordering::Acquire) {
            0 => None,
            time => Some(Duration::from_nanos(time)),
        })
    }

    /// Waits until a further round-trip time is noted. Cancel-safe.
    pub(crate) async fn measured(&self) {
        self.0.measured.notified().await;
    }

    /// Sets the flow at the beginning of a call.
    pub(crate) fn set(&self, id: FlowId) {
        *self.0.reason.lock() = None;
        self.0.spliced.store(false, Ordering::Release);
        self.0.number.store(u64::from(id.0) + 1, Ordering::Release);
    }

    /// Forgets the flow of a call that is over.
    pub fn clear(&self) {
        self.0.number.store(0, Ordering::Release);
    }

    /// Notes that segments bypass the sockets from now on, and the lowest round-trip times that the legs had until here.
    pub(crate) fn note_spliced(&self, lowest: PerSide<Option<Duration>>) {
        for side in Side::BOTH {
            let known = [self.round_trips()[side], lowest[side]];
            if let Some(least) = known.into_iter().flatten().min() {
                self.0.round_trips[side].store(nanoseconds(least), Ordering::Release);
            }
        }
        self.0.spliced.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_splice_hears_of_this_one_and_not_of_the_last() {
        let handle = FlowHandle::default();
        assert_eq!(handle.id(), None);
        handle.set(FlowId(0));
        assert_eq!(handle.id(), Some(FlowId(0)));
        let other = handle.clone();
        let waits = tokio::spawn(async move { other.spliced().await });
        yield_now().await;
        assert!(!waits.is_finished());
        handle.note_spliced(PerSide::both(None));
        waits.await.unwrap();
        handle.spliced().await;
        handle.set(FlowId(7));
        let again = handle.clone();
        let waits = tokio::spawn(async move { again.spliced().await });
        yield_now().await;
        assert!(!waits.is_finished(), "that was the call before");
        handle.note_spliced(PerSide::both(None));
        waits.await.unwrap();
    }
}
