//! Listeners that intercept: connections to others that come by on an interface.

use longsplice_engine::rules::{Action, MAX_TEXT, Match, Network, Ports, Rule};
use serde::Deserialize;
use toml::Spanned;

use super::{
    ListenerConfig,
    packet_rules::list,
    raw::{OneOrMany, flatten},
    rules::Complaint,
};

/// Which connections a listener intercepts, and as whom it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterceptConfig {
    /// The interfaces on which clients' packets come in.
    pub interfaces: Vec<String>,
    /// The clients' networks; empty: all.
    pub from: Vec<Network>,
    /// The networks that clients connect to; empty: all.
    pub to: Vec<Network>,
    /// The ports that clients connect to; empty: all.
    pub ports: Vec<Ports>,
    /// Whose address the target sees.
    pub source: SourceAddress,
    /// The interface on which the answers of the targets come in, if they are addressed to the client.
    pub answers: Option<String>,
}

/// Whose address the target of an intercepted connection sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceAddress {
    /// The forwarder's.
    #[default]
    Forwarder,
    /// The client's, from another port.
    Client,
    /// The client's, from its own port where that is free, and with its initial sequence number (papers' section III-F).
    ClientAndPort,
}

impl SourceAddress {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            SourceAddress::Forwarder => "forwarder",
            SourceAddress::Client => "client",
            SourceAddress::ClientAndPort => "client_and_port",
        }
    }
}

/// The table as it is written.
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

/// What the table means, or what is wrong with it.
pub(super) fn settle(raw: Raw) -> Result<InterceptConfig, Complaint> {
    let complaint = |message: &str, help| Complaint {
        message: message.to_owned(),
        help,
    };
    let settled = InterceptConfig {
        interfaces: flatten(raw.interface)
            .into_iter()
            .map(Spanned::into_inner)
            .collect(),
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
                settled.source.name()
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
    /// The interfaces whose packets have to be routed to this host.
    pub fn all_interfaces(&self) -> Vec<String> {
        self.interfaces.iter().chain(&self.answers).cloned().collect()
    }
}

impl ListenerConfig {
    /// Whose address its servers see.
    pub fn source(&self) -> SourceAddress {
        self.intercept
            .as_ref()
            .map_or(SourceAddress::Forwarder, |i| i.source)
    }

    /// The rules by which it intercepts.
    pub fn rules(&self) -> Vec<Rule> {
        let Some(intercept) = &self.intercept else {
            return Vec::new();
        };
        let deliver = intercept.interfaces.iter().map(|interface| Rule {
            name: name(&format!("{interface} to listener {}", self.name)),
            matching: Match {
                interface: Some(interface.clone()),
                from: intercept.from.clone(),
                to: intercept.to.clone(),
                to_ports: intercept.ports.clone(),
                ..Match::default()
            },
            action: Action::Deliver {
                to: self.listen.clone(),
            },
        });
        let follow = intercept.answers.iter().map(|interface| Rule {
            name: name(&format!("{interface} back to listener {}", self.name)),
            matching: Match {
                interface: Some(interface.clone()),
                from: intercept.to.clone(),
                to: intercept.from.clone(),
                from_ports: intercept.ports.clone(),
                ..Match::default()
            },
            action: Action::Follow,
        });
        deliver.chain(follow).collect()
    }
}

/// A listener may have a longer name than a rule.
fn name(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_TEXT))
        .unwrap_or_default()
        .to_owned()
}
