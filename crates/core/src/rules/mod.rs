//! Defines rules for TCP packets that come in, and their actions. The first rule that a packet meets decides.
//!
//! [`compile`] turns rules into the entries that the kernel half compares a packet with; docs/rules.md is the user's page.

mod check;
mod compile;
mod flags;
mod network;
mod ports;
mod spliced;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use crate::family::Family;
use crate::limit::RateLimit;
pub use check::{CompileError, MAX_ENTRIES, MAX_TARGETS, Wrong, is_interface_name};
pub use compile::{Entry, Program, Seen, Target, Verb, compile};
pub use flags::{Flags, ParseFlagsError};
pub use network::{Network, ParseNetworkError};
pub use ports::{ParsePortsError, Ports};
pub use spliced::{Ends, FlowDecision, decide};

/// Limit of the length of a name and of a reason, in bytes.
pub const MAX_TEXT: usize = 64;

/// Rule for the packets that match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the rule in lists: 1 to [`MAX_TEXT`] bytes without control characters, different from the other rules'
    /// names.
    pub name: String,
    /// Condition on the packets.
    #[serde(default, rename = "match")]
    pub matching: Match,
    /// Action for these packets.
    pub action: Action,
}

/// Condition on packets, which must meet all parts of it. An empty list takes every value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Interface on which they come in; `None`: any but the loopback.
    pub interface: Option<String>,
    /// Networks that may have the source address.
    pub from: Vec<Network>,
    /// Networks that may have the destination address.
    pub to: Vec<Network>,
    /// Source ports.
    pub from_ports: Vec<Ports>,
    /// Destination ports.
    pub to_ports: Vec<Ports>,
    /// TCP flags; by default those of a packet that opens a connection.
    pub flags: Flags,
    /// True if the rule is for spliced flows, too, whatever the flags of their segments ([`decide`]).
    pub spliced: bool,
}

/// Action for a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Action {
    /// The packet goes on, and no further rule is compared.
    Pass,
    /// The packet is dropped.
    Drop {
        /// Reason: rules with the same reason are added up.
        reason: String,
    },
    /// The packet is counted, and the next rule is compared.
    Count,
    /// The payload of a spliced flow beyond these rates is dropped. Packets of others are not compared with the rule.
    Limit {
        /// Rates of what the client and the server send, beside a limit that the flow has itself.
        rate_limit: RateLimit,
    },
    /// The kernel gives a packet that opens a connection to a listener of this host, for any destination, which the
    /// accepted socket has as its local address. Later packets reach the socket of their connection. Others go on
    /// untouched. The listener's socket needs `IP_TRANSPARENT` (`IPV6_TRANSPARENT`).
    Deliver {
        /// Addresses of the listener: one of each family at most.
        to: Vec<SocketAddr>,
    },
    /// A packet whose connection has a socket on this host reaches it, for any destination; others go on untouched.
    Follow,
    /// The packet is sent on with other headers.
    Translate(Translation),
    /// Only a program gets the packet. It is dropped if the program does not keep up, or if its checksum is wrong.
    Ask,
    /// Only a program gets the packet, as with [`Action::Ask`]. It goes on if the program does not keep up.
    AskOrPass,
    /// A program gets a copy; the packet goes on, and no further rule is compared.
    Copy,
}

impl Rule {
    /// Returns true if packets of the stack are compared with it; false if it is for spliced flows only.
    pub fn is_for_packets(&self) -> bool {
        !matches!(self.action, Action::Limit { .. })
    }
}

impl Action {
    /// Returns the name, as it stands in a file.
    pub fn as_str(&self) -> &'static str {
        self.into()
    }
}

/// Translation of headers (paper 003's instructions to its packet injection module; section III-B of paper 002): the
/// new addresses, and the numbers that are added, modulo 2^32. It has no state: nothing is checked or noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translation {
    /// New source.
    pub from: SocketAddr,
    /// New destination, of the same family.
    pub to: SocketAddr,
    /// Added to sequence numbers.
    #[serde(default)]
    pub seq: u32,
    /// Added to acknowledgements and SACK edges (RFC 2018).
    #[serde(default)]
    pub ack: u32,
    /// Added to TSval (RFC 7323).
    #[serde(default)]
    pub tsval: u32,
    /// Added to TSecr, unless it is 0.
    #[serde(default)]
    pub tsecr: u32,
}

#[cfg(test)]
mod tests;
