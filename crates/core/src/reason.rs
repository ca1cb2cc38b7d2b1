//! Names the reasons for which a pair of connections is relayed rather than spliced. Each reason is counted and shown.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal),+ $(,)?) => {
        /// Reason why a pair is relayed. The name (`as_str`) is stable: it stands in `status --json` and in logs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum RelayReason { $($(#[doc = $doc])+ $variant,)+ }

        impl RelayReason {
            /// All reasons, in the order of declaration.
            pub const ALL: &'static [RelayReason] = &[$(RelayReason::$variant,)+];

            /// Returns the stable name, in snake case.
            pub fn as_str(self) -> &'static str {
                match self { $(RelayReason::$variant => $name,)+ }
            }

            /// Returns one sentence for people.
            pub fn explain(self) -> &'static str {
                match self { $(RelayReason::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

reasons! {
    /// The policy of the listener is never to splice.
    PolicyNever = "policy_never",
    /// The connection ended before its policy asked for a splice.
    EndedBeforePolicy = "ended_before_policy",
    /// The daemon lacks the privileges that splicing needs.
    NoPrivilege = "no_privilege",
    /// This kernel or machine cannot load or attach the programs.
    Unsupported = "unsupported",
    /// The pins are gone or their place is not this daemon's to use: a spliced flow would end with the daemon.
    Pins = "pins",
    /// One leg negotiated timestamps (RFC 7323) and the other did not.
    Timestamps = "timestamps",
    /// One leg negotiated ECN (RFC 3168) and the other did not.
    Ecn = "ecn",
    /// A segment that fits one leg may not fit the other leg's MSS or MTU.
    Mss = "mss",
    /// One leg is IPv4 and the other one IPv6: their segments cannot be translated into each other.
    Families = "families",
    /// A leg has a link-local IPv6 address, which means something only together with an interface.
    LinkLocal = "link_local",
    /// A leg uses an interface that is not watched (excluded, or without Ethernet headers).
    Interface = "interface",
    /// There is no route to one of the peers.
    Route = "route",
    /// Both directions had ended, or a leg was not in an established state.
    NotEstablished = "not_established",
    /// A leg is in loss recovery: a splice would prolong it.
    Recovery = "recovery",
    /// A leg was spliced before, and what passed then is not yet acknowledged by both ends.
    Unsettled = "unsettled",
    /// The table of flows is full.
    TableFull = "table_full",
    /// The windows of the two legs could not be coupled in time.
    CouplingTimeout = "coupling_timeout",
    /// An end keeps its window closed while bytes wait for it: it reads slowly, or not at all.
    SlowReader = "slow_reader",
    /// Too many other pairs couple their windows: a sixteenth of `max_dormant` may at once, 64 at least.
    Busy = "busy",
    /// The advisor: a sender's congestion window, sized for its own leg, would be too small for the whole path.
    AdvisedThroughput = "advised_throughput",
    /// The advisor: a leg loses segments, and local recovery is worth more than a splice.
    AdvisedLoss = "advised_loss",
    /// The advisor: a bulk sender is still in slow start.
    AdvisedSlowStart = "advised_slow_start",
    /// The advisor: a BBR sender on the shorter leg would collapse.
    AdvisedBbr = "advised_bbr",
    /// The advisor has too little to go by yet.
    AdvisedWait = "advised_wait",
    /// A leg's socket has an option that cannot be carried over (MPTCP, a kernel TLS record layer).
    SocketOption = "socket_option",
    /// TLS is terminated here: what one end sends is not what the other gets.
    Tls = "tls",
    /// The system refused a call that the splice needed; the log has it.
    System = "system",
}

impl fmt::Display for RelayReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_what_serde_writes() {
        let mut seen = std::collections::HashSet::new();
        for r in RelayReason::ALL {
            assert!(seen.insert(r.as_str()), "{r} twice");
            assert!(
                r.as_str()
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
            assert!(r.explain().ends_with('.'), "{r}");
        }
    }
}
