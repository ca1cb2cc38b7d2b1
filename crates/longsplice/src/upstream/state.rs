//! Keeps an upstream's servers, its queue, its idle connections and the tasks that watch the servers; all of this
//! outlives a reload.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    sync::{oneshot, watch},
    time::{self, Instant},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    backend_set::{BackendSet, Selection, Want, random},
    check::Checks,
    discovery::{self, Entry},
    idle::{Owner, Settles},
    names::Names,
    queue::{Answer, Queue, Unavailable},
    server::{Act, Server, ServerId, State},
    status::{self, UpstreamStatus},
};
use crate::config::UpstreamConfig;

/// Longest interval between two sweeps over idle connections.
const SWEEP: Duration = Duration::from_secs(1);

/// State of one upstream. Its lock is held for a choice, never over I/O.
#[derive(Debug)]
pub(super) struct UpstreamState {
    name: String,
    origin: Instant,
    names: Arc<Names>,
    config: ArcSwap<UpstreamConfig>,
    inner: Mutex<Inner>,
    /// Changes when a name has other addresses.
    located: watch::Sender<()>,
    sweeping: AtomicBool,
    queue_timeouts: AtomicU64,
    queue_overflows: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    backends: BackendSet,
    queue: Queue,
    /// Entries with the tasks that look them up; entries stay the same over reloads.
    lookups: Vec<(Arc<Entry>, Option<AbortOnDropHandle<()>>)>,
    checks: Checks,
    /// Task that serves the queue when servers return; started when one goes out.
    returns: Option<AbortOnDropHandle<()>>,
}

/// Result of a client's request for a permit.
#[derive(Debug)]
pub(super) enum Entered {
    /// The server counts the connection already, until [`UpstreamState::release`].
    Permit(Arc<Server>),
    /// All servers are full: the client waits.
    Wait(Waiting),
    /// This entry must be looked up first.
    Look(usize, Arc<Entry>),
}

impl UpstreamState {
    pub(super) fn new(config: &Arc<UpstreamConfig>, names: &Arc<Names>) -> Arc<UpstreamState> {
        let state = Arc::new(UpstreamState {
            name: config.name.clone(),
            origin: Instant::now(),
            names: Arc::clone(names),
            config: ArcSwap::new(Arc::clone(config)),
            inner: Mutex::new(Inner {
                backends: BackendSet::new(),
                queue: Queue::default(),
                lookups: Vec::new(),
                checks: Checks::default(),
                returns: None,
            }),
            located: watch::Sender::new(()),
            sweeping: AtomicBool::new(false),
            queue_timeouts: AtomicU64::new(0),
            queue_overflows: AtomicU64::new(0),
        });
        state.configure(config);
        state
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
        self.config.load_full()
    }

    /// Applies a configuration; servers that stay keep their state.
    pub(super) fn configure(self: &Arc<Self>, config: &Arc<UpstreamConfig>) {
        let mut inner = self.inner.lock();
        self.config.store(Arc::clone(config));
        let mut known = std::mem::take(&mut inner.lookups);
        for server in &config.servers {
            let same = known.iter().position(|(entry, _)| entry.place == server.place);
            let lookup = match same {
                Some(index) => known.swap_remove(index),
                None => {
                    let entry = Arc::new(Entry::new(server.place.clone()));
                    let watched = entry.is_name();
                    let task = watched.then(|| {
                        let state = Arc::downgrade(self);
                        discovery::watch(&entry, &self.names, &self.name, move || {
                            if let Some(state) = state.upgrade() {
                                state.rebuild(&mut state.inner.lock());
                                state.located.send_replace(());
                            }
                        })
                    });
                    (entry, task)
                }
            };
            inner.lookups.push(lookup);
        }
        self.rebuild(&mut inner);
    }

    /// Ends what it does by itself, because no configuration has it any more: checks, look-ups and idle connections.
    /// Connections that still belong to it get servers at the addresses that are known by now.
    pub(super) fn retire(self: &Arc<Self>) {
        let config = UpstreamConfig {
            health: None,
            max_idle: 0,
            ..UpstreamConfig::clone(&self.config())
        };
        self.configure(&Arc::new(config));
        let mut inner = self.inner.lock();
        inner.lookups.iter_mut().for_each(|(_, task)| *task = None);
        inner.backends.members.iter().for_each(|m| m.server.idle.clear());
    }

    /// Returns what changes when a name of its servers has other addresses.
    pub(super) fn watch_addresses(&self) -> watch::Receiver<()> {
        self.located.subscribe()
    }

    fn rebuild(self: &Arc<Self>, inner: &mut Inner) {
        let config = self.config();
        let entries = inner.lookups.iter().map(|(entry, _)| Arc::clone(entry)).collect();
        inner.backends.rebuild(&config, entries, self.now());
        let state = Arc::downgrade(self);
        let report = move |server: &Server, result| {
            if let Some(state) = state.upgrade() {
                state.note_check(server, result);
            }
        };
        let servers = inner.backends.members.iter().map(|m| &m.server);
        inner.checks.configure(&config, servers, report);
        self.serve(inner, None);
    }

    /// Returns a permit for a server, or a position in the queue. Entries of `given_up` are not waited for. Fails if
    /// there is no server, or the queue is full.
    pub(super) fn enter(
        self: &Arc<Self>,
        want: Want<'_>,
        given_up: &[usize],
    ) -> Result<Entered, Unavailable> {
        let mut inner = self.inner.lock();
        let pick = inner
            .backends
            .pick(&want, self.now(), &mut random, Some(given_up));
        match pick {
            Selection::Server(server) => {
                server.open.fetch_add(1, Ordering::Relaxed);
                Ok(Entered::Permit(server))
            }
            Selection::Look(index) => match inner.backends.entries.get(index) {
                Some(entry) => Ok(Entered::Look(index, Arc::clone(entry))),
                None => Err(self.down(&inner)),
            },
            Selection::NoneEligible => Err(self.down(&inner)),
            Selection::Full => {
                let queue = self.config().queue;
                if inner.queue.len() >= queue as usize {
                    self.queue_overflows.fetch_add(1, Ordering::Relaxed);
                    let upstream = self.name.clone();
                    return Err(Unavailable::QueueFull { upstream, queue });
                }
                let (ticket, given) = inner.queue.join(want);
                Ok(Entered::Wait(Waiting {
                    ticket,
                    given,
                    state: Arc::clone(self),
                }))
            }
        }
    }

    /// Returns the error that no server can be chosen.
    fn down(&self, inner: &Inner) -> Unavailable {
        Unavailable::down(&self.name, inner.backends.why_none_eligible(self.now()))
    }

    /// Ends a connection of the server: its permit goes to the first waiting client that can take it.
    pub(super) fn release(&self, server: &Arc<Server>) {
        let mut inner = self.inner.lock();
        server.open.fetch_sub(1, Ordering::Relaxed);
        self.serve(&mut inner, Some(1));
    }

    /// Gives permits to waiting clients in their order, at most `most`.
    fn serve(&self, inner: &mut Inner, most: Option<usize>) {
        inner
            .queue
            .serve(&mut inner.backends, &self.name, self.now(), most);
    }

    /// Records a failure of a server; `client` may have caused it.
    pub(super) fn note_failure(
        self: &Arc<Self>,
        server: &Server,
        act: Act,
        client: Option<IpAddr>,
        why: &str,
    ) {
        if let Some(out) = server.failed(act, client, self.now()) {
            let (upstream, server) = (&self.name, server.name());
            let seconds = out.as_secs_f64();
            tracing::warn!(upstream, server, why, seconds, "the server is out for a while");
            let mut inner = self.inner.lock();
            // Serve waiting clients: if this was the last server in order, they may use another one now.
            self.serve(&mut inner, None);
            // Start anew: this server may return before the one that the task waits for.
            let returns = tokio::spawn(serve_returns(Arc::downgrade(self)));
            inner.returns = Some(AbortOnDropHandle::new(returns));
        }
    }

    pub(super) fn note_success(&self, server: &Server, act: Act) {
        server.succeeded(act, self.now());
    }

    /// Applies the result of a check.
    pub(super) fn note_check(&self, server: &Server, result: Result<(), String>) {
        let why = result.clone().err().unwrap_or_default();
        let mut inner = self.inner.lock();
        // Ignore one that ended while a reload took the checks away: no later one would correct it.
        if self.config().health.is_none() {
            return;
        }
        let Some(state) = server.checked(result, self.now()) else {
            return;
        };
        let (upstream, server) = (&self.name, server.name());
        match state {
            State::Up => tracing::info!(upstream, server, "the server is up"),
            _ => tracing::warn!(upstream, server, why, "the server is down: its checks fail"),
        }
        self.serve(&mut inner, None);
    }

    /// Drains the servers of this name or undoes it, and returns how many entries or addresses have it.
    pub(super) fn drain(&self, name: &str, drain: bool) -> usize {
        let config = self.config();
        let mut inner = self.inner.lock();
        let found = inner.backends.drain(&config, name, drain, self.now());
        self.serve(&mut inner, None);
        found
    }

    /// Returns the addresses of the first server that has any, in the order of the configuration.
    pub(super) fn first_addresses(&self) -> Vec<SocketAddr> {
        let inner = self.inner.lock();
        let mut all = inner.lookups.iter().map(|(entry, _)| entry.sites());
        let first = all.find(|sites| !sites.is_empty()).unwrap_or_default();
        first.into_iter().map(|site| site.address).collect()
    }

    pub(super) fn status(&self) -> UpstreamStatus {
        let (now, config, inner) = (self.now(), self.config(), self.inner.lock());
        UpstreamStatus {
            name: self.name.clone(),
            balance: config.balance.to_string(),
            queued: inner.queue.len() as u64,
            queue_timeouts_total: self.queue_timeouts.load(Ordering::Relaxed),
            queue_overflows_total: self.queue_overflows.load(Ordering::Relaxed),
            servers: status::servers(&self.name, &inner.backends, now),
            unresolved: status::unresolved(&inner.backends),
        }
    }

    #[cfg(test)]
    pub(super) fn first(&self) -> Arc<Server> {
        Arc::clone(&self.inner.lock().backends.members[0].server)
    }

    /// Returns whether it contains this server now.
    pub(super) fn has(&self, server: ServerId) -> bool {
        self.inner.lock().backends.has(server)
    }

    /// Returns whether a server takes further requests: it still belongs to the upstream, and is up.
    pub(super) fn takes(&self, server: &Server) -> bool {
        self.has(server.id()) && server.state(self.now()).0 == State::Up
    }

    /// Keeps an idle connection, if its server still belongs to the upstream and is up.
    pub(super) fn keep(
        self: &Arc<Self>,
        server: &Arc<Server>,
        stream: TcpStream,
        owner: Owner,
        settles: Option<Settles>,
    ) {
        let config = self.config();
        if !self.takes(server) {
            return;
        }
        server.idle.put(stream, owner, settles, config.max_idle);
        if !self.sweeping.swap(true, Ordering::SeqCst) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes idle connections of the server, so that a new one stays within `max_connections`.
    pub(super) fn make_room(&self, server: &Server) {
        self.inner.lock().backends.make_room(server);
    }
}

/// A client's handle while it waits. Dropping it leaves the queue; a permit that arrived meanwhile goes to the next
/// client.
#[derive(Debug)]
pub(super) struct Waiting {
    ticket: u64,
    given: oneshot::Receiver<Answer>,
    state: Arc<UpstreamState>,
}

impl Waiting {
    /// Closes the channel, as `permit` does when the time is over, before it leaves the queue.
    #[cfg(test)]
    pub(super) fn close(&mut self) {
        self.given.close();
    }

    /// Waits for a permit.
    pub(super) async fn permit(mut self, patience: Duration) -> Answer {
        match time::timeout(patience, &mut self.given).await {
            Ok(Ok(answer)) => answer,
            // Unreachable: UpstreamState answers all waiting clients, and this handle keeps it alive.
            Ok(Err(_)) => Err(self.state.down(&self.state.inner.lock())),
            Err(_) => {
                // The answer may have come at the last moment.
                self.given.close();
                if let Ok(answer) = self.given.try_recv() {
                    return answer;
                }
                self.state.queue_timeouts.fetch_add(1, Ordering::Relaxed);
                Err(Unavailable::QueueTimeout {
                    upstream: self.state.name().to_owned(),
                    after: patience,
                })
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.state.inner.lock().queue.leave(self.ticket);
        // From here on, no answer can arrive.
        if let Ok(Ok(server)) = self.given.try_recv() {
            self.state.release(&server);
        }
    }
}

/// Serves the queue at each time at which a server is out no more. Returns when none is out.
async fn serve_returns(state: Weak<UpstreamState>) {
    loop {
        let Some(state) = state.upgrade() else { return };
        let now = state.now();
        let next = {
            let mut inner = state.inner.lock();
            state.serve(&mut inner, None);
            inner.backends.next_return(now)
        };
        drop(state);
        let Some(next) = next else { return };
        time::sleep(next.saturating_sub(now)).await;
    }
}

/// Closes idle connections that are too old or were closed by their servers. Returns when none is left.
async fn sweep(state: Weak<UpstreamState>) {
    let mut pause = Duration::ZERO;
    loop {
        time::sleep(pause).await;
        let Some(state) = state.upgrade() else { return };
        let config = state.config();
        pause = config.idle_timeout.clamp(Duration::from_millis(1), SWEEP);
        let idle = || state.inner.lock().backends.sweep(&config);
        if idle() > 0 {
            continue;
        }
        state.sweeping.store(false, Ordering::SeqCst);
        // Check again: a connection may have arrived before the flag was cleared.
        if idle() == 0 || state.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}
