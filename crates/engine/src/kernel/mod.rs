//! The kernel half of a splicer, and all that reaches it directly. It knows of no pair and of no task.

pub(crate) mod announce;
pub(crate) mod conntrack;
pub(crate) mod held;
pub(crate) mod netfilter;
pub(crate) mod netlink;
pub(crate) mod packet;
pub(crate) mod quarantine;
pub(crate) mod ring;
pub(crate) mod socket;

use std::sync::Arc;

use longsplice_dataplane::Dataplane;

use announce::Announcer;
use conntrack::Conntrack;
use held::HeldPackets;
use quarantine::Quarantine;

/// The programs and their tables, and the state that user space keeps for their flows.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) plane: Arc<Dataplane>,
    pub(crate) announcer: Announcer,
    pub(crate) held: HeldPackets,
    pub(crate) quarantine: Quarantine,
    pub(crate) conntrack: Conntrack,
}

impl Kernel {
    pub(crate) fn new(plane: Dataplane, announcer: Announcer) -> Kernel {
        Kernel {
            plane: Arc::new(plane),
            announcer,
            held: HeldPackets::default(),
            quarantine: Quarantine::default(),
            conntrack: Conntrack::default(),
        }
    }
}
