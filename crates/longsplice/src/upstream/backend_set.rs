//! Holds the current servers of an upstream, and chooses one of them.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use longsplice_core::balance::{Algorithm, Backend, Balancer, Candidate, Choice, Eligibility, MAX_WEIGHT};

use super::{
    discovery::Entry,
    drains::Drains,
    names::ResolvedAddr,
    server::{Server, ServerId, State},
};
use crate::config::{ServerConfig, UpstreamConfig};

/// Exempts servers from slow start that an upstream finds this soon after its own start: they were there before it.
const BEGINNING: Duration = Duration::from_secs(10);

/// A server with its settings in this upstream.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) server: Arc<Server>,
    pub(super) weight: u32,
    pub(super) max_connections: Option<u32>,
    pub(super) backup: bool,
    tier: u32,
    /// True if its entry has addresses of both families: a client prefers its own family, because only legs of one
    /// family can be spliced.
    dual: bool,
    /// Index of its entry.
    entry: usize,
    /// Names that it has by later entries with its address.
    also: Vec<String>,
}

/// All servers of an upstream.
#[derive(Debug)]
pub(super) struct BackendSet {
    pub(super) members: Vec<Member>,
    pub(super) entries: Vec<Arc<Entry>>,
    balancer: Balancer,
    algorithm: Algorithm,
    /// Buffer for one choice, reused to avoid allocation.
    candidates: Vec<Candidate>,
    /// Removed servers with open connections: a server that returns keeps its state and its count.
    former: HashMap<Key, Weak<Server>>,
    drains: Drains,
    /// Entries with an address of an earlier entry, by their labels; the log has told of them.
    repeats: HashSet<(String, SocketAddr)>,
}

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
    pub(super) fn into_owned(self) -> Want<'static> {
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

type Key = (String, SocketAddr);

/// Result of a choice.
#[derive(Debug)]
pub(super) enum Selection {
    Server(Arc<Server>),
    Full,
    NoneEligible,
    /// Asks to look up the entry of this index first: it has no address yet, and would be chosen.
    Look(usize),
}

impl BackendSet {
    pub(super) fn new() -> BackendSet {
        BackendSet {
            members: Vec::new(),
            entries: Vec::new(),
            balancer: Balancer::new(Algorithm::First, Vec::new()),
            algorithm: Algorithm::First,
            candidates: Vec::new(),
            former: HashMap::new(),
            drains: Drains::default(),
            repeats: HashSet::new(),
        }
    }

    /// Rebuilds the list of servers from the configuration and the addresses of `entries`, one entry for each
    /// configured server.
    pub(super) fn rebuild(&mut self, config: &UpstreamConfig, entries: Vec<Arc<Entry>>, now: Duration) {
        let mut known = self.known();
        let mut repeats = HashSet::new();
        let mut taken: HashMap<SocketAddr, usize> = HashMap::new();
        for (index, (server, entry)) in config.servers.iter().zip(&entries).enumerate() {
            let sites = entry.sites();
            let (v4, v6): (Vec<&ResolvedAddr>, Vec<&ResolvedAddr>) =
                sites.iter().partition(|s| s.address.is_ipv4());
            let dual = !v4.is_empty() && !v6.is_empty();
            let heaviest = sites.iter().filter_map(|s| s.weight).max();
            for site in sites.iter() {
                let label = server.label();
                let name = match entry.is_name() {
                    true => format!("{label}@{}", site.address),
                    false => label.clone(),
                };
                let place = *taken.entry(site.address).or_insert(self.members.len());
                if let Some(first) = self.members.get_mut(place) {
                    if first.entry != index {
                        let repeat = (label.clone(), site.address);
                        if !self.repeats.contains(&repeat) {
                            let (upstream, server, earlier) = (&config.name, &name, first.server.name());
                            tracing::warn!(
                                upstream,
                                server,
                                earlier,
                                "an address is listed twice: the weight, limit and backup of the earlier one hold; list it once"
                            );
                        }
                        repeats.insert(repeat);
                        first.also.extend([name, label]);
                    }
                    continue;
                }
                let back = (now > BEGINNING).then_some(now);
                let found = known
                    .remove(&(name.clone(), site.address))
                    .unwrap_or_else(|| Arc::new(Server::new(config, &label, name, site.address, back)));
                found.configure(config);
                self.members.push(Member {
                    server: found,
                    weight: weight(server, site, heaviest),
                    max_connections: server.max_connections,
                    backup: server.backup,
                    tier: tier(config.balance.algorithm, server.backup, index, site.rank),
                    dual,
                    entry: index,
                    also: Vec::new(),
                });
            }
        }
        for member in &self.members {
            let is_drained = self.drains.covers(|name| member.is_called(name));
            member.server.set_drained(is_drained, now);
        }
        self.repeats = repeats;
        for gone in known.into_values() {
            gone.idle.clear();
            if Arc::strong_count(&gone) > 1 {
                let key = (gone.name().to_owned(), gone.address());
                self.former.insert(key, Arc::downgrade(&gone));
            }
        }
        self.entries = entries;
        self.algorithm = config.balance.algorithm;
        let backends = self.members.iter().map(|m| Backend {
            identity: m.server.name().to_owned(),
            weight: m.weight,
            tier: m.tier,
        });
        self.balancer = Balancer::new(self.algorithm, backends.collect());
    }

    /// Takes out all servers that still exist.
    fn known(&mut self) -> HashMap<Key, Arc<Server>> {
        let former = self
            .former
            .drain()
            .filter_map(|(key, server)| Some((key, server.upgrade()?)));
        let present = self.members.drain(..).map(|m| {
            let key = (m.server.name().to_owned(), m.server.address());
            (key, m.server)
        });
        former.chain(present).collect()
    }

    /// Chooses a server. An entry without an address is waited for only if `given_up` is set and does not contain it.
    pub(super) fn pick(
        &mut self,
        want: &Want<'_>,
        now: Duration,
        random: &mut dyn FnMut() -> u64,
        given_up: Option<&[usize]>,
    ) -> Selection {
        if let Some(pick) = self.sticky(want, now) {
            return pick;
        }
        self.candidates.clear();
        let candidates = self.members.iter().map(|m| m.candidate(want, now));
        self.candidates.extend(candidates);
        let choice = self
            .balancer
            .choose(&self.candidates, want.key.as_deref(), random);
        let chosen = match choice {
            Choice::Server(index) => self.members.get(index),
            Choice::Full | Choice::NoneEligible => None,
        };
        // With the algorithm `first`, look up each name before the chosen server first. Otherwise look names up only
        // if no server is left.
        let before = match (self.algorithm, chosen, choice) {
            (Algorithm::First, Some(member), _) => member.entry,
            (_, Some(_), _) | (_, None, Choice::Full) => 0,
            (_, None, _) => self.entries.len(),
        };
        let unknown = |index: &usize| self.entries.get(*index).is_some_and(|e| e.sites().is_empty());
        let look = given_up.and_then(|given_up| (0..before).find(|i| !given_up.contains(i) && unknown(i)));
        match (look, chosen, choice) {
            (Some(entry), ..) => Selection::Look(entry),
            (None, Some(member), _) => Selection::Server(Arc::clone(&member.server)),
            (None, None, Choice::Full) => Selection::Full,
            (None, None, _) => Selection::NoneEligible,
        }
    }

    /// Returns the server of the cookie, unless it is not up any more. If it is full, the client waits for it.
    fn sticky(&self, want: &Want<'_>, now: Duration) -> Option<Selection> {
        let value = want.sticky.as_deref()?;
        let member = self.members.iter().find(|m| m.server.cookie() == value)?;
        let ready = member.server.state(now).0 == State::Up && !want.not.contains(&member.server.id());
        ready.then(|| match member.is_full() {
            true => Selection::Full,
            false => Selection::Server(Arc::clone(&member.server)),
        })
    }

    /// Drains the servers of this name or undoes it, and returns how many have it. An entry without an address counts.
    pub(super) fn drain(&mut self, config: &UpstreamConfig, name: &str, drain: bool, now: Duration) -> usize {
        let called: Vec<_> = self.members.iter().filter(|m| m.is_called(name)).collect();
        let listed = config.servers.iter().filter(|s| s.label() == name).count();
        match called.len() + listed {
            1.. => self.drains.command(name, drain),
            // Let a server that is gone be ready if it returns.
            0 if !drain => self.drains.forget(name),
            0 => {}
        }
        for member in &called {
            member.server.set_drained(drain, now);
        }
        called.len().max(listed)
    }

    /// Returns the next time at which a server is out no more.
    pub(super) fn next_return(&self, now: Duration) -> Option<Duration> {
        self.members.iter().filter_map(|m| m.server.out_until(now)).min()
    }

    /// Returns whether it contains this server now.
    pub(super) fn has(&self, id: ServerId) -> bool {
        self.members.iter().any(|m| m.server.id() == id)
    }

    /// Returns the reason why no server can be chosen.
    pub(super) fn why_none_eligible(&self, now: Duration) -> String {
        let count = |state| {
            self.members
                .iter()
                .filter(|m| m.server.state(now).0 == state)
                .count()
        };
        let lost = self.entries.iter().filter(|e| e.sites().is_empty()).count();
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
        match words.is_empty() {
            true => "all were tried".to_owned(),
            false => words.join(", "),
        }
    }

    /// Closes idle connections of the server, so that a new one stays within `max_connections`.
    pub(super) fn make_room(&self, server: &Server) {
        let member = self.members.iter().find(|m| m.server.id() == server.id());
        if let Some(most) = member.and_then(|m| m.max_connections) {
            let open = server.open.load(Ordering::Relaxed);
            server.idle.shrink(most.saturating_sub(open) as usize);
        }
    }

    /// Closes idle connections that are too old or were closed by their servers, and returns how many are left.
    pub(super) fn sweep(&self, config: &UpstreamConfig) -> usize {
        let count = |m: &Member| {
            m.server.idle.sweep(config.idle_timeout, config.max_idle);
            m.server.idle.len() + m.server.idle.aside()
        };
        self.members.iter().map(count).sum()
    }
}

impl Member {
    /// Returns whether an operator may mean it by this name.
    fn is_called(&self, name: &str) -> bool {
        self.server.is_called(name) || self.also.iter().any(|also| also == name)
    }

    fn is_full(&self) -> bool {
        let open = self.server.open.load(Ordering::Relaxed);
        self.max_connections.is_some_and(|most| open >= most)
    }

    fn candidate(&self, want: &Want<'_>, now: Duration) -> Candidate {
        let (state, share) = self.server.state(now);
        let foreign = self.dual && self.server.address().is_ipv4() != want.ipv4;
        Candidate {
            weight: self.weight * share,
            open: self.server.open.load(Ordering::Relaxed),
            tier: self.tier + u32::from(foreign),
            eligibility: match want.not.contains(&self.server.id()) {
                true => Eligibility::Excluded,
                false => state.eligibility(),
            },
            full: self.is_full(),
        }
    }
}

/// Returns the tier; the balancer prefers lower ones. Servers precede backups; then, with `first`, entries count in
/// their order; then SRV priorities. The result is even, so that addresses of the other family follow directly behind.
fn tier(algorithm: Algorithm, backup: bool, entry: usize, rank: u16) -> u32 {
    const RANKS: u32 = 256;
    const ENTRIES: u32 = 1 << 16;
    let entry = match algorithm {
        Algorithm::First => u32::try_from(entry).unwrap_or(ENTRIES).min(ENTRIES - 1),
        _ => 0,
    };
    let backup = u32::from(backup);
    ((backup * ENTRIES + entry) * RANKS + u32::from(rank).min(RANKS - 1)) * 2
}

/// Returns the configured weight, or that of the SRV record, scaled down if the largest exceeds `MAX_WEIGHT`.
fn weight(server: &ServerConfig, site: &ResolvedAddr, heaviest: Option<u16>) -> u32 {
    let (Some(weight), Some(heaviest)) = (site.weight, heaviest) else {
        return server.weight;
    };
    let (weight, heaviest) = (u32::from(weight), u32::from(heaviest));
    match heaviest > MAX_WEIGHT {
        true => weight * MAX_WEIGHT / heaviest,
        false => weight,
    }
    // A weight of 0 means a small chance, not none (RFC 2782).
    .clamp(1, MAX_WEIGHT)
}

/// Returns a random number for a choice.
pub(super) fn random() -> u64 {
    fastrand::u64(..)
}
