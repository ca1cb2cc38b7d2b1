//! A place at a server: counted as long as it is held.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::net::TcpStream;

use super::{
    idle::Owner,
    lease::{Failure, Tenure},
    roster::Roster,
    server::{Act, Server, ServerId},
};
use crate::config::UpstreamConfig;

/// One of the connections that a server may have. Dropped, it goes to the next who waits.
#[derive(Debug)]
pub(super) struct Place {
    server: Arc<Server>,
    /// `None`: the server belongs to no upstream.
    roster: Option<Arc<Roster>>,
    /// Who may have the connection after this; `None`: nobody.
    next: Option<Owner>,
    sticky: bool,
}

/// A server of an upstream, for places that are counted there and are nobody's.
#[derive(Debug)]
pub struct Site {
    server: Arc<Server>,
    roster: Arc<Roster>,
    sticky: bool,
}

impl Site {
    /// The server.
    pub fn id(&self) -> ServerId {
        self.server.id()
    }

    /// A place that [stayed](Tenure::stay) here: each may be resumed once.
    pub fn resume(&self) -> Tenure {
        let (server, roster) = (Arc::clone(&self.server), Arc::clone(&self.roster));
        Tenure::new(Place::new(server, roster, self.sticky))
    }
}

impl Place {
    /// At a server whose connections were counted already.
    pub(super) fn new(server: Arc<Server>, roster: Arc<Roster>, sticky: bool) -> Place {
        Place {
            server,
            roster: Some(roster),
            next: None,
            sticky,
        }
    }

    /// At an address that belongs to no upstream.
    pub(super) fn outside(address: SocketAddr) -> Place {
        let name = address.to_string();
        let config = UpstreamConfig::new("", Vec::new());
        Place {
            server: Arc::new(Server::new(&config, &name, name.clone(), address, None)),
            roster: None,
            next: None,
            sticky: false,
        }
    }

    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Lets the connection be kept when it is idle, for this owner.
    pub(super) fn keep_for(&mut self, owner: Owner) {
        self.next = Some(owner);
    }

    /// The same place without being counted.
    pub(super) fn site(&self) -> Option<Site> {
        Some(Site {
            server: Arc::clone(&self.server),
            roster: Arc::clone(self.roster.as_ref()?),
            sticky: self.sticky,
        })
    }

    /// Stays counted, until somebody who has the site resumes it.
    pub(super) fn stay(mut self) {
        self.roster = None;
    }

    pub(super) fn cookie(&self) -> Option<&str> {
        self.sticky.then(|| self.server.cookie())
    }

    pub(super) fn give_back(self, stream: TcpStream) {
        if let (Some(roster), Some(owner)) = (&self.roster, self.next) {
            // Before the place is given up: who waits for it finds the connection.
            roster.keep(&self.server, stream, owner);
        }
    }

    pub(super) fn answered(&self, status: u16, after: Duration) {
        let counts = &self.server.counts;
        let class = usize::from(status / 100).checked_sub(1);
        if let Some(class) = class.and_then(|class| counts.replies.get(class)) {
            class.fetch_add(1, Ordering::Relaxed);
        }
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        counts.reply_micros.fetch_add(micros, Ordering::Relaxed);
        let Some(roster) = &self.roster else { return };
        match status >= 500 && roster.config().passive_status {
            true => roster.note_failure(&self.server, Act::Reply, &format!("status {status}")),
            false => roster.note_success(&self.server, Act::Reply),
        }
    }

    pub(super) fn failed(&self, how: Failure) {
        let (act, count, why) = match how {
            Failure::Connect => (
                Act::Connect,
                &self.server.counts.connect_failures,
                "it could not be connected to",
            ),
            Failure::Closed => (
                Act::Reply,
                &self.server.counts.failures,
                "it closed before it replied",
            ),
            Failure::Timeout => (
                Act::Reply,
                &self.server.counts.failures,
                "it did not reply in time",
            ),
            Failure::Malformed => (
                Act::Reply,
                &self.server.counts.failures,
                "what it sent was no reply",
            ),
        };
        count.fetch_add(1, Ordering::Relaxed);
        if let Some(roster) = &self.roster {
            roster.note_failure(&self.server, act, why);
        }
    }

    /// Gives up the count without passing the place on: for the roster itself, which holds its lock.
    pub(super) fn dismiss(mut self) {
        self.roster = None;
        self.server.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(roster) = self.roster.take() {
            roster.release(&self.server);
        }
    }
}
