//! Queues clients that wait for a permit, in the order of their arrival.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    backend_set::{BackendSet, Selection, Want, random},
    server::Server,
};

/// Reason why a client gets no server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    /// Each server that was tried failed.
    #[error("{}", list(.0))]
    Refused(Vec<(String, io::Error)>),
    /// The original destination failed.
    #[error("{0}: {1}")]
    Original(SocketAddr, io::Error),
    /// All servers are down, drained, or were tried before.
    #[error("upstream `{upstream}` has no server that is up ({why}); `longsplice servers` shows them")]
    Down {
        upstream: String,
        /// Counts of servers that are down, draining and without an address.
        why: String,
    },
    /// All servers are at their limit, and the queue is full.
    #[error("the queue of upstream `{upstream}` is full: {queue} wait for a server already")]
    QueueFull {
        upstream: String,
        /// Limit of the queue.
        queue: u32,
    },
    /// All servers are at their limit, and no connection ended in time.
    #[error("no server of upstream `{upstream}` had a place within {}", crate::config::Period(*.after))]
    QueueTimeout {
        upstream: String,
        /// Time that the client waited.
        after: Duration,
    },
}

fn list(attempts: &[(String, io::Error)]) -> String {
    let attempts: Vec<_> = attempts.iter().map(|(to, why)| format!("{to}: {why}")).collect();
    attempts.join("; ")
}

impl Unavailable {
    pub(super) fn down(upstream: &str, why: String) -> Unavailable {
        Unavailable::Down {
            upstream: upstream.to_owned(),
            why,
        }
    }

    /// Returns the status code for a client that speaks HTTP (RFC 9110 section 15.6).
    pub(crate) fn status(&self) -> u16 {
        match self {
            Unavailable::Refused(_) | Unavailable::Original(..) => 502,
            Unavailable::Down { .. } | Unavailable::QueueFull { .. } | Unavailable::QueueTimeout { .. } => {
                503
            }
        }
    }
}

/// Permit or rejection. The server of a permit counts the connection already.
pub(super) type Answer = Result<Arc<Server>, Unavailable>;

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

    /// Adds a client at the end, and returns its ticket.
    pub(super) fn join(&mut self, want: Want<'_>) -> (u64, oneshot::Receiver<Answer>) {
        let (answer, given) = oneshot::channel();
        let ticket = self.next;
        self.next += 1;
        let want = want.into_owned();
        self.waiting.insert(ticket, Waiter { want, answer });
        (ticket, given)
    }

    /// Returns the first waiting client with this ticket or a later one.
    fn from(&self, ticket: u64) -> Option<(u64, &Want<'static>)> {
        let (ticket, waiter) = self.waiting.range(ticket..).next()?;
        Some((*ticket, &waiter.want))
    }

    pub(super) fn leave(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
    }

    /// Sends the answer to a waiting client. Returns it if the client does not wait any more.
    fn answer(&mut self, ticket: u64, answer: Answer) -> Result<(), Answer> {
        match self.waiting.remove(&ticket) {
            Some(waiter) => waiter.answer.send(answer),
            None => Err(answer),
        }
    }

    /// Gives permits to waiting clients in their order, at most `most`. Rejects clients that have no server left.
    pub(super) fn serve(
        &mut self,
        backends: &mut BackendSet,
        upstream: &str,
        now: Duration,
        most: Option<usize>,
    ) {
        let (mut next, mut given) = (0, 0);
        // Give all plain clients of a family the same answer: if one finds all servers full, so do the others.
        let mut full = [false; 2];
        while most.is_none_or(|most| given < most)
            && let Some((ticket, want)) = self.from(next)
        {
            next = ticket + 1;
            let (plain, family) = (want.is_plain(), usize::from(want.ipv4));
            if plain && full.get(family) == Some(&true) {
                continue;
            }
            match backends.pick(want, now, &mut random, None) {
                Selection::Server(server) => {
                    server.open.fetch_add(1, Ordering::Relaxed);
                    match self.answer(ticket, Ok(Arc::clone(&server))) {
                        Ok(()) => given += 1,
                        // The client was about to leave the queue.
                        Err(_) => drop(server.open.fetch_sub(1, Ordering::Relaxed)),
                    }
                }
                Selection::NoneEligible => {
                    let down = Unavailable::down(upstream, backends.why_none_eligible(now));
                    drop(self.answer(ticket, Err(down)));
                }
                Selection::Full | Selection::Look(_) => {
                    if let (true, Some(full)) = (plain, full.get_mut(family)) {
                        *full = true;
                    }
                }
            }
        }
    }
}
