//! The ends of detached flows that nobody waits for, told to who wants to know.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use longsplice_core::reap;
use longsplice_dataplane::Direction;

use crate::api::FlowId;

/// The end of a flow that nobody waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEnded {
    /// Which.
    pub id: FlowId,
    /// How it ended.
    pub how: FlowEnd,
    /// Payload bytes since the call of [`crate::Splicer::splice`] that it was detached in began: from client to server, and from
    /// server to client. What was sent again counts again. `None`: its records are gone.
    pub bytes: Option<[u64; 2]>,
    /// Of both, those that went past the sockets.
    pub bytes_spliced: Option<u64>,
}

/// How a flow ended that nobody waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEnd {
    /// Both ends closed in order.
    Closed,
    /// An end was reset.
    Reset,
    /// Nothing passed for longer than [`crate::SplicerConfig::idle_timeout`].
    Idle,
    /// Somebody asked for it ([`crate::Splicer::request_end`]).
    Asked,
    /// Its records went before they were looked at: a new connection took their place (RFC 9293 section 3.10.7.4), as it may
    /// after an end.
    Replaced,
}

type Tell = Box<dyn Fn(FlowEnded) + Send + Sync>;

/// The flows whose end is to be told.
#[derive(Default)]
pub(crate) struct Ends {
    tell: OnceLock<Tell>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    left: HashMap<u32, Left>,
    /// What was counted of those few with [`Left::is_more`].
    more: HashMap<u32, Counted>,
    /// The walk that there is, or was last: each is what the one before was not.
    walk: bool,
}

/// A flow that nobody waits for. There are many: what most of them need, and no more.
#[derive(Debug, Clone, Copy)]
struct Left {
    /// [`Counted::relayed`], of a flow whose records had counted nothing before.
    relayed: u32,
    is_more: bool,
    /// Of [`Known::walk`]: the last walk that has dealt with it.
    walk: bool,
    /// That one did not see it.
    missed: bool,
}

/// What is not to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    /// What its records had counted before.
    before: [u64; 2],
    /// What its sockets had moved.
    relayed: u64,
}

impl Known {
    fn insert(&mut self, serial: u32, counted: Counted) {
        self.remove(serial);
        let small = u32::try_from(counted.relayed).ok();
        let small = small.filter(|_| counted.before == [0; 2]);
        if small.is_none() {
            self.more.insert(serial, counted);
        }
        let left = Left {
            relayed: small.unwrap_or_default(),
            is_more: small.is_none(),
            walk: self.walk,
            missed: false,
        };
        self.left.insert(serial, left);
    }

    fn remove(&mut self, serial: u32) -> Option<Counted> {
        let left = self.left.remove(&serial)?;
        if self.left.len() < self.left.capacity() / 8 {
            self.left.shrink_to(2 * self.left.len());
        }
        match left.is_more {
            true => self.more.remove(&serial),
            false => Some(Counted {
                before: [0; 2],
                relayed: left.relayed.into(),
            }),
        }
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
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(&self, tell: Tell) {
        // The first one stays.
        let _ = self.tell.set(tell);
    }

    /// Its task is gone. Its records had counted this much before its last call, in which the sockets moved `relayed`.
    pub(crate) fn left(&self, serial: u32, before: [u64; 2], relayed: u64) {
        if self.tell.get().is_some() {
            self.known().insert(serial, Counted { before, relayed });
        }
    }

    /// Somebody has it again, or has ended it.
    pub(crate) fn not_left(&self, serial: u32) {
        self.known().remove(serial);
    }

    /// A walk over all records begins. There is one at a time.
    pub(crate) fn walk(&self) -> Walk<'_> {
        let mut known = self.known();
        known.walk = !known.walk;
        Walk {
            ends: self,
            anybody: !known.left.is_empty(),
        }
    }

    /// It has ended; these were its records.
    pub(crate) fn ended(&self, how: FlowEnd, records: [&Direction; 2]) {
        let serial = records[0].serial;
        let counted = self.known().remove(serial);
        if let Some(Counted { before, relayed }) = counted {
            let bytes = [0, 1].map(|i| records[i].bytes.saturating_sub(before[i]));
            let spliced = bytes.iter().sum::<u64>().saturating_sub(relayed);
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

/// Finds out which flows have no records any more.
pub(crate) struct Walk<'a> {
    ends: &'a Ends,
    /// Whether there was a flow to look for.
    anybody: bool,
}

impl Walk<'_> {
    /// There is a flow of this number.
    pub(crate) fn see(&mut self, serial: u32) {
        if !self.anybody {
            return;
        }
        let mut known = self.ends.known();
        let walk = known.walk;
        if let Some(left) = known.left.get_mut(&serial) {
            (left.walk, left.missed) = (walk, false);
        }
    }

    /// It has no sockets, and its ends may have said their last.
    pub(crate) fn look(&self, end: &reap::FlowEnd, records: [&Direction; 2]) {
        // What is reset after both ends have said their last is a late duplicate's answer.
        match (end.is_closed(), end.is_reset()) {
            (true, _) => self.ends.ended(FlowEnd::Closed, records),
            (false, true) => self.ends.ended(FlowEnd::Reset, records),
            (false, false) => {}
        }
    }

    /// All have been seen that are there. Changes run beside the walk: what is gone is missed twice.
    pub(crate) fn end(self) {
        if !self.anybody {
            return;
        }
        let mut known = self.ends.known();
        let Known { left, walk, .. } = &mut *known;
        let mut gone = Vec::new();
        for (&serial, one) in left.iter_mut().filter(|(_, one)| one.walk != *walk) {
            one.walk = *walk;
            if std::mem::replace(&mut one.missed, true) {
                gone.push(serial);
            }
        }
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
            ([0, 0], 0),
            ([0, 0], large - 1),
            ([0, 0], large),
            ([0, 1], 2),
            ([3, 0], large),
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
                    before: [0; 2],
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
        ends.left(1, [0; 2], 0);
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
        ends.left(1, [0; 2], 0);
        let tell = Arc::clone(&told);
        ends.tell(Box::new(move |ended| tell.lock().unwrap().push(ended)));
        for serial in [2, 3, 4] {
            ends.left(serial, [0; 2], 0);
        }
        for _ in 0..2 {
            let mut walk = ends.walk();
            walk.see(2);
            ends.left(5, [0; 2], 0);
            ends.not_left(4);
            walk.end();
        }
        let expected = FlowEnded {
            id: FlowId(3),
            how: FlowEnd::Replaced,
            bytes: None,
            bytes_spliced: None,
        };
        assert_eq!(*told.lock().unwrap(), [expected]);
        let mut left: Vec<u32> = ends.known().left.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [2, 5], "1 was left before anybody wanted to know");
    }
}
