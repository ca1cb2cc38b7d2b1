//! Replaces a configuration: completely, or not at all.
//!
//! Steps that can fail come first, while the old configuration is in force: the file, new sockets, certificates, the
//! access log's file, and at last the rules for packets. Then the listeners change their settings at once
//! ([`Shared::switch`]).

mod error;
mod files;
mod first;
mod fixed;

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

pub(crate) use error::{Old, ReloadError};
use files::{Files, READING, in_time};
pub(crate) use first::bind_all;

use crate::{
    accelerator::Accelerator,
    access_log::End,
    config::{Config, ConfigError, ListenerConfig},
    config_status::{ConfigStatus, Listeners},
    handover::Offer,
    listener::{Bound, Decided, KeptFacts, Listening, Service, Settings, Shared, Socket, ends},
    logging,
    metrics::{Endpoint, EndpointError, Place, Subject},
    rule_manager::RuleManager,
    tls::Terminator,
    upstream::Upstreams,
};

/// Longest wait of a reload for sockets that are closing.
const CLOSING: Duration = Duration::from_secs(1);

/// Reads the configuration again, with the options of the command line.
pub(crate) type Load = Arc<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// Result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reloaded {
    /// Number of the generation that is in force now.
    pub config_generation: u64,
    /// Listeners that are new.
    pub added: Vec<String>,
    /// Listeners that are gone.
    pub removed: Vec<String>,
    pub listeners: usize,
    /// Number of open connections that `on_reload` ended.
    pub ended: usize,
}

/// Request for a reload: the channel for its result.
pub(crate) type ReloadRequest = oneshot::Sender<Result<Reloaded, ReloadError>>;

/// The configuration in force, with its objects.
#[derive(Debug)]
pub(crate) struct InForce {
    pub(crate) config: Config,
    pub(crate) accelerator: Option<Arc<Accelerator>>,
    generation: u64,
    shared: Arc<Shared>,
    upstreams: Arc<Upstreams>,
    services: Vec<Arc<Service>>,
    sockets: Vec<Socket>,
    rules: Arc<RuleManager>,
    config_status: Arc<ConfigStatus>,
    subject: Arc<Subject>,
    endpoint: Option<Endpoint>,
}

/// A configuration that was read, with the objects that its files make.
pub(crate) struct Candidate {
    config: Config,
    files: Files,
}

/// Objects that are ready to be put in force.
struct Ready {
    listening: Vec<Listening>,
    files: Files,
    endpoint: Next<Endpoint>,
}

/// Change of an object that may stay.
enum Next<T> {
    Same,
    Other(Option<T>),
}

fn addresses(config: &Config) -> impl Iterator<Item = (SocketAddr, &ListenerConfig)> {
    let of_one = |l: &'_ ListenerConfig| l.listen.clone();
    config
        .listeners
        .iter()
        .flat_map(move |l| of_one(l).into_iter().map(move |address| (address, l)))
}

impl InForce {
    pub(crate) fn config_status(&self) -> &Arc<ConfigStatus> {
        &self.config_status
    }

    pub(crate) fn rules(&self) -> &Arc<RuleManager> {
        &self.rules
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the listening sockets, for a successor. Fails if there are no descriptors left.
    pub(crate) fn offer(&self) -> io::Result<Offer> {
        let mut offer = Offer::new(!self.shared.splicer.health().splice_available);
        for socket in &self.sockets {
            offer.add(socket.configured(), socket.address(), socket.descriptor()?);
        }
        if let Some(endpoint) = &self.endpoint {
            offer.add(endpoint.address(), endpoint.address(), endpoint.descriptor()?);
        }
        Ok(offer)
    }

    /// Returns when all listening sockets are closed, soon after the daemon begins to shut down. Metrics stay, unless a
    /// successor answers at their address.
    pub(crate) async fn closed(&mut self, is_replaced: bool) {
        if is_replaced {
            self.endpoint = None;
        }
        for socket in self.sockets.drain(..) {
            socket.closed().await;
        }
    }

    /// Reads the configuration again, and the files that it names. Changes nothing. Cancel-safe.
    pub(crate) async fn read(&self, load: Option<&Load>) -> Result<Candidate, ReloadError> {
        let load = Arc::clone(load.ok_or(ReloadError::NoFile)?);
        let config = in_time(READING, move || Ok(load()?)).await?;
        config.log_warnings();
        let fixed = fixed::differing(&self.config, &config);
        if !fixed.is_empty() {
            return Err(ReloadError::Fixed(fixed));
        }
        let files = Files::open(&config).await?;
        Ok(Candidate { config, files })
    }

    /// Puts the configuration in force that was read. A failed reload changes nothing, and `status` shows it.
    pub(crate) async fn reload(
        &mut self,
        read: Result<Candidate, ReloadError>,
    ) -> Result<Reloaded, ReloadError> {
        let done = match read {
            Ok(candidate) => self.try_reload(candidate).await,
            Err(error) => Err(error),
        };
        match &done {
            Ok(done) => tracing::info!(
                config_generation = done.config_generation,
                listeners = done.listeners,
                added = ?done.added,
                removed = ?done.removed,
                ended = done.ended,
                "the configuration was loaded again"
            ),
            Err(error) => {
                self.config_status.show_failure(&error.to_string());
                tracing::error!("the configuration stays as it is: {error}");
            }
        }
        done
    }

    async fn try_reload(&mut self, candidate: Candidate) -> Result<Reloaded, ReloadError> {
        let Candidate { config: next, files } = candidate;
        let ready = self.ready(&next, files)?;
        // Change the rules last: nothing after them can fail, and they are the first change that is visible from
        // outside.
        self.rules.change(&next, self.intercepting()).await?;
        Ok(self.put_in_force(next, ready).await)
    }

    fn intercepting(&self) -> Vec<Weak<ListenerConfig>> {
        let listeners = self.services.iter().map(|s| Arc::clone(&s.settings().listener));
        let intercepting = listeners.filter(|listener| listener.intercept.is_some());
        intercepting.map(|listener| Arc::downgrade(&listener)).collect()
    }

    /// Creates the objects that the next configuration needs in addition.
    fn ready(&self, next: &Config, files: Files) -> Result<Ready, ReloadError> {
        let mut listening = Vec::new();
        for (address, listener) in addresses(next) {
            let intercepts = listener.intercept.is_some();
            match self.sockets.iter().find(|s| s.configured() == address) {
                Some(socket) if intercepts => socket
                    .intercept()
                    .map_err(|error| ReloadError::Intercept(listener.name.clone(), error))?,
                Some(_) => {}
                None => {
                    let bound = Bound::bind(address, intercepts).and_then(Bound::listen);
                    listening.push(bound.map_err(|error| ReloadError::Bind {
                        error,
                        old: self.in_the_way(address),
                    })?);
                }
            }
        }
        Ok(Ready {
            listening,
            files,
            endpoint: self.next_endpoint(next)?,
        })
    }

    /// Opens the endpoint for metrics, if its address changes. It answers at once, about the configuration in force.
    fn next_endpoint(&self, next: &Config) -> Result<Next<Endpoint>, ReloadError> {
        match next.operations.metrics {
            same if same == self.endpoint.as_ref().map(Endpoint::address) => Ok(Next::Same),
            None => Ok(Next::Other(None)),
            Some(address) => match endpoint(address, &self.subject) {
                Ok(endpoint) => Ok(Next::Other(Some(endpoint))),
                Err(error) => Err(ReloadError::Metrics {
                    error,
                    old: self.in_the_way(address),
                }),
            },
        }
    }

    /// Returns the socket of this daemon because of which this address cannot be bound.
    fn in_the_way(&self, address: SocketAddr) -> Option<Old> {
        let clash = |old: &SocketAddr| crate::config::rules::overlap(address, *old).is_some();
        let listener = self.sockets.iter().map(Socket::configured).find(clash);
        let metrics = self.endpoint.as_ref().map(Endpoint::address).filter(clash);
        listener.map(Old::Listener).or(metrics.map(Old::Metrics))
    }

    /// Puts the next configuration in force. Nothing fails here.
    async fn put_in_force(&mut self, next: Config, ready: Ready) -> Reloaded {
        let Ready {
            listening,
            files,
            endpoint,
        } = ready;
        if let Next::Other(endpoint) = endpoint {
            self.endpoint = endpoint;
        }
        self.generation += 1;
        self.upstreams = Arc::new(self.upstreams.next(&next, &self.shared.splicer));
        let settings = settings(&next, self.generation, &self.upstreams, &files.terminators);
        let mut before: HashMap<String, Arc<Service>> = std::mem::take(&mut self.services)
            .into_iter()
            .map(|service| (service.settings().listener.name.clone(), service))
            .collect();
        let mut added = Vec::new();
        let mut switch = Vec::new();
        for settings in settings {
            let name = settings.listener.name.clone();
            self.services.push(match before.remove(&name) {
                Some(service) => {
                    switch.push((Arc::clone(&service), Arc::new(settings)));
                    service
                }
                None => {
                    added.push(name);
                    Service::new(settings, Arc::clone(&self.shared))
                }
            });
        }
        before.values().for_each(|service| service.retire());
        let mut removed: Vec<String> = before.into_keys().collect();
        removed.sort();
        self.shared.switch(switch);
        self.shared.access_log.set(files.log);
        self.move_sockets(listening).await;
        logging::set(next.log);
        self.shared.memory.configure(next.memory);
        self.config = next;
        let listeners = shown(&self.services, &self.sockets);
        self.config_status
            .show(self.generation, listeners, &self.upstreams);
        let ended = self.end_changed().await;
        // Last: no object of the old configuration is held by now, but by its connections.
        self.rules.trim().await;
        Reloaded {
            config_generation: self.generation,
            added,
            removed,
            listeners: self.services.len(),
            ended,
        }
    }

    /// Assigns sockets to addresses, and listeners to sockets; closes sockets that are not needed any more.
    async fn move_sockets(&mut self, listening: Vec<Listening>) {
        let mut old = std::mem::take(&mut self.sockets);
        let mut new = listening;
        for service in &self.services {
            for address in &service.settings().listener.listen {
                if let Some(n) = old.iter().position(|s| s.configured() == *address) {
                    let socket = old.swap_remove(n);
                    socket.hand_to(service);
                    self.sockets.push(socket);
                } else if let Some(n) = new.iter().position(|l| l.configured == *address) {
                    let listening = new.swap_remove(n);
                    self.sockets.push(Socket::serve(listening, Arc::clone(service)));
                }
            }
        }
        // Wait for them, because the next reload may use their addresses. A socket whose listener is full stays open
        // until it has room.
        let closing: Vec<_> = old.into_iter().map(Socket::close).collect();
        let closed = async {
            for task in closing {
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(CLOSING, closed).await;
    }

    /// Ends the open connections that the new configuration does not permit.
    async fn end_changed(&self) -> usize {
        let settings = self.services.iter().map(|s| s.settings());
        let next: HashMap<_, _> = settings.map(|s| (s.listener.name.clone(), s)).collect();
        let must_end = |decided: &Decided, facts: Option<&KeptFacts>| {
            let next = next.get(&decided.listener.name);
            ends(decided, facts, next.map(Arc::as_ref))
        };
        let (open, left) = self.shared.tracker.end_where(End::Reload, must_end);
        open + self.shared.splicer.request_ends(left).await
    }
}

fn endpoint(address: SocketAddr, subject: &Arc<Subject>) -> Result<Endpoint, EndpointError> {
    Place::bind(address)?.serve(Arc::clone(subject))
}

fn settings(
    config: &Config,
    generation: u64,
    upstreams: &Arc<Upstreams>,
    terminators: &HashMap<String, Arc<Terminator>>,
) -> Vec<Settings> {
    let of_one = |listener: &ListenerConfig| Settings {
        generation,
        listener: Arc::new(listener.clone()),
        upstreams: Arc::clone(upstreams),
        terminator: terminators.get(&listener.name).cloned(),
    };
    config.listeners.iter().map(of_one).collect()
}

fn shown(services: &[Arc<Service>], sockets: &[Socket]) -> Listeners {
    let bound = |service: &Arc<Service>| {
        let listen = &service.settings().listener.listen;
        let of_it = sockets.iter().filter(|s| listen.contains(&s.configured()));
        of_it.map(Socket::address).collect()
    };
    services.iter().map(|s| (Arc::clone(s), bound(s))).collect()
}
