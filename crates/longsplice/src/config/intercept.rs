//! Reads listeners that intercept connections to other hosts on an interface.

use std::net::SocketAddr;

pub(crate) use longsplice_engine::SourceAddress;
use longsplice_engine::rules::{Action, MAX_TEXT, Match, Network, Ports, Rule};
use serde::Deserialize;
use toml::Spanned;

use super::{
    guarded,
    one_or_many::{OneOrMany, list},
    rules::Complaint,
};

/// Selects the connections that a listener intercepts, and its source address toward the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InterceptConfig {
    /// Interfaces on which clients' packets arrive.
    pub interfaces: Vec<String>,
    /// Networks of the clients; empty means all.
    pub from: Vec<Network>,
    /// Networks that clients connect to; empty means all.
    pub to: Vec<Network>,
    /// Ports that clients connect to; empty means all.
    pub ports: Vec<Ports>,
    /// Selects the source address that the target sees.
    pub source: SourceAddress,
    /// Interface on which the targets' answers arrive, if they are addressed to the client.
    pub answers: Option<String>,
}

/// The table as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    interface: Spanned<OneOrMany<String>>,
    from: Option<Spanned<OneOrMany<Network>>>,
    to: Option<Spanned<OneOrMany<Network>>>,
    ports: Option<Spanned<OneOrMany<Ports>>>,
    source: Option<SourceAddress>,
    answers: Option<String>,
}

/// Checks and converts the table.
pub(super) fn settle(raw: Raw) -> Result<InterceptConfig, Complaint> {
    let complaint = |message: &str, help| Complaint {
        message: message.to_owned(),
        help,
    };
    let settled = InterceptConfig {
        interfaces: list(Some(raw.interface)),
        from: list(raw.from),
        to: list(raw.to),
        ports: list(raw.ports),
        source: raw.source.unwrap_or_default(),
        answers: raw.answers,
    };
    match (settled.source, &settled.answers) {
        _ if settled.interfaces.is_empty() => Err(complaint(
            "no interface is named",
            "name the one on which clients' packets come in, such as interface = \"eth0\"",
        )),
        (SourceAddress::Client | SourceAddress::ClientAndPort, None) => Err(complaint(
            &format!(
                "source = {:?} needs to know where the answers come in",
                settled.source.as_str()
            ),
            "add answers = \"eth1\", the interface toward the targets: their answers are addressed to the client",
        )),
        (SourceAddress::Forwarder, Some(_)) => Err(complaint(
            "`answers` is of no use here: the targets answer the forwarder",
            "leave it out, or add source = \"client\"",
        )),
        _ => Ok(settled),
    }
}

impl InterceptConfig {
    /// Returns the interfaces whose packets must be routed to this host.
    pub(crate) fn all_interfaces(&self) -> Vec<String> {
        self.interfaces.iter().chain(&self.answers).cloned().collect()
    }

    /// Returns the rules by which this listener intercepts; with `goes_on`, some of its connections go to their original
    /// destinations.
    pub(super) fn rules(&self, listener: &str, listen: &[SocketAddr], goes_on: bool) -> Vec<Rule> {
        let deliver = |interface: &String, to: &[Network], how: &str| Rule {
            name: rule_name(&format!("{interface} to listener {listener}{how}")),
            matching: Match {
                interface: Some(interface.clone()),
                from: self.from.clone(),
                to: to.to_vec(),
                to_ports: self.ports.clone(),
                ..Match::default()
            },
            action: Action::Deliver { to: listen.to_vec() },
        };
        let pass = |interface: &String, to: Vec<Network>| Rule {
            name: rule_name(&format!("{interface} around listener {listener}")),
            matching: Match {
                interface: Some(interface.clone()),
                to,
                ..Match::default()
            },
            action: Action::Pass,
        };
        let mut rules = Vec::new();
        let around = match goes_on {
            true => self.passed_by(listen),
            false => Vec::new(),
        };
        for interface in &self.interfaces {
            if !around.is_empty() {
                let named = guarded::named(&self.to);
                if !named.is_empty() {
                    rules.push(deliver(interface, &named, " by name"));
                }
                rules.push(pass(interface, around.clone()));
            }
            rules.push(deliver(interface, &self.to, ""));
        }
        let follow = self.answers.iter().map(|interface| Rule {
            name: rule_name(&format!("{interface} back to listener {listener}")),
            matching: Match {
                interface: Some(interface.clone()),
                from: self.to.clone(),
                to: self.from.clone(),
                from_ports: self.ports.clone(),
                ..Match::default()
            },
            action: Action::Follow,
        });
        rules.extend(follow);
        rules
    }

    /// Returns the guarded networks that its rules pass by, in the families in which it listens.
    fn passed_by(&self, listen: &[SocketAddr]) -> Vec<Network> {
        let listens = |network: &Network| {
            listen
                .iter()
                .any(|at| at.is_ipv4() == network.address().is_ipv4())
        };
        let covered = guarded::covered(&self.to);
        covered.into_iter().filter(listens).collect()
    }
}

/// Cuts the name to the longest that a rule may have.
pub(crate) fn rule_name(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_TEXT))
        .unwrap_or_default()
        .to_owned()
}
