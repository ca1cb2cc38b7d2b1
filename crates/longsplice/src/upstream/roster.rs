//! Keeps an upstream's servers, its queue and the tasks that watch the servers; all of this outlives a reload.

mod idle;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    check,
    crew::{Crew, Pick},
    entry::{self, Entry},
    lease::Unavailable,
    names::Names,
    place::Place,
    queue::{Queue, Waiting, Want},
    server::{Act, Server, ServerId, State},
    status::{self, Unresolved, UpstreamStatus},
    task::Task,
};
use crate::config::{HealthConfig, UpstreamConfig};

/// State of one upstream. Its lock is held for a choice, never over I/O.
#[derive(Debug)]
pub(super) struct Roster {
    name: String,
    origin: Instant,
    names: Arc<Names>,
    config: RwLock<Arc<UpstreamConfig>>,
    inner: Mutex<Inner>,
    sweeping: AtomicBool,
    queue_timeouts: AtomicU64,
    queue_overflows: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    crew: Crew,
    queue: Queue,
    /// Entries with the tasks that look them up; entries stay the same over reloads.
    lookups: Vec<(Arc<Entry>, Option<Task>)>,
    checks: HashMap<ServerId, (HealthConfig, Task)>,
}

/// Result of a client's request for a permit.
#[derive(Debug)]
pub(super) enum Entered {
    Place(Place),
    /// All servers are full: the client waits.
    Wait(Waiting),
    /// This entry must be looked up first.
    Look(usize, Arc<Entry>),
}

impl Roster {
    pub(super) fn new(config: &Arc<UpstreamConfig>, names: &Arc<Names>) -> Arc<Roster> {
        let roster = Arc::new(Roster {
            name: config.name.clone(),
            origin: Instant::now(),
            names: Arc::clone(names),
            config: RwLock::new(Arc::clone(config)),
            inner: Mutex::new(Inner {
                crew: Crew::new(),
                queue: Queue::default(),
                lookups: Vec::new(),
                checks: HashMap::new(),
            }),
            sweeping: AtomicBool::new(false),
            queue_timeouts: AtomicU64::new(0),
            queue_overflows: AtomicU64::new(0),
        });
        roster.configure(config);
        roster
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the time on the clock of the health rules.
    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Returns the newest configuration.
    pub(super) fn config(&self) -> Arc<UpstreamConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies a configuration; servers that stay keep their state.
    pub(super) fn configure(self: &Arc<Self>, config: &Arc<UpstreamConfig>) {
        let mut inner = self.inner();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(config);
        let mut known = std::mem::take(&mut inner.lookups);
        for server in &config.servers {
            let same = known.iter().position(|(entry, _)| entry.place == server.place);
            let lookup = match same {
                Some(index) => known.swap_remove(index),
                None => {
                    let entry = Arc::new(Entry::new(server.place.clone()));
                    let watched = entry.is_name();
                    let task = watched.then(|| entry::watch(&entry, &self.names, Arc::downgrade(self)));
                    (entry, task)
                }
            };
            inner.lookups.push(lookup);
        }
        self.muster(&mut inner);
    }

    /// Applies new addresses of an entry.
    pub(super) fn relocate(self: &Arc<Self>) {
        self.muster(&mut self.inner());
    }

    fn muster(self: &Arc<Self>, inner: &mut Inner) {
        let config = self.config();
        let entries = inner.lookups.iter().map(|(entry, _)| Arc::clone(entry)).collect();
        inner.crew.muster(&config, entries, self.now());
        let mut checks = std::mem::take(&mut inner.checks);
        if let Some(health) = &config.health {
            for member in &inner.crew.members {
                let id = member.server.id();
                let running = checks.remove(&id).filter(|(by, _)| by == health);
                let check = running.unwrap_or_else(|| {
                    let task = check::watch(&member.server, health, config.send_proxy, Arc::downgrade(self));
                    (health.clone(), task)
                });
                inner.checks.insert(id, check);
            }
        }
        self.serve(inner, None);
    }

    /// Returns a permit for a server, or a position in the queue. Entries of `given_up` are not waited for.
    ///
    /// # Errors
    /// There is no server, or the queue is full.
    pub(super) fn enter(
        self: &Arc<Self>,
        want: Want<'_>,
        given_up: &[usize],
    ) -> Result<Entered, Unavailable> {
        let mut inner = self.inner();
        let pick = inner.crew.pick(&want, self.now(), &mut random, Some(given_up));
        match pick {
            Pick::Server(server) => Ok(Entered::Place(self.occupy(server))),
            Pick::Look(index) => match inner.crew.entries.get(index) {
                Some(entry) => Ok(Entered::Look(index, Arc::clone(entry))),
                None => Err(self.nobody_of(&inner)),
            },
            Pick::Nobody => Err(self.nobody_of(&inner)),
            Pick::Full => {
                let queue = self.config().queue;
                if inner.queue.len() >= queue as usize {
                    self.queue_overflows.fetch_add(1, Ordering::Relaxed);
                    let upstream = self.name.clone();
                    return Err(Unavailable::QueueFull { upstream, queue });
                }
                Ok(Entered::Wait(inner.queue.join(want, self)))
            }
        }
    }

    /// Counts a connection. The caller holds the lock.
    fn occupy(self: &Arc<Self>, server: Arc<Server>) -> Place {
        server.open.fetch_add(1, Ordering::Relaxed);
        let sticky = self.config().sticky.is_some();
        Place::new(server, Arc::clone(self), sticky)
    }

    /// Ends a connection of the server: its permit goes to the first waiting client that can take it.
    pub(super) fn release(self: &Arc<Self>, server: &Arc<Server>) {
        let mut inner = self.inner();
        server.open.fetch_sub(1, Ordering::Relaxed);
        self.serve(&mut inner, Some(1));
    }

    /// Removes a client from the queue.
    pub(super) fn leave(&self, ticket: u64) {
        self.inner().queue.leave(ticket);
    }

    /// Gives permits to waiting clients in their order, at most `most`. Rejects clients that have no server left.
    fn serve(self: &Arc<Self>, inner: &mut Inner, most: Option<usize>) {
        let Inner { crew, queue, .. } = inner;
        let (mut next, mut given) = (0, 0);
        // Give all plain clients of a family the same answer: if one finds all servers full, so do the others.
        let mut full = [false; 2];
        while most.is_none_or(|most| given < most)
            && let Some((ticket, want)) = queue.from(next)
        {
            next = ticket + 1;
            let (plain, family) = (want.is_plain(), usize::from(want.ipv4));
            if plain && full.get(family) == Some(&true) {
                continue;
            }
            match crew.pick(want, self.now(), &mut random, None) {
                Pick::Server(server) => match queue.answer(ticket, Ok(self.occupy(server))) {
                    Ok(()) => given += 1,
                    // The client was about to leave the queue.
                    Err(answer) => drop(answer.map(Place::dismiss)),
                },
                Pick::Nobody => {
                    let nobody = self.nobody_among(crew);
                    drop(queue.answer(ticket, Err(nobody)));
                }
                Pick::Full | Pick::Look(_) => {
                    if let (true, Some(full)) = (plain, full.get_mut(family)) {
                        *full = true;
                    }
                }
            }
        }
    }

    /// Records a failure of a server.
    pub(super) fn note_failure(self: &Arc<Self>, server: &Server, act: Act, why: &str) {
        if let Some(out) = server.failed(act, self.now()) {
            let (upstream, server) = (&self.name, server.name());
            let seconds = out.as_secs_f64();
            tracing::warn!(upstream, server, why, seconds, "the server is out for a while");
            // Serve waiting clients: if this was the last server in order, they may use another one now.
            self.serve(&mut self.inner(), None);
        }
    }

    pub(super) fn note_success(&self, server: &Server, act: Act) {
        server.succeeded(act, self.now());
    }

    /// Applies the result of a check.
    pub(super) fn note_check(self: &Arc<Self>, server: &Server, result: Result<(), String>) {
        let why = result.clone().err().unwrap_or_default();
        let Some(state) = server.checked(result, self.now()) else {
            return;
        };
        let (upstream, server) = (&self.name, server.name());
        match state {
            State::Up => tracing::info!(upstream, server, "the server is up"),
            _ => tracing::warn!(upstream, server, why, "the server is down: its checks fail"),
        }
        self.serve(&mut self.inner(), None);
    }

    /// Drains the servers of this name or undoes it, and returns how many entries or addresses have it.
    pub(super) fn drain(self: &Arc<Self>, name: &str, drain: bool) -> usize {
        let config = self.config();
        let mut inner = self.inner();
        let found = inner.crew.drain(&config, name, drain, self.now());
        self.serve(&mut inner, None);
        found
    }

    pub(super) fn count_timeout(&self) {
        self.queue_timeouts.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the addresses of its servers, in the order of the configuration.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let inner = self.inner();
        inner.crew.members.iter().map(|m| m.server.address()).collect()
    }

    /// Returns the status.
    pub(super) fn status(&self) -> UpstreamStatus {
        let (now, config, inner) = (self.now(), self.config(), self.inner());
        let servers = inner.crew.members.iter();
        let unresolved = inner.crew.entries.iter().filter_map(|entry| {
            Some(Unresolved {
                server: entry.place.to_string(),
                why: entry.failure()?,
            })
        });
        UpstreamStatus {
            name: self.name.clone(),
            balance: config.balance.to_string(),
            queued: inner.queue.len() as u64,
            queue_timeouts_total: self.queue_timeouts.load(Ordering::Relaxed),
            queue_overflows_total: self.queue_overflows.load(Ordering::Relaxed),
            servers: servers
                .map(|member| status::server(&self.name, member, now))
                .collect(),
            unresolved: unresolved.collect(),
        }
    }

    #[cfg(test)]
    pub(super) fn first(&self) -> Arc<Server> {
        Arc::clone(&self.inner().crew.members[0].server)
    }

    /// Returns whether it contains this server now.
    pub(super) fn has(&self, server: ServerId) -> bool {
        let inner = self.inner();
        inner
            .crew
            .members
            .iter()
            .any(|member| member.server.id() == server)
    }

    /// Returns the reason why no server can be chosen.
    pub(super) fn nobody(&self) -> Unavailable {
        self.nobody_of(&self.inner())
    }

    fn nobody_of(&self, inner: &Inner) -> Unavailable {
        self.nobody_among(&inner.crew)
    }

    fn nobody_among(&self, crew: &Crew) -> Unavailable {
        let now = self.now();
        let count = |state| {
            crew.members
                .iter()
                .filter(|m| m.server.state(now).0 == state)
                .count()
        };
        let lost = crew.entries.iter().filter(|e| e.sites().is_empty()).count();
        let counts = [
            (count(State::Down), "down"),
            (count(State::Draining), "draining"),
            (lost, "without an address"),
        ];
        let words: Vec<_> = counts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{n} {what}"))
            .collect();
        Unavailable::Down {
            upstream: self.name.clone(),
            why: match words.is_empty() {
                true => "all were tried".to_owned(),
                false => words.join(", "),
            },
        }
    }
}

fn random() -> u64 {
    fastrand::u64(..)
}
