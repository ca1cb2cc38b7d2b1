//! Rules for TCP packets that come in: which packets, and what becomes of them. The first rule that a packet meets decides.
//!
//! [`compile`] turns rules into the entries that the kernel half compares a packet with; docs/rules.md is the user's page.

mod check;
mod compile;
mod flags;
mod network;
mod ports;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use crate::family::Family;
pub use check::{CompileError, Wrong, is_interface_name};
pub use compile::{Entry, MAX_ENTRIES, MAX_TARGETS, Masked, Program, Seen, Target, Verb, compile};
pub use flags::{Flags, ParseFlagsError};
pub use network::{Network, ParseNetworkError};
pub use ports::{ParsePortsError, Ports};

/// The longest name and the longest reason, in bytes.
pub const MAX_TEXT: usize = 64;

/// What is done with the packets that match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Names it where rules are listed: 1 to [`MAX_TEXT`] bytes without control characters, unlike the other rules' names.
    pub name: String,
    /// Which packets.
    #[serde(default, rename = "match")]
    pub matching: Match,
    /// What becomes of them.
    pub action: Action,
}

/// Which packets: those of which all that is said here is true. An empty list takes every value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// The interface on which they come in; `None`: any but the loopback.
    pub interface: Option<String>,
    /// Networks that the source address is in.
    pub from: Vec<Network>,
    /// Networks that the destination address is in.
    pub to: Vec<Network>,
    /// Source ports.
    pub from_ports: Vec<Ports>,
    /// Destination ports.
    pub to_ports: Vec<Ports>,
    /// TCP flags; by default those of a packet that opens a connection.
    pub flags: Flags,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It goes on, and no further rule is asked.
    Pass,
    /// It is dropped.
    Drop {
        /// Why: rules with the same reason are added up.
        reason: String,
    },
    /// It is counted, and the next rule is asked.
    Count,
    /// A packet that opens a connection goes to a listener of this host, whatever its destination, which the accepted
    /// socket has as its local address. Later ones reach the socket of their connection. Others go on untouched. The
    /// listener's socket needs `IP_TRANSPARENT` (`IPV6_TRANSPARENT`).
    Deliver {
        /// Where the listener listens: one address of a family at most.
        to: Vec<SocketAddr>,
    },
    /// A packet whose connection has a socket on this host reaches it, whatever its destination; others go on untouched.
    Follow,
    /// It is sent on with other headers.
    Translate(Translation),
    /// A program gets it, and nobody else.
    Ask,
    /// A program gets a copy; the packet goes on, and no further rule is asked.
    Copy,
}

impl Action {
    /// The name, as it stands in a file.
    pub fn as_str(&self) -> &'static str {
        match self {
            Action::Pass => "pass",
            Action::Drop { .. } => "drop",
            Action::Count => "count",
            Action::Deliver { .. } => "deliver",
            Action::Follow => "follow",
            Action::Translate(_) => "translate",
            Action::Ask => "ask",
            Action::Copy => "copy",
        }
    }
}

/// A translation of headers (paper 003's instructions to its packet injection module; section III-B of paper 002): what the
/// addresses are to be, and what is added to the numbers, modulo 2^32. Nothing is checked or noted: it has no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translation {
    /// The source.
    pub from: SocketAddr,
    /// The destination, of the same family.
    pub to: SocketAddr,
    /// To be added to sequence numbers.
    #[serde(default)]
    pub seq: u32,
    /// To be added to acknowledgements and SACK edges (RFC 2018).
    #[serde(default)]
    pub ack: u32,
    /// To be added to TSval (RFC 7323).
    #[serde(default)]
    pub tsval: u32,
    /// To be added to TSecr, unless it is 0.
    #[serde(default)]
    pub tsecr: u32,
}

/// A type that is written as text.
macro_rules! as_text {
    ($t:ty) => {
        impl serde::Serialize for $t {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $t {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use as_text;

#[cfg(test)]
mod tests;
