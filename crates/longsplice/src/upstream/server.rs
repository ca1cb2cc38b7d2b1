//! One server: an address, and what is known of it.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use longsplice_core::{
    balance::{FULL_SHARE, Standing, sticky_id},
    health::{Active, Passive, slow_start},
};

use super::idle::IdlePool;
use crate::config::UpstreamConfig;

/// Tells servers of this process apart, those that are gone included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(u64);

/// One address of an upstream. It outlives reloads as long as its name and address stay.
#[derive(Debug)]
pub struct Server {
    id: ServerId,
    name: String,
    label: String,
    address: SocketAddr,
    cookie: String,
    health: Mutex<Health>,
    drained: AtomicBool,
    /// Connections in use; written under the lock of the roster.
    pub(super) open: AtomicU32,
    pub(super) idle: IdlePool,
    pub(super) counts: Counts,
}

/// What a server has done, since it is known.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connections and requests that it was given.
    pub(super) requests: AtomicU64,
    /// Of them, over a connection that had been idle.
    pub(super) reused: AtomicU64,
    /// Connections made to it.
    pub(super) connects: AtomicU64,
    /// Connections that could not be made.
    pub(super) connect_failures: AtomicU64,
    /// Requests that it failed otherwise.
    pub(super) failures: AtomicU64,
    /// Replies by the first digit of their status, 1 to 5.
    pub(super) replies: [AtomicU64; 5],
    /// The time until they began, in microseconds.
    pub(super) reply_micros: AtomicU64,
}

/// What decides whether a server is chosen.
#[derive(Debug)]
struct Health {
    active: Active,
    /// What connecting says; and what replies say: a server may take connections and never answer.
    connects: Passive,
    replies: Passive,
    /// When it came, came up or was undrained last; `None`: it was there from the beginning.
    back: Option<Duration>,
    slow_start: Duration,
    last_check: Option<(Duration, Result<(), String>)>,
}

/// A server's state, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// In order.
    Up,
    /// Its checks fail.
    Down,
    /// Connections to it failed.
    Out,
    /// It was told to take no more.
    Draining,
}

impl State {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Down => "down",
            State::Out => "out",
            State::Draining => "draining",
        }
    }

    pub(super) fn standing(self) -> Standing {
        match self {
            State::Up => Standing::Ready,
            State::Out => Standing::Doubtful,
            State::Down | State::Draining => Standing::Excluded,
        }
    }
}

impl Server {
    /// `name` is one of a kind in its upstream; `label` is that of its entry, which several addresses may share.
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
                connects: Passive::new(config.passive),
                replies: Passive::new(config.passive),
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

    /// Its identity.
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// Its name: as configured, else its address; an entry that is a name has several, `NAME@ADDRESS`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is connected to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What stands for it in a sticky cookie.
    pub(super) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Whether this is what an operator calls it.
    pub(super) fn is_called(&self, name: &str) -> bool {
        name == self.name || name == self.label || self.address.to_string() == name
    }

    /// As an attempt is named in a message.
    pub(super) fn described(&self) -> String {
        let address = self.address.to_string();
        match self.label == address {
            true => address,
            false => format!("{} ({address})", self.label),
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it under the rules of a configuration.
    pub(super) fn configure(&self, config: &UpstreamConfig) {
        let mut health = self.health();
        health.active = match &config.health {
            Some(rules) => health.active.clone().with_rules(rules.rise, rules.fall),
            None => Active::new(1, 1),
        };
        if config.health.is_none() {
            health.last_check = None;
        }
        health.connects = health.connects.clone().with_rules(config.passive);
        health.replies = health.replies.clone().with_rules(config.passive);
        health.slow_start = config.slow_start;
    }

    /// Its state, and the parts of its weight that it gets.
    pub(super) fn state(&self, now: Duration) -> (State, u32) {
        let health = self.health();
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

    pub(super) fn set_drained(&self, drained: bool, now: Duration) {
        let before = self.drained.swap(drained, Ordering::Relaxed);
        match (before, drained) {
            (true, false) => self.health().back = Some(now),
            (false, true) => self.idle.clear(),
            _ => {}
        }
    }

    /// Takes in a check; answers whether it went up or down by it.
    pub(super) fn checked(&self, result: Result<(), String>, now: Duration) -> Option<State> {
        let mut health = self.health();
        let changed = health.active.checked(result.is_ok());
        health.last_check = Some((now, result));
        match (changed, health.active.is_up()) {
            (false, _) => None,
            (true, true) => {
                health.back = Some(now);
                // What connections said while it was down is over.
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

    /// When it was checked last, and what was wrong.
    pub(super) fn last_check(&self) -> Option<(Duration, Result<(), String>)> {
        self.health().last_check.clone()
    }

    /// It took a connection, or answered a request.
    pub(super) fn succeeded(&self, in_what: Act, now: Duration) {
        self.health().passive(in_what).succeeded(now);
    }

    /// It did not; answers for how long it is out by that.
    pub(super) fn failed(&self, in_what: Act, now: Duration) -> Option<Duration> {
        let out = self.health().passive(in_what).failed(now);
        if out.is_some() {
            self.idle.clear();
        }
        out
    }
}

/// What connections say comes of two acts, of which one can fail while the other works.
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
