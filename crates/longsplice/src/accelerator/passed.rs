//! Lists connections that were passed through, each with its reason.
//!
//! Their segments are not seen here, nor is their end: the list is of decisions, and an entry leaves it after a while.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::counts::PassReason;

/// Largest number of entries: some 200 bytes each, 800 kB in all. Further ones take the place of the oldest.
const MOST: usize = 4_096;

/// Time for which a connection is listed.
const LISTED: Duration = Duration::from_secs(600);

/// Describes a connection that was passed through, as `longsplice flows --json` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PassedThrough {
    /// Always `passed_through`: where flows have their state.
    pub state: PassedState,
    /// Address of the end that opened the connection.
    pub client: SocketAddr,
    /// Address of the other end.
    pub server: SocketAddr,
    /// Reason, by the names of `passed_through_total`.
    pub reason: String,
    /// Seconds since that was decided.
    pub age_seconds: u64,
}

/// State of a connection that was passed through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PassedState {
    /// The kernel forwards it.
    PassedThrough,
}

type Ends = (SocketAddr, SocketAddr);

/// Holds the last decisions to pass a connection through.
#[derive(Debug, Default)]
pub(super) struct PassedList {
    reasons: HashMap<Ends, (PassReason, Instant)>,
    /// Connections in the order of their decisions. An older one of the same ends may stand here, too.
    order: VecDeque<(Ends, Instant)>,
}

impl PassedList {
    /// Returns true if a connection is listed with this reason.
    pub(super) fn holds(&self, ends: Ends, reason: PassReason) -> bool {
        self.reasons.get(&ends).is_some_and(|(known, _)| *known == reason)
    }

    /// Notes a decision.
    pub(super) fn note(&mut self, ends: Ends, reason: PassReason, now: Instant) {
        self.forget_old(now);
        if self.order.len() >= MOST {
            self.forget_first();
        }
        self.reasons.insert(ends, (reason, now));
        self.order.push_back((ends, now));
    }

    /// Forgets the decision about these ends: a new connection of theirs was taken over.
    pub(super) fn remove(&mut self, ends: Ends) {
        self.reasons.remove(&ends);
    }

    /// Returns the connections, the oldest first.
    pub(super) fn list(&mut self, now: Instant) -> Vec<PassedThrough> {
        self.forget_old(now);
        let listed = |(ends, at): &(Ends, Instant)| {
            let (reason, _) = self.reasons.get(ends).filter(|(_, latest)| latest == at)?;
            Some(PassedThrough {
                state: PassedState::PassedThrough,
                client: ends.0,
                server: ends.1,
                reason: reason.as_str().to_owned(),
                age_seconds: now.duration_since(*at).as_secs(),
            })
        };
        self.order.iter().filter_map(listed).collect()
    }

    fn forget_old(&mut self, now: Instant) {
        while self
            .order
            .front()
            .is_some_and(|(_, at)| now.duration_since(*at) >= LISTED)
        {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((ends, at)) = self.order.pop_front()
            && self.reasons.get(&ends).is_some_and(|(_, latest)| *latest == at)
        {
            self.reasons.remove(&ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(port: u16) -> Ends {
        (([198, 18, 1, 1], port).into(), ([198, 18, 2, 1], 80).into())
    }

    fn listed(list: &mut PassedList, now: Instant) -> Vec<(u16, String, u64)> {
        let all = list.list(now);
        all.into_iter()
            .map(|one| (one.client.port(), one.reason, one.age_seconds))
            .collect()
    }

    #[test]
    fn each_connection_is_listed_with_its_last_reason() {
        let (mut list, start) = (PassedList::default(), Instant::now());
        let later = start + Duration::from_secs(3);
        list.note(ends(1), PassReason::Options, start);
        assert!(list.holds(ends(1), PassReason::Options));
        list.note(ends(2), PassReason::Limit, later);
        list.note(ends(1), PassReason::Memory, later);
        assert!(!list.holds(ends(1), PassReason::Options));
        let both = [(2, "limit".to_owned(), 0), (1, "memory".to_owned(), 0)];
        assert_eq!(listed(&mut list, later), both);
        list.remove(ends(1));
        assert_eq!(listed(&mut list, later), both[..1]);
        assert_eq!(listed(&mut list, later + LISTED), []);
        assert!(list.order.is_empty() && list.reasons.is_empty());
    }

    #[test]
    fn the_oldest_gives_way() {
        let (mut list, start) = (PassedList::default(), Instant::now());
        for port in 0..=MOST as u16 {
            list.note(ends(port), PassReason::Limit, start);
        }
        let all = listed(&mut list, start);
        assert_eq!((all.len(), all[0].0), (MOST, 1));
        assert_eq!(list.reasons.len(), MOST);
    }
}
