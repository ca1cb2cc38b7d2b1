//! Rules for packets that come in: docs/rules.md is the user's page.

mod seal;
mod spliced;

pub(crate) use seal::place_of_tcp;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    os::fd::AsFd,
    sync::Arc,
};

use longsplice_core::rules::{MAX_ENTRIES, Program, compile};
use longsplice_dataplane::{
    Dataplane, Leg,
    rules::{Counters, Rules},
};
use nix::net::if_::if_indextoname;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::spliced::{FlowCounts, SplicedFlows};
use crate::{
    kernel::{ring::Ring, socket::MARK},
    services::interfaces::RuleLink,
};

pub use longsplice_core::rules::{
    Action, CompileError, Family, Flags, MAX_TEXT, Match, Network, ParseFlagsError, ParseNetworkError,
    ParsePortsError, Ports, Rule, Translation,
};
pub use longsplice_dataplane::rules::RulePacket;

/// Checks that rules can be put in force together, before anything is changed.
///
/// # Errors
/// Returns the first wrong rule, the reason, and a remedy.
pub fn check(rules: &[Rule]) -> Result<(), CompileError> {
    compile(rules).map(drop)
}

const LOOPBACK: &str = "lo";

/// Reason that rules could not be put in force. The rules before them still are.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The rules are wrong.
    #[error(transparent)]
    Wrong(#[from] CompileError),
    /// This splicer only relays.
    #[error("rules are not possible here: {0}")]
    Unavailable(String),
    /// The kernel refuses.
    #[error("{0}")]
    System(String),
}

/// Lists the rules in force, and their counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesInfo {
    /// Rules in their order.
    pub rules: Vec<RuleInfo>,
    /// Packets dropped, by the reason that rules name.
    pub drops: BTreeMap<String, u64>,
    /// TCP packets by verdict (docs/rules.md), since rules were first set.
    pub verdicts: BTreeMap<String, u64>,
    /// Interfaces whose packets are looked at.
    pub interfaces: Vec<String>,
    /// Number of entries that the rules take.
    pub entries: usize,
    /// Maximum number of entries.
    pub max_entries: usize,
}

/// Describes a rule, and its counters since it was put in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleInfo {
    /// Text of the rule.
    pub rule: Rule,
    /// Packets that matched it, with the segments of the spliced flows that match it; a GRO super-packet is one.
    pub packets: u64,
    /// Bytes of those packets, from the IP header on.
    pub bytes: u64,
    /// Spliced flows that matched it.
    #[serde(default)]
    pub flows: u64,
    /// Segments of those flows that this rule dropped, or that were beyond its rate.
    #[serde(default)]
    pub dropped: u64,
}

/// Delivers the packets that rules send to a program (`ask` and `copy`).
#[derive(Debug)]
pub struct RulePackets(Ring<RulePacket>);

impl RulePackets {
    /// Returns the packets that have come, at least one. Cancel-safe.
    ///
    /// # Errors
    /// Returns the error of the ring if it cannot be read.
    pub async fn next(&mut self) -> io::Result<Vec<RulePacket>> {
        self.0.next().await
    }
}

/// Holds the rules of a splicer, and their interfaces.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    state: Mutex<State>,
    /// Held by the one that replaces the rules. What it takes with many spliced flows must not keep `state` from others.
    replacement: Mutex<()>,
    /// Flows that are spliced, and what the rules say of them.
    pub(crate) spliced: SplicedFlows,
}

#[derive(Debug, Default)]
struct State {
    /// Program of the rules; `None` before there is a rule.
    loaded: Option<Arc<Rules>>,
    rules: Arc<[Rule]>,
    program: Program,
    /// Interfaces that can be watched.
    links: HashMap<String, RuleLink>,
    /// Interface numbers in the set in force.
    resolved: BTreeMap<String, Option<u32>>,
    /// True if the set is for packets alone: earlier rules hold on for spliced flows.
    is_for_packets_alone: bool,
}

/// Says what rules are put in force for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Packets and spliced flows.
    All,
    /// Packets alone: the rules before hold on for spliced flows.
    Packets,
}

impl Keeper {
    /// Replaces all rules, or those for packets. Blocks on the kernel.
    pub(crate) fn set(&self, plane: &Dataplane, rules: Vec<Rule>, scope: Scope) -> Result<(), RulesError> {
        let program = compile(&rules)?;
        let _one_at_a_time = self.replacement.lock();
        let mut state = self.state.lock();
        let loaded = state.load(plane)?;
        let watched = loaded.watched();
        let wanted = state.interfaces_of(&rules, &watched);
        // Watch new interfaces before anything else changes: under the old rules an additional interface does no harm.
        if let Some((ifindex, error)) = loaded.watch(&(&wanted | &watched)).into_iter().next() {
            loaded.watch(&state.interfaces_of(&state.rules, &watched));
            return Err(RulesError::System(format!("interface {ifindex}: {error}")));
        }
        let resolved = state.resolve(&program);
        loaded
            .replace(&program, Counters::Fresh, |name| {
                resolved.get(name).copied().flatten()
            })
            .map_err(system)?;
        loaded.watch(&wanted);
        for (name, _) in resolved.iter().filter(|(_, index)| index.is_none()) {
            let named = |rule: &&Rule| rule.matching.interface.as_ref() == Some(name);
            tracing::warn!(
                interface = name,
                rule = rules.iter().find(named).map(|rule| &rule.name),
                "a rule names an interface that is not there, or has no Ethernet headers"
            );
        }
        let rules = Arc::<[Rule]>::from(rules);
        (state.rules, state.program, state.resolved) = (rules.clone(), program, resolved);
        state.is_for_packets_alone = scope == Scope::Packets;
        let is_needed = scope == Scope::All && self.spliced.set(rules);
        drop(state);
        if !is_needed {
            return Ok(());
        }
        self.spliced
            .judge_all(plane)
            .map_err(|error| RulesError::System(format!("the flows cannot be read: {error}")))
    }

    /// Adapts to the present interfaces, by name.
    pub(crate) fn follow(&self, links: HashMap<String, RuleLink>) {
        let mut state = self.state.lock();
        state.links = links;
        let Some(loaded) = state.loaded.clone() else {
            return;
        };
        for (ifindex, error) in loaded.watch(&state.interfaces_of(&state.rules, &loaded.watched())) {
            tracing::warn!(ifindex, %error, "rules cannot be attached");
        }
        let resolved = state.resolve(&state.program);
        if resolved == state.resolved {
            return;
        }
        let done = loaded.replace(&state.program, Counters::Kept, |name| {
            resolved.get(name).copied().flatten()
        });
        match done {
            Ok(()) => state.resolved = resolved,
            Err(error) => tracing::warn!(%error, "rules cannot follow a change of interfaces"),
        }
    }

    /// Puts back the program that another tool has taken off an interface, and logs that.
    pub(crate) fn look(&self) {
        let Some(loaded) = self.state.lock().loaded.clone() else {
            return;
        };
        for (ifindex, put) in loaded.put_back() {
            let interface = if_indextoname(ifindex).unwrap_or_default();
            match put {
                Ok(()) => tracing::warn!(
                    ?interface,
                    "another tool had taken the rules off this interface (by removing its qdisc, or by force): they are \
                     attached again. Packets passed them until now"
                ),
                Err(error) => tracing::warn!(
                    ?interface,
                    %error,
                    "another tool has taken the rules off this interface, and they cannot be attached again: packets pass \
                     them. The next change of interfaces brings another trial"
                ),
            }
        }
    }

    pub(crate) fn info(&self, plane: Option<&Dataplane>) -> RulesInfo {
        let state = self.state.lock();
        let mut info = RulesInfo {
            entries: state.program.entries.len(),
            max_entries: MAX_ENTRIES,
            ..RulesInfo::default()
        };
        let Some(loaded) = &state.loaded else { return info };
        let counts = loaded.counts(state.rules.len());
        let of_flows = match state.is_for_packets_alone {
            true => vec![FlowCounts::default(); state.rules.len()],
            false => self.spliced.counts(plane),
        };
        for ((rule, count), flows) in state.rules.iter().zip(counts).zip(of_flows) {
            let (packets, bytes) = (count.packets + flows.packets, count.bytes + flows.bytes);
            if let Action::Drop { reason } = &rule.action {
                *info.drops.entry(reason.clone()).or_default() += packets;
            }
            info.rules.push(RuleInfo {
                rule: rule.clone(),
                packets,
                bytes,
                flows: flows.flows,
                dropped: flows.dropped,
            });
        }
        info.verdicts = loaded.verdicts();
        let watched = loaded.watched();
        let names = state
            .links
            .iter()
            .filter(|(_, link)| watched.contains(&link.index));
        info.interfaces = names.map(|(name, _)| name.clone()).collect();
        info.interfaces.sort();
        info
    }

    pub(crate) fn packets(&self, plane: &Dataplane) -> Result<RulePackets, RulesError> {
        let loaded = self.state.lock().load(plane)?;
        let packets = loaded.packets().map_err(system)?;
        Ring::new(packets).map(RulePackets).map_err(system)
    }

    pub(crate) fn let_in(&self, plane: &Dataplane, packet: &RulePacket) -> io::Result<()> {
        // It may have been taken before its device had computed the checksum.
        let mut whole = packet.packet.clone();
        let _ = seal::seal(&mut whole);
        plane.inject(packet.ifindex, &whole)
    }

    /// Delivers a copy of the next segment that reaches a socket by a rule ([`RulePackets`]). Does nothing without rules.
    pub(crate) fn await_segment(&self, socket: impl AsFd) -> io::Result<()> {
        let loaded = self.state.lock().loaded.clone();
        loaded.map_or(Ok(()), |rules| {
            rules.await_segment(socket).map_err(io::Error::other)
        })
    }

    /// Delivers copies of all segments that reach a socket by a rule, until [`RuleManager::forget_segments`]. Fails
    /// without rules.
    pub(crate) fn await_segments(&self, socket: impl AsFd) -> io::Result<()> {
        let loaded = self.state.lock().loaded.clone();
        let rules = loaded.ok_or(io::ErrorKind::Unsupported)?;
        rules.await_segments(socket).map_err(io::Error::other)
    }

    /// Awaits no segment of this socket any more.
    pub(crate) fn forget_segments(&self, socket: impl AsFd) {
        if let Some(loaded) = self.state.lock().loaded.clone() {
            loaded.forget_segments(socket);
        }
    }

    /// Delivers a copy of the next acknowledgement from `leg.peer` to `leg.local` that meets a rule that follows, and finds no
    /// socket. Does nothing without rules.
    pub(crate) fn await_segment_of(&self, leg: Leg) -> io::Result<()> {
        let Some(loaded) = self.state.lock().loaded.clone() else {
            return Ok(());
        };
        loaded.await_segment_of(leg).map_err(io::Error::other)?;
        loaded.set_awaiting(true).map_err(io::Error::other)
    }

    /// Awaits no segment of this connection any more; `was_last`: nor of any other one.
    pub(crate) fn forget_segment_of(&self, leg: Leg, was_last: bool) {
        if let Some(loaded) = self.state.lock().loaded.clone() {
            loaded.forget_segment_of(leg);
            if was_last {
                // A failure costs a look-up for each packet.
                let _ = loaded.set_awaiting(false);
            }
        }
    }

    /// Takes the program off every interface.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        *state = State {
            links: std::mem::take(&mut state.links),
            ..State::default()
        };
    }
}

impl State {
    fn load(&mut self, plane: &Dataplane) -> Result<Arc<Rules>, RulesError> {
        if let Some(loaded) = &self.loaded {
            return Ok(loaded.clone());
        }
        let loaded = Arc::new(Rules::load(plane, MARK).map_err(system)?);
        self.loaded = Some(loaded.clone());
        Ok(loaded)
    }

    /// Returns the interfaces on which these rules need the program; `watched` have it. A rule without an interface needs it on
    /// no port: the packets come by again at its bridge or bond, and segments of spliced flows have not been taken yet. An
    /// interface that goes down keeps it: packets may come in as soon as it is up again.
    fn interfaces_of(&self, rules: &[Rule], watched: &BTreeSet<u32>) -> BTreeSet<u32> {
        let of_packets: Vec<_> = rules.iter().filter(|rule| rule.is_for_packets()).collect();
        let wanted = |name: &String, link: &RuleLink| {
            of_packets.iter().any(|rule| match &rule.matching.interface {
                Some(named) => named == name,
                None => !link.is_port && (link.is_up || watched.contains(&link.index)),
            })
        };
        let links = self.links.iter().filter(|(name, _)| *name != LOOPBACK);
        links
            .filter(|(name, link)| wanted(name, link))
            .map(|(_, link)| link.index)
            .collect()
    }

    /// Returns the present numbers of the interfaces that a set names.
    fn resolve(&self, program: &Program) -> BTreeMap<String, Option<u32>> {
        let names = program.entries.iter().filter_map(|e| e.interface.as_ref());
        names
            .map(|name| (name.clone(), self.links.get(name).map(|link| link.index)))
            .collect()
    }
}

fn system(error: impl std::fmt::Display) -> RulesError {
    RulesError::System(error.to_string())
}
