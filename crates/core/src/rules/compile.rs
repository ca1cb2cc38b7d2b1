//! Compiles rules into entries: one for each combination of the networks and ports of a rule, in their order.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::Ipv6Net;

use super::{
    Action, CompileError, Flags, MAX_ENTRIES, MAX_TARGETS, Match, Network, Ports, Rule, Translation, Wrong,
    check::check,
};
use crate::family::{Family, mapped};

/// Set of rules, ready for the kernel half.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// Entries in the order in which they are compared.
    pub entries: Vec<Entry>,
    /// Targets of [`Verb::Deliver`] and [`Verb::Translate`].
    pub targets: Vec<Target>,
}

/// Values of one comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Index of the rule among the rules.
    pub rule: usize,
    /// Interface by name.
    pub interface: Option<String>,
    /// Family; `None`: either.
    pub family: Option<Family>,
    /// Source, in 128 bits: IPv4 is v4-mapped.
    pub from: Ipv6Net,
    /// Destination, in 128 bits.
    pub to: Ipv6Net,
    /// Source port.
    pub from_ports: Ports,
    /// Destination port.
    pub to_ports: Ports,
    /// Flags.
    pub flags: Flags,
    /// Action.
    pub verb: Verb,
}

/// Action of the kernel half, with the index of the target in [`Program::targets`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "see Action")]
pub enum Verb {
    Pass,
    Drop,
    Count,
    Deliver(usize),
    Translate(usize),
    Ask,
    AskOrPass,
    Copy,
}

/// Target of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Address at which a look-up finds the listener; `None`: no connection is opened.
    Listener(Option<SocketAddr>),
    /// Translation of headers.
    Translation(Translation),
}

/// Properties of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Interface on which it came in.
    pub interface: String,
    /// Source.
    pub from: SocketAddr,
    /// Destination, of the same family.
    pub to: SocketAddr,
    /// Flags, as in the header.
    pub flags: u8,
}

impl Entry {
    /// Returns whether a packet fits, as the kernel half decides.
    pub fn fits(&self, p: &Seen) -> bool {
        let within = |ports: Ports, port: u16| (ports.min()..=ports.max()).contains(&port);
        self.interface.as_ref().is_none_or(|i| *i == p.interface)
            && self.family.is_none_or(|f| f == Family::of(p.to.ip()))
            && self.from.contains(&mapped(p.from.ip()))
            && self.to.contains(&mapped(p.to.ip()))
            && within(self.from_ports, p.from.port())
            && within(self.to_ports, p.to.port())
            && p.flags & self.flags.mask() == self.flags.set()
    }
}

impl Program {
    /// Returns the first entry that fits and decides.
    pub fn first(&self, p: &Seen) -> Option<&Entry> {
        self.entries.iter().find(|e| e.verb != Verb::Count && e.fits(p))
    }
}

/// Makes the entries, or finds the first rule that is wrong. The rules of a set are checked in their order.
///
/// # Errors
/// [`CompileError`], for the first rule that is wrong.
pub fn compile(rules: &[Rule]) -> Result<Program, CompileError> {
    let mut program = Program::default();
    let mut names = HashSet::new();
    for (index, rule) in rules.iter().enumerate() {
        let checked = match names.insert(rule.name.as_str()) {
            true => check(rule),
            false => Err(Wrong::Twice),
        };
        checked
            .and_then(|()| add(&mut program, index, rule))
            .map_err(|what| CompileError {
                index,
                number: index + 1,
                name: rule.name.escape_default().to_string(),
                what,
            })?;
    }
    Ok(program)
}

/// Adds the entries of a rule that was checked.
fn add(program: &mut Program, index: usize, rule: &Rule) -> Result<(), Wrong> {
    let m = &rule.matching;
    let verbs = verbs(program, rule)?;
    let flags = match rule.action {
        Action::Deliver { .. } | Action::Follow => Flags::ANY,
        _ => m.flags,
    };
    let mut pairs = Vec::new();
    for (from, to) in product(&m.from, &m.to) {
        let families = [from, to].map(|n| n.map(|n| Family::of(n.address())));
        let family = match families {
            [Some(a), Some(b)] if a != b => continue,
            [a, b] => a.or(b),
        };
        pairs.extend(fitting(&verbs, family, to.or(from))?.map(|(family, verb)| (from, to, family, verb)));
    }
    if pairs.is_empty() {
        return Err(Wrong::Families);
    }
    if !rule.is_for_packets() {
        return Ok(());
    }
    let ports: Vec<_> = product(&m.from_ports, &m.to_ports).collect();
    let needed = pairs
        .len()
        .saturating_mul(ports.len())
        .saturating_add(program.entries.len());
    if needed > MAX_ENTRIES {
        return Err(Wrong::TooMany(needed));
    }
    for (from, to, family, verb) in pairs {
        for (from_ports, to_ports) in &ports {
            program.entries.push(Entry {
                rule: index,
                interface: m.interface.clone(),
                family,
                from: from.map(Network::wide).unwrap_or_default(),
                to: to.map(Network::wide).unwrap_or_default(),
                from_ports: from_ports.unwrap_or(Ports::ALL),
                to_ports: to_ports.unwrap_or(Ports::ALL),
                flags,
                verb,
            });
        }
    }
    Ok(())
}

/// Returns every combination; an empty list stands for every value.
fn product<'a, T: Copy, U: Copy>(
    a: &'a [T],
    b: &'a [U],
) -> impl Iterator<Item = (Option<T>, Option<U>)> + 'a {
    let each_b = move || {
        let none = b.is_empty().then_some(None);
        b.iter().copied().map(Some).chain(none)
    };
    let none = a.is_empty().then_some(None);
    let each_a = a.iter().copied().map(Some).chain(none);
    each_a.flat_map(move |x| each_b().map(move |y| (x, y)))
}

/// Returns the verbs of a rule, each with its family; adds the targets to those of the program.
fn verbs(program: &mut Program, rule: &Rule) -> Result<Vec<(Option<Family>, Verb)>, Wrong> {
    let mut target = |target: Target| {
        let known = program.targets.iter().position(|t| *t == target);
        let place = known.unwrap_or_else(|| {
            program.targets.push(target);
            program.targets.len() - 1
        });
        match place < MAX_TARGETS {
            true => Ok(place),
            false => Err(Wrong::TooManyTargets(place + 1)),
        }
    };
    Ok(match &rule.action {
        Action::Pass => vec![(None, Verb::Pass)],
        Action::Drop { .. } => vec![(None, Verb::Drop)],
        // A limit has no entries.
        Action::Count | Action::Limit { .. } => vec![(None, Verb::Count)],
        Action::Ask => vec![(None, Verb::Ask)],
        Action::AskOrPass => vec![(None, Verb::AskOrPass)],
        Action::Copy => vec![(None, Verb::Copy)],
        Action::Follow => vec![(None, Verb::Deliver(target(Target::Listener(None))?))],
        Action::Translate(t) => {
            let place = target(Target::Translation(*t))?;
            vec![(Some(Family::of(t.to.ip())), Verb::Translate(place))]
        }
        Action::Deliver { to } => {
            let mut verbs = Vec::new();
            for address in to {
                let place = target(Target::Listener(Some(reachable(*address))))?;
                verbs.push((Some(Family::of(address.ip())), Verb::Deliver(place)));
            }
            verbs
        }
    })
}

/// Returns the verbs for packets of a family, each with the family of its entries.
fn fitting(
    verbs: &[(Option<Family>, Verb)],
    family: Option<Family>,
    network: Option<Network>,
) -> Result<impl Iterator<Item = (Option<Family>, Verb)>, Wrong> {
    let fit: Vec<_> = verbs
        .iter()
        .filter(|(of, _)| of.is_none() || family.is_none() || *of == family)
        .map(|(of, verb)| (of.or(family), *verb))
        .collect();
    match fit.is_empty() {
        true => Err(Wrong::NoFamily(
            network.map(|n| n.to_string()).unwrap_or_default(),
        )),
        false => Ok(fit.into_iter()),
    }
}

/// Returns an address at which a look-up finds a listener: one that listens on all addresses is found at any of them.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

/// Makes the match that names only these destination networks.
impl From<&[Network]> for Match {
    fn from(to: &[Network]) -> Match {
        Match {
            to: to.to_vec(),
            ..Match::default()
        }
    }
}
