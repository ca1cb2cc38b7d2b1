//! Names the reasons for which a pair of connections is relayed rather than spliced. Each reason is counted and shown.

use serde::{Deserialize, Serialize};
use strum::EnumMessage;

/// Reason why a pair is relayed. The name (`as_str`) is stable: it stands in `status --json` and in logs.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumMessage,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RelayReason {
    /// The policy of the listener is never to splice.
    PolicyNever,
    /// The connection was taken back by command, and stays so until a splice is asked for.
    ByCommand,
    /// The connection ended before its policy asked for a splice.
    EndedBeforePolicy,
    /// The daemon lacks the privileges that splicing needs.
    NoPrivilege,
    /// This kernel or machine cannot load or attach the programs.
    Unsupported,
    /// The pins are gone or their place is not this daemon's to use: a spliced flow would end with the daemon.
    Pins,
    /// One leg negotiated timestamps (RFC 7323) and the other did not.
    Timestamps,
    /// One leg negotiated ECN (RFC 3168) and the other did not.
    Ecn,
    /// A segment that fits one leg may not fit the other leg's MSS or MTU.
    Mss,
    /// An end has never offered a window that takes two full segments of the other one.
    SmallWindow,
    /// A leg has a link-local IPv6 address, which means something only together with an interface.
    LinkLocal,
    /// Netfilter translates the addresses of a leg (NAT): segments past it would go on untranslated.
    Nat,
    /// A leg uses an interface that is not watched (excluded, PPP, or a tunnel without a fixed far end).
    Interface,
    /// There is no route to one of the peers.
    Route,
    /// Both directions had ended, or a leg was not in an established state.
    NotEstablished,
    /// A leg is in loss recovery: a splice would prolong it.
    Recovery,
    /// A leg was spliced before, and what passed then is not yet acknowledged by both ends.
    Unsettled,
    /// The table of flows has no room for it.
    TableFull,
    /// The windows of the two legs could not be coupled in time.
    CouplingTimeout,
    /// An end keeps its window closed while bytes wait for it: it reads slowly, or not at all.
    SlowReader,
    /// Too many other pairs couple their windows: a sixteenth of `max_dormant` may at once, 64 at least.
    Busy,
    /// The advisor: a sender's congestion window, sized for its own leg, would be too small for the whole path.
    AdvisedThroughput,
    /// The advisor: a leg loses segments, and local recovery is worth more than a splice.
    AdvisedLoss,
    /// The advisor: a bulk sender is still in slow start.
    AdvisedSlowStart,
    /// The advisor: a BBR sender on the shorter leg would collapse.
    AdvisedBbr,
    /// The advisor has too little to go by yet.
    AdvisedWait,
    /// The advisor: the pair carries little, and a burst over two long legs would be slower if it were spliced.
    AdvisedQuiet,
    /// The advisor: a leg has a congestion control of its own, which an end may not have.
    AdvisedCongestion,
    /// The advisor: the pair fills a bottleneck that it shares, and leaves others room before it is spliced.
    AdvisedYield,
    /// A leg's socket has an option that cannot be carried over (MPTCP, a kernel TLS record layer).
    SocketOption,
    /// TLS is terminated here: what one end sends is not what the other gets.
    Tls,
    /// The system refused a call that the splice needed; the log has it.
    System,
}

/// Reason for which a pair is spliced: the advisor's, or that it is idle. The name is stable: it stands in `status --json`
/// and in metrics.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum SpliceReason {
    /// Both legs together are a short path.
    ShortPath,
    /// One leg adds too little to the path to matter.
    NegligibleLeg,
    /// Each sender would keep its rate over the whole path.
    KeepsItsRate,
    /// A queue stands on a leg: the bottleneck is full.
    StandingQueue,
    /// The buffers of this host are the limit, and both ends have larger ones.
    OwnBuffers,
    /// Nothing has passed for as long as the pair may be idle.
    Idle,
}

crate::named!(pub SpliceReason, pub RelayReason);

impl RelayReason {
    /// Returns one sentence for people.
    pub fn explain(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;

    #[test]
    fn names_are_unique_and_what_serde_writes() {
        let mut seen = std::collections::HashSet::new();
        for r in RelayReason::VARIANTS {
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
