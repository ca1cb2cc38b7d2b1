//! Depths of a splice.

use longsplice_engine::policy::DetachPolicy;
use longsplice_engine::{Counters, FlowState};

/// Fate of the sockets of a spliced pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// They are parked, and reused.
    Dormant,
    /// They are closed silently, and rebuilt.
    Detached,
}

impl Depth {
    /// Both depths.
    pub(super) const BOTH: [Depth; 2] = [Depth::Dormant, Depth::Detached];

    /// Returns its usual name.
    pub(super) fn title(self) -> &'static str {
        match self {
            Depth::Dormant => "dormant",
            Depth::Detached => "detached",
        }
    }

    /// Returns the value of `--detach`.
    pub(super) const fn option(self) -> &'static str {
        match self {
            Depth::Dormant => "never",
            Depth::Detached => "now",
        }
    }

    /// Returns the policy of the library.
    pub(super) fn policy(self) -> DetachPolicy {
        match self {
            Depth::Dormant => DetachPolicy::Never,
            Depth::Detached => DetachPolicy::Now,
        }
    }

    /// Returns the number of pairs that have reached it. (Of dormant ones, the last 4,096 only.)
    pub(super) fn reached(self, counters: &Counters) -> u64 {
        match self {
            Depth::Dormant => counters.transition_to_dormant.samples.into(),
            Depth::Detached => counters.detached_total,
        }
    }

    /// Returns the state of a flow at this depth.
    pub(super) fn state(self) -> FlowState {
        match self {
            Depth::Dormant => FlowState::Dormant,
            Depth::Detached => FlowState::Detached,
        }
    }
}
