//! Keeps slots that their flows have left, until no segment can be on its way through them.

use std::time::Duration;

use longsplice_dataplane::{Dataplane, Leg, Mode, PerSide, Slot};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Time that a slot stays after its flow has left it.
pub(crate) const QUARANTINE: Duration = Duration::from_millis(100);

/// Slot that its flow has left.
#[derive(Debug)]
struct LeftSlot {
    slot: Slot,
    legs: PerSide<Leg>,
    interfaces: PerSide<u32>,
    since: Instant,
}

impl LeftSlot {
    /// Collects what segments noted in the slot after it was left, and frees it.
    fn free(self, plane: &Dataplane) {
        if self.slot.mode() == Mode::Moved {
            let _ = plane.demote(&self.slot, self.legs, self.interfaces);
        }
    }
}

/// Holds the slots that may still be in use by another processor.
#[derive(Debug, Default)]
pub(crate) struct Quarantine(Mutex<Vec<LeftSlot>>);

impl Quarantine {
    /// Takes a slot. `interfaces`: those toward the far ends, 0 if unknown.
    pub(crate) fn put(&self, slot: Slot, legs: PerSide<Leg>, interfaces: PerSide<u32>) {
        let left = LeftSlot {
            slot,
            legs,
            interfaces,
            since: Instant::now(),
        };
        self.0.lock().push(left);
    }

    /// Frees the slots that came at least `age` ago.
    pub(crate) fn free(&self, plane: &Dataplane, age: Duration) {
        let now = Instant::now();
        let is_due = |left: &mut LeftSlot| now.duration_since(left.since) >= age;
        let due: Vec<_> = self.0.lock().extract_if(.., is_due).collect();
        due.into_iter().for_each(|left| left.free(plane));
    }

    /// Returns true if it holds no slot.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
