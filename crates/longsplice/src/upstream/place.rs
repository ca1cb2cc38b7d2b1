//! Counts a connection of a server as long as its permit is held.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use longsplice_engine::Tie;
use tokio::net::TcpStream;

use super::{
    idle::{Owner, Settles},
    lease::{Failure, Tenure},
    roster::Roster,
    server::{Act, Server, ServerId},
};
use crate::config::UpstreamConfig;

/// Permit for one connection to a server. When it is dropped, the next waiting client gets it.
#[derive(Debug)]
pub(super) struct Place {
    server: Arc<Server>,
    /// `None` if the server belongs to no upstream.
    roster: Option<Arc<Roster>>,
    /// Owner for whom the connection may be kept when it is idle; `None` if it is not kept.
    next: Option<Owner>,
    /// True if its connection has served a request before.
    reused: bool,
    sticky: bool,
}

/// A server of an upstream, for permits that stay counted without a `Tenure`.
#[derive(Debug)]
pub struct Site {
    server: Arc<Server>,
    roster: Arc<Roster>,
    sticky: bool,
}

impl Site {
    /// Returns the server's identity.
    pub fn id(&self) -> ServerId {
        self.server.id()
    }

    /// Returns a permit that [stayed](Tenure::stay) counted here. Resume each only once.
    pub fn resume(&self) -> Tenure {
        let (server, roster) = (Arc::clone(&self.server), Arc::clone(&self.roster));
        Tenure::new(Place::new(server, roster, self.sticky))
    }
}

impl Place {
    /// Creates a permit at a server that counts it already.
    pub(super) fn new(server: Arc<Server>, roster: Arc<Roster>, sticky: bool) -> Place {
        Place {
            server,
            roster: Some(roster),
            next: None,
            reused: false,
            sticky,
        }
    }

    /// Creates a permit for an address that belongs to no upstream.
    pub(super) fn outside(address: SocketAddr) -> Place {
        let name = address.to_string();
        let config = UpstreamConfig::new("", Vec::new());
        Place {
            server: Arc::new(Server::new(&config, &name, name.clone(), address, None)),
            roster: None,
            next: None,
            reused: false,
            sticky: false,
        }
    }

    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Allows the idle connection to be kept for this owner.
    pub(super) fn keep_for(&mut self, owner: Owner) {
        self.next = Some(owner);
    }

    /// Notes that its connection has served a request before.
    pub(super) fn note_reused(&mut self) {
        self.reused = true;
    }

    /// Returns its server in the upstream, without a permit.
    pub(super) fn site(&self) -> Option<Site> {
        Some(Site {
            server: Arc::clone(&self.server),
            roster: Arc::clone(self.roster.as_ref()?),
            sticky: self.sticky,
        })
    }

    /// Drops this value but keeps the connection counted, until it is resumed through its `Site`.
    pub(super) fn stay(mut self) {
        self.roster = None;
    }

    pub(super) fn cookie(&self) -> Option<&str> {
        self.sticky.then(|| self.server.cookie())
    }

    pub(super) fn give_back(self, stream: TcpStream, tie: Option<Tie>) {
        if let (Some(roster), Some(owner)) = (&self.roster, self.next) {
            // Store it before the permit is released: the client that waits for the permit then finds the connection.
            let settles = tie.map(|tie| Settles::when(move || tie.is_gone()));
            roster.keep(&self.server, stream, owner, settles);
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
        // An earlier client may have caused the end of a reused connection; only `Malformed` surely tells something
        // about the server.
        let says_nothing = self.reused && matches!(how, Failure::Closed | Failure::Timeout);
        if let Some(roster) = self.roster.as_ref().filter(|_| !says_nothing) {
            roster.note_failure(&self.server, act, why);
        }
    }

    /// Releases the count without waking a waiting client: the roster calls it while it holds its own lock.
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
