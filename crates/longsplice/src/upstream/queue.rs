//! Who waits for a place: first come, first served.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time};

use super::{lease::Unavailable, place::Place, roster::Roster, server::ServerId};

/// What a choice depends on, apart from the servers.
#[derive(Debug, Clone)]
pub(super) struct Want<'a> {
    /// The client's family, as it is on the wire.
    pub(super) ipv4: bool,
    /// What is hashed.
    pub(super) key: Option<Cow<'a, [u8]>>,
    /// The value of a sticky cookie.
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

    /// Whether any server would do: where one such finds no place, all others of its family find none either.
    pub(super) fn is_plain(&self) -> bool {
        self.sticky.is_none() && self.not.is_empty()
    }
}

type Answer = Result<Place, Unavailable>;

/// One who waits.
#[derive(Debug)]
struct Waiter {
    want: Want<'static>,
    answer: oneshot::Sender<Answer>,
}

/// All who wait, by their tickets.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<u64, Waiter>,
    next: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Lines up at the end.
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

    /// The first one with this ticket or a later one.
    pub(super) fn from(&self, ticket: u64) -> Option<(u64, &Want<'static>)> {
        let (ticket, waiter) = self.waiting.range(ticket..).next()?;
        Some((*ticket, &waiter.want))
    }

    pub(super) fn leave(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
    }

    /// Answers one who waits; gives the answer back if nobody waits for it any more.
    pub(super) fn answer(&mut self, ticket: u64, answer: Answer) -> Result<(), Answer> {
        match self.waiting.remove(&ticket) {
            Some(waiter) => waiter.answer.send(answer),
            None => Err(answer),
        }
    }
}

/// One's own part of waiting. Dropped, it leaves the queue; a place that was given at that moment goes to the next.
#[derive(Debug)]
pub(super) struct Waiting {
    ticket: u64,
    given: oneshot::Receiver<Answer>,
    roster: Arc<Roster>,
}

impl Waiting {
    /// As at the moment when the time is over, before it left the queue.
    #[cfg(test)]
    pub(super) fn close(&mut self) {
        self.given.close();
    }

    /// Waits for a place.
    pub(super) async fn place(mut self, patience: Duration) -> Answer {
        match time::timeout(patience, &mut self.given).await {
            Ok(Ok(answer)) => answer,
            // A roster answers all who wait, and we hold it.
            Ok(Err(_)) => Err(self.roster.nobody()),
            Err(_) => {
                // It may have come at the last moment.
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
