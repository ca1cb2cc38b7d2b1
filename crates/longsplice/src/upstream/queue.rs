//! Queues clients that wait for a permit, in the order of their arrival.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time};

use super::{lease::Unavailable, place::Place, roster::Roster, server::ServerId};

/// Properties of a client that a choice depends on.
#[derive(Debug, Clone)]
pub(super) struct Want<'a> {
    /// True if the client's connection is IPv4 on the wire.
    pub(super) ipv4: bool,
    /// Bytes to hash.
    pub(super) key: Option<Cow<'a, [u8]>>,
    /// Value of a sticky cookie.
    pub(super) sticky: Option<Cow<'a, str>>,
    /// Servers that were tried.
    pub(super) not: Cow<'a, [ServerId]>,
}

impl Want<'_> {
    fn into_owned(self) -> Want<'static> {
        Want {
            ipv4: self.ipv4,
            key: self.key.map(|key| Cow::Owned(key.into_owned())),
            sticky: self.sticky.map(|value| Cow::Owned(value.into_owned())),
            not: Cow::Owned(self.not.into_owned()),
        }
    }

    /// Returns whether any server is acceptable. If such a client finds all servers full, so do all others of its
    /// family.
    pub(super) fn is_plain(&self) -> bool {
        self.sticky.is_none() && self.not.is_empty()
    }
}

type Answer = Result<Place, Unavailable>;

/// A waiting client.
#[derive(Debug)]
struct Waiter {
    want: Want<'static>,
    answer: oneshot::Sender<Answer>,
}

/// All waiting clients, by their tickets.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<u64, Waiter>,
    next: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a client at the end.
    pub(super) fn join(&mut self, want: Want<'_>, roster: &Arc<Roster>) -> Waiting {
        let (answer, given) = oneshot::channel();
        let ticket = self.next;
        self.next += 1;
        let want = want.into_owned();
        self.waiting.insert(ticket, Waiter { want, answer });
        Waiting {
            ticket,
            given,
            roster: Arc::clone(roster),
        }
    }

    /// Returns the first waiting client with this ticket or a later one.
    pub(super) fn from(&self, ticket: u64) -> Option<(u64, &Want<'static>)> {
        let (ticket, waiter) = self.waiting.range(ticket..).next()?;
        Some((*ticket, &waiter.want))
    }

    pub(super) fn leave(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
    }

    /// Sends the answer to a waiting client. Returns it if the client does not wait any more.
    pub(super) fn answer(&mut self, ticket: u64, answer: Answer) -> Result<(), Answer> {
        match self.waiting.remove(&ticket) {
            Some(waiter) => waiter.answer.send(answer),
            None => Err(answer),
        }
    }
}

/// A client's handle while it waits. Dropping it leaves the queue; a permit that arrived meanwhile goes to the next
/// client.
#[derive(Debug)]
pub(super) struct Waiting {
    ticket: u64,
    given: oneshot::Receiver<Answer>,
    roster: Arc<Roster>,
}

impl Waiting {
    /// Closes the channel, as `place` does when the time is over, before it leaves the queue.
    #[cfg(test)]
    pub(super) fn close(&mut self) {
        self.given.close();
    }

    /// Waits for a permit.
    pub(super) async fn place(mut self, patience: Duration) -> Answer {
        match time::timeout(patience, &mut self.given).await {
            Ok(Ok(answer)) => answer,
            // Unreachable: the roster answers all waiting clients, and this handle keeps it alive.
            Ok(Err(_)) => Err(self.roster.nobody()),
            Err(_) => {
                // The answer may have come at the last moment.
                self.given.close();
                if let Ok(answer) = self.given.try_recv() {
                    return answer;
                }
                self.roster.count_timeout();
                Err(Unavailable::QueueTimeout {
                    upstream: self.roster.name().to_owned(),
                    after: patience,
                })
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.roster.leave(self.ticket);
    }
}
