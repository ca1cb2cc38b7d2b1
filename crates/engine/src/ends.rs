//! The ends of detached flows that nobody waits for, told to who wants to know.

use std::{
    collections::{HashMap, HashSet},
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
    left: Mutex<HashMap<u32, Left>>,
}

/// A flow that nobody waits for.
#[derive(Debug, Default)]
struct Left {
    /// What its records had counted before.
    counted: [u64; 2],
    /// What its sockets had moved.
    relayed: u64,
    /// The last walk did not see it.
    missed: bool,
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ends")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Ends {
    fn all(&self) -> MutexGuard<'_, HashMap<u32, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(&self, tell: Tell) {
        // The first one stays.
        let _ = self.tell.set(tell);
    }

    /// Its task is gone. Its records had counted this much before its last call, in which the sockets moved `relayed`.
    pub(crate) fn left(&self, serial: u32, counted: [u64; 2], relayed: u64) {
        if self.tell.get().is_some() {
            let left = Left {
                counted,
                relayed,
                missed: false,
            };
            self.all().insert(serial, left);
        }
    }

    /// Somebody has it again, or has ended it.
    pub(crate) fn not_left(&self, serial: u32) {
        self.all().remove(&serial);
    }

    /// A walk over all records begins.
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk {
            ends: self,
            unseen: self.all().keys().copied().collect(),
        }
    }

    /// It has ended; these were its records.
    pub(crate) fn ended(&self, how: FlowEnd, records: [&Direction; 2]) {
        let serial = records[0].serial;
        if let Some(left) = self.all().remove(&serial) {
            let bytes = [0, 1].map(|i| records[i].bytes.saturating_sub(left.counted[i]));
            let spliced = bytes.iter().sum::<u64>().saturating_sub(left.relayed);
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
    unseen: HashSet<u32>,
}

impl Walk<'_> {
    /// There is a flow of this number.
    pub(crate) fn see(&mut self, serial: u32) {
        if !self.unseen.is_empty() {
            self.unseen.remove(&serial);
        }
    }

    /// It has no sockets, and its ends may have said their last.
    pub(crate) fn look(&self, end: &reap::FlowEnd, records: [&Direction; 2]) {
        // What is reset after both ends have said their last is a late duplicate's answer.
        let closed = end.directions.iter().all(|d| d.fin_seen && d.fin_acknowledged);
        let reset = end.directions.iter().any(|d| d.reset_seen);
        match (closed, reset) {
            (true, _) => self.ends.ended(FlowEnd::Closed, records),
            (false, true) => self.ends.ended(FlowEnd::Reset, records),
            (false, false) => {}
        }
    }

    /// All have been seen that are there. Changes run beside the walk: what is gone is missed twice.
    pub(crate) fn end(self) {
        let mut gone = Vec::new();
        let mut all = self.ends.all();
        for serial in self.unseen {
            match all.get_mut(&serial) {
                Some(left) if left.missed => {
                    all.remove(&serial);
                    gone.push(serial);
                }
                Some(left) => left.missed = true,
                None => {}
            }
        }
        drop(all);
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
        let mut left: Vec<u32> = ends.all().keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [2, 5], "1 was left before anybody wanted to know");
    }
}
