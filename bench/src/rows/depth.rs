//! The two depths of a splice.

use longsplice_engine::policy::DetachPolicy;
use longsplice_engine::{Counters, FlowState};
use serde::Serialize;

/// What becomes of the sockets of a spliced pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Depth {
    /// They are parked, and woken.
    Dormant,
    /// They are closed in silence, and rebuilt.
    Detached,
}

impl Depth {
    /// Both.
    pub(super) const BOTH: [Depth; 2] = [Depth::Dormant, Depth::Detached];

    /// As people call it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Depth::Dormant => "dormant",
            Depth::Detached => "detached",
        }
    }

    /// The value of `--detach`.
    pub(super) const fn option(self) -> &'static str {
        match self {
            Depth::Dormant => "never",
            Depth::Detached => "now",
        }
    }

    /// The same for the library.
    pub(super) fn policy(self) -> DetachPolicy {
        match self {
            Depth::Dormant => DetachPolicy::Never,
            Depth::Detached => DetachPolicy::Now,
        }
    }

    /// How often pairs have come there. (Dormant ones among the last 4,096 only.)
    pub(super) fn reached(self, counters: &Counters) -> u64 {
        match self {
            Depth::Dormant => counters.switch_to_dormant.samples.into(),
            Depth::Detached => counters.detached_total,
        }
    }

    /// The state of a flow that is there.
    pub(super) fn state(self) -> FlowState {
        match self {
            Depth::Dormant => FlowState::Dormant,
            Depth::Detached => FlowState::Detached,
        }
    }
}
