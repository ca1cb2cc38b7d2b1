//! Keeps slots that their flows have left, until no segment can be on its way through them.

use std::time::Duration;

use longsplice_dataplane::{Dataplane, Leg, Mode, PerSide, Slot};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Time that a slot stays after its flow has left it.
pub(crate) const QUARANTINE: Duration = Duration::from_millis(100);

/// Longest time for which notes in a slot count. They stay as they are while the flow runs on: a daemon that was stopped
/// might take a timestamp that has gone half around for one ahead.
const NOTES_COUNT: Duration = Duration::from_secs(1);

/// Slot that its flow has left.
#[derive(Debug)]
struct LeftSlot {
    slot: Slot,
    /// Place of the flow: its legs and the interfaces toward the far ends. `None`: notes in the slot do not count.
    place: Option<(PerSide<Leg>, PerSide<u32>)>,
    since: Instant,
}

impl LeftSlot {
    /// Collects what segments noted in the slot after it was left, and frees it.
    fn free(self, plane: &Dataplane) {
        if let Some((legs, interfaces)) = self.place
            && self.slot.mode() == Mode::Moved
            && self.since.elapsed() < NOTES_COUNT
        {
            let _ = plane.demote(&self.slot, legs, interfaces);
        }
    }
}

/// Holds the slots that may still be in use by another processor.
#[derive(Debug, Default)]
pub(crate) struct Quarantine(Mutex<Vec<LeftSlot>>);

impl Quarantine {
    /// Takes a slot. `interfaces`: those toward the far ends, 0 if unknown.
    pub(crate) fn put(&self, slot: Slot, legs: PerSide<Leg>, interfaces: PerSide<u32>) {
        self.hold(slot, Some((legs, interfaces)));
    }

    /// Takes a slot that its flow has left at an unknown time.
    pub(crate) fn put_old(&self, slot: Slot) {
        self.hold(slot, None);
    }

    fn hold(&self, slot: Slot, place: Option<(PerSide<Leg>, PerSide<u32>)>) {
        let since = Instant::now();
        self.0.lock().push(LeftSlot { slot, place, since });
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
