//! State of one server: its address, health, counts and idle connections.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use longsplice_core::{
    balance::{Eligibility, FULL_SHARE, sticky_id},
    health::{Active, Passive, slow_start},
};
use parking_lot::Mutex;

use super::idle::IdlePool;
use crate::config::UpstreamConfig;

/// Identity of a server in this process; it is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerId(u64);

/// One address of an upstream. It outlives reloads as long as its name and address stay.
#[derive(Debug)]
pub(crate) struct Server {
    id: ServerId,
    name: String,
    label: String,
    address: SocketAddr,
    cookie: String,
    health: Mutex<Health>,
    drained: AtomicBool,
    /// Number of connections in use; written under the lock of `UpstreamState`.
    pub(super) open: AtomicU32,
    pub(super) idle: IdlePool,
    pub(super) counts: Counts,
}

/// Counts for a server, since it is known.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Number of connections and requests that it was given.
    pub(super) requests: AtomicU64,
    /// Number of those over a connection that had been idle.
    pub(super) reused: AtomicU64,
    /// Number of connections made to it.
    pub(super) connects: AtomicU64,
    /// Number of connections that could not be made.
    pub(super) connect_failures: AtomicU64,
    /// Number of requests that it failed otherwise.
    pub(super) failures: AtomicU64,
    /// Number of replies by the first digit of their status, 1 to 5.
    pub(super) replies: [AtomicU64; 5],
    /// Sum of the times until replies began, in microseconds.
    pub(super) reply_micros: AtomicU64,
}

/// State that decides whether a server is chosen.
#[derive(Debug)]
struct Health {
    active: Active,
    /// Result of connection attempts; counted apart from replies, because a server may accept connections and never
    /// reply.
    connects: Passive,
    replies: Passive,
    /// Time when it last was added, came up, was undrained, or began a trial that it passed; `None` if it was there from
    /// the beginning.
    back: Option<Duration>,
    slow_start: Duration,
    last_check: Option<(Duration, Result<(), String>)>,
}

/// State of a server, for a choice and for the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum State {
    /// No failure is known.
    Up,
    /// Its checks fail.
    Down,
    /// Connections or replies failed.
    Out,
    /// An operator drained it.
    Draining,
}

longsplice_core::named!(pub(super) State);

impl State {
    pub(super) fn eligibility(self) -> Eligibility {
        match self {
            State::Up => Eligibility::Ready,
            State::Out => Eligibility::Doubtful,
            State::Down | State::Draining => Eligibility::Excluded,
        }
    }
}

impl Server {
    /// Creates a server. `name` is unique in its upstream; `label` is the name of its entry, which several addresses
    /// may share.
    pub(super) fn new(
        config: &UpstreamConfig,
        label: &str,
        name: String,
        address: SocketAddr,
        back: Option<Duration>,
    ) -> Server {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (rise, fall) = config.health.as_ref().map_or((1, 1), |h| (h.rise, h.fall));
        Server {
            id: ServerId(NEXT.fetch_add(1, Ordering::Relaxed)),
            cookie: sticky_id(&config.name, &name),
            name,
            label: label.to_owned(),
            address,
            health: Mutex::new(Health {
                active: Active::new(rise, fall),
                connects: Passive::new(config.outlier_detection),
                replies: Passive::new(config.outlier_detection),
                back,
                slow_start: config.slow_start,
                last_check: None,
            }),
            drained: AtomicBool::new(false),
            open: AtomicU32::new(0),
            idle: IdlePool::default(),
            counts: Counts::default(),
        }
    }

    /// Returns the identity.
    pub(crate) fn id(&self) -> ServerId {
        self.id
    }

    /// Returns the name: the configured one, else the address. A looked-up entry has a server for each address,
    /// `NAME@ADDRESS`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address that is connected to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the value that identifies it in a sticky cookie.
    pub(super) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Returns whether an operator may mean it by this name. Another entry may give it further names.
    pub(super) fn is_called(&self, name: &str) -> bool {
        name == self.name || name == self.label || self.address.to_string() == name
    }

    /// Returns its description for messages.
    pub(super) fn described(&self) -> String {
        let address = self.address.to_string();
        match self.label == address {
            true => address,
            false => format!("{} ({address})", self.label),
        }
    }

    /// Applies a configuration.
    pub(super) fn configure(&self, config: &UpstreamConfig) {
        let mut health = self.health.lock();
        health.active = match &config.health {
            Some(rules) => health.active.clone().with_rules(rules.rise, rules.fall),
            None => Active::new(1, 1),
        };
        if config.health.is_none() {
            health.last_check = None;
        }
        health.connects = health.connects.clone().with_rules(config.outlier_detection);
        health.replies = health.replies.clone().with_rules(config.outlier_detection);
        health.slow_start = config.slow_start;
    }

    /// Returns the state, and the share of the weight that it gets.
    pub(super) fn state(&self, now: Duration) -> (State, u32) {
        let health = self.health.lock();
        let out = health.connects.is_out(now) || health.replies.is_out(now);
        let state = match (self.drained.load(Ordering::Relaxed), health.active.is_up(), out) {
            (true, ..) => State::Draining,
            (_, false, _) => State::Down,
            (_, _, true) => State::Out,
            _ => State::Up,
        };
        let trial = [&health.connects, &health.replies].map(|p| p.on_trial_since(now));
        let back = trial.into_iter().chain([health.back]).flatten().max();
        let share = back.map_or(FULL_SHARE, |back| slow_start(back, now, health.slow_start));
        (state, share)
    }

    /// Returns the time at which it is out no more, if it is out.
    pub(super) fn out_until(&self, now: Duration) -> Option<Duration> {
        let health = self.health.lock();
        health.connects.out_until(now).max(health.replies.out_until(now))
    }

    pub(super) fn set_drained(&self, drained: bool, now: Duration) {
        let before = self.drained.swap(drained, Ordering::Relaxed);
        match (before, drained) {
            (true, false) => self.health.lock().back = Some(now),
            (false, true) => self.idle.clear(),
            _ => {}
        }
    }

    /// Applies the result of a check, and returns the new state if it went up or down.
    pub(super) fn checked(&self, result: Result<(), String>, now: Duration) -> Option<State> {
        let mut health = self.health.lock();
        let changed = health.active.checked(result.is_ok());
        health.last_check = Some((now, result));
        match (changed, health.active.is_up()) {
            (false, _) => None,
            (true, true) => {
                health.back = Some(now);
                // Discard earlier failures of connections: the server is up again.
                health.connects.clear();
                health.replies.clear();
                Some(State::Up)
            }
            (true, false) => {
                drop(health);
                self.idle.clear();
                Some(State::Down)
            }
        }
    }

    /// Returns the time of the last check, and its result.
    pub(super) fn last_check(&self) -> Option<(Duration, Result<(), String>)> {
        self.health.lock().last_check.clone()
    }

    /// Records that it accepted a connection, or replied to a request.
    pub(super) fn succeeded(&self, in_what: Act, now: Duration) {
        let mut health = self.health.lock();
        let trial = health.passive(in_what).on_trial_since(now);
        health.passive(in_what).succeeded(now);
        // The slow start began with the trial, and goes on behind it.
        health.back = health.back.max(trial);
    }

    /// Records a failure, with the client that may have caused it. Returns for how long the server is out, if that takes
    /// it out.
    pub(super) fn failed(&self, in_what: Act, client: Option<IpAddr>, now: Duration) -> Option<Duration> {
        let out = self.health.lock().passive(in_what).failed(now, client);
        if out.is_some() {
            self.idle.clear();
        }
        out
    }
}

/// Kind of a passive observation: a server may accept connections and yet fail to reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Connect,
    Reply,
}

impl Health {
    fn passive(&mut self, act: Act) -> &mut Passive {
        match act {
            Act::Connect => &mut self.connects,
            Act::Reply => &mut self.replies,
        }
    }
}
