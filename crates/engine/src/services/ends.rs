//! Reports the end of detached flows that no task waits for.

use std::{collections::HashMap, fmt, sync::OnceLock};

use longsplice_core::reap;
use longsplice_dataplane::{Direction, PerSide};
use parking_lot::Mutex;

use super::sighting::Sighting;
use crate::api::FlowId;

/// Reports the end of a flow that no task waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEnded {
    /// Identity of the flow.
    pub id: FlowId,
    /// Outcome of the flow.
    pub how: FlowEnd,
    /// Payload bytes since the beginning of the call of [`crate::Splicer::splice`] in which it was detached: from client
    /// to server, and from server to client. Retransmitted bytes count again. `None`: its records are gone.
    pub bytes: Option<PerSide<u64>>,
    /// Payload bytes of both directions that bypassed the sockets.
    pub bytes_spliced: Option<u64>,
}

/// Outcome of a flow that no task waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEnd {
    /// Both ends closed in order.
    Closed,
    /// An end was reset.
    Reset,
    /// Nothing passed for longer than [`crate::SplicerConfig::idle_timeout`].
    Idle,
    /// A request ended it ([`crate::Splicer::request_end`]).
    Admin,
    /// Its records were removed before they were looked at: a new connection took their place (RFC 9293 section
    /// 3.10.7.4), as it may after an end.
    Replaced,
}

type Tell = Box<dyn Fn(FlowEnded) + Send + Sync>;

/// Holds the flows whose end is to be reported.
#[derive(Default)]
pub(crate) struct Ends {
    tell: OnceLock<Tell>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    left: HashMap<u32, Left>,
    /// Counts of those few with [`Left::is_more`].
    more: HashMap<u32, Counted>,
    /// Parity of the current or last walk: it flips with each walk.
    walk: bool,
}

/// State of a flow that no task waits for. There are many, so it holds only what most of them need.
#[derive(Debug, Clone, Copy)]
struct Left {
    /// [`Counted::relayed`], for a flow whose records had counted nothing before.
    relayed: u32,
    is_more: bool,
    sighting: Sighting,
}

/// Bytes to subtract before a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    /// Bytes that its records had counted before.
    before: PerSide<u64>,
    /// Bytes that its sockets had moved.
    relayed: u64,
}

impl Counted {
    /// Returns the bytes that have passed since, and those of both directions among them that bypassed the sockets.
    fn passed(&self, counted: PerSide<u64>) -> (PerSide<u64>, u64) {
        let bytes = PerSide::from_fn(|side| counted[side].saturating_sub(self.before[side]));
        let spliced = bytes.iter().sum::<u64>().saturating_sub(self.relayed);
        (bytes, spliced)
    }
}

impl Known {
    fn insert(&mut self, serial: u32, counted: Counted) {
        self.remove(serial);
        let small = u32::try_from(counted.relayed).ok();
        let small = small.filter(|_| counted.before == PerSide::both(0));
        if small.is_none() {
            self.more.insert(serial, counted);
        }
        let left = Left {
            relayed: small.unwrap_or_default(),
            is_more: small.is_none(),
            sighting: Sighting::new(self.walk),
        };
        self.left.insert(serial, left);
    }

    fn get(&self, serial: u32) -> Option<Counted> {
        let left = self.left.get(&serial)?;
        match left.is_more {
            true => self.more.get(&serial).copied(),
            false => Some(Counted {
                before: PerSide::both(0),
                relayed: left.relayed.into(),
            }),
        }
    }

    fn remove(&mut self, serial: u32) -> Option<Counted> {
        let counted = self.get(serial)?;
        self.left.remove(&serial);
        self.more.remove(&serial);
        if self.left.len() < self.left.capacity() / 8 {
            self.left.shrink_to(2 * self.left.len());
        }
        Some(counted)
    }
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ends")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl Ends {
    pub(crate) fn tell(&self, tell: Tell) {
        // The first callback stays.
        let _ = self.tell.set(tell);
    }

    /// Adds a flow whose task is gone. Its records had counted `before` ahead of its last call, in which the sockets
    /// moved `relayed`.
    pub(crate) fn left(&self, serial: u32, before: PerSide<u64>, relayed: u64) {
        if self.tell.get().is_some() {
            self.known.lock().insert(serial, Counted { before, relayed });
        }
    }

    /// Returns the bytes that have passed since the beginning of the last call of a flow without a task, and those of both
    /// directions among them that bypassed the sockets. `counted`: what its records have counted.
    pub(crate) fn passed(&self, serial: u32, counted: PerSide<u64>) -> Option<(PerSide<u64>, u64)> {
        let known = self.known.lock();
        known.get(serial).map(|before| before.passed(counted))
    }

    /// Forgets a flow that a task has again, or has ended.
    pub(crate) fn not_left(&self, serial: u32) {
        self.known.lock().remove(serial);
    }

    /// Begins a walk over all records. There is one at a time.
    pub(crate) fn walk(&self) -> Walk<'_> {
        let mut known = self.known.lock();
        known.walk = !known.walk;
        Walk {
            ends: self,
            any_left: !known.left.is_empty(),
        }
    }

    /// Reports a flow that has ended; these were its records.
    pub(crate) fn ended(&self, how: FlowEnd, records: PerSide<&Direction>) {
        let serial = records.client.serial;
        let before = self.known.lock().remove(serial);
        if let Some(before) = before {
            let (bytes, spliced) = before.passed(records.map(|record| record.bytes));
            self.say(FlowEnded {
                id: FlowId(serial),
                how,
                bytes: Some(bytes),
                bytes_spliced: Some(spliced),
            });
        }
    }

    fn say(&self, ended: FlowEnded) {
        if let Some(tell) = self.tell.get() {
            tell(ended);
        }
    }
}

/// Finds the flows that have no records any more.
pub(crate) struct Walk<'a> {
    ends: &'a Ends,
    /// True if there was a flow to look for.
    any_left: bool,
}

impl Walk<'_> {
    /// Notes that there is a flow of this number.
    pub(crate) fn see(&mut self, serial: u32) {
        if !self.any_left {
            return;
        }
        let mut known = self.ends.known.lock();
        let walk = known.walk;
        if let Some(left) = known.left.get_mut(&serial) {
            left.sighting = Sighting::new(walk);
        }
    }

    /// Looks at a flow without sockets, whose ends may both have finished.
    pub(crate) fn look(&self, end: &reap::FlowEnd, records: PerSide<&Direction>) {
        if end.is_closed() {
            self.ends.ended(FlowEnd::Closed, records);
        } else if end.is_reset() {
            self.ends.ended(FlowEnd::Reset, records);
        }
    }

    /// Ends the walk once all records were seen.
    pub(crate) fn end(self) {
        if !self.any_left {
            return;
        }
        let mut known = self.ends.known.lock();
        let Known { left, walk, .. } = &mut *known;
        let gone: Vec<u32> = (left.iter_mut())
            .filter_map(|(&serial, one)| one.sighting.is_gone_after(*walk).then_some(serial))
            .collect();
        for serial in &gone {
            known.remove(*serial);
        }
        drop(known);
        for serial in gone {
            self.ends.say(FlowEnded {
                id: FlowId(serial),
                how: FlowEnd::Replaced,
                bytes: None,
                bytes_spliced: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_kept_is_small_and_comes_back_whatever_it_is() {
        assert_eq!(size_of::<(u32, Left)>(), 12, "there may be a million");
        let mut known = Known::default();
        let large = u64::from(u32::MAX) + 1;
        let all = [
            (PerSide::both(0), 0),
            (PerSide::both(0), large - 1),
            (PerSide::both(0), large),
            (PerSide::new(0, 1), 2),
            (PerSide::new(3, 0), large),
        ];
        for round in 0..2 {
            for (serial, (before, relayed)) in (round..).zip(all) {
                known.insert(serial, Counted { before, relayed });
            }
        }
        for (serial, (before, relayed)) in (1..).zip(all) {
            assert_eq!(known.remove(serial), Some(Counted { before, relayed }));
            assert_eq!(known.remove(serial), None);
        }
        assert_eq!((known.left.len(), known.more.len()), (1, 0));
        for serial in 0..10_000 {
            known.insert(
                serial,
                Counted {
                    before: PerSide::both(0),
                    relayed: 1,
                },
            );
        }
        for serial in 0..10_000 {
            known.remove(serial);
        }
        assert!(known.left.capacity() < 1000, "memory for those that are gone");
    }

    #[test]
    fn what_was_missed_once_and_is_seen_again_is_there() {
        let ends = Ends::default();
        ends.tell(Box::new(|ended| panic!("{ended:?}")));
        ends.left(1, PerSide::both(0), 0);
        for seen in [true, false, true, false, true] {
            let mut walk = ends.walk();
            if seen {
                walk.see(1);
            }
            walk.end();
        }
    }

    #[test]
    fn what_two_walks_miss_was_replaced() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let ends = Ends::default();
        ends.left(1, PerSide::both(0), 0);
        let tell = Arc::clone(&told);
        ends.tell(Box::new(move |ended| tell.lock().push(ended)));
        for serial in [2, 3, 4] {
            ends.left(serial, PerSide::both(0), 0);
        }
        for _ in 0..2 {
            let mut walk = ends.walk();
            walk.see(2);
            ends.left(5, PerSide::both(0), 0);
            ends.not_left(4);
            walk.end();
        }
        let expected = FlowEnded {
            id: FlowId(3),
            how: FlowEnd::Replaced,
            bytes: None,
            bytes_spliced: None,
        };
        assert_eq!(*told.lock(), [expected]);
        let mut left: Vec<u32> = ends.known.lock().left.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [2, 5], "1 was left before anybody wanted to know");
    }
}
