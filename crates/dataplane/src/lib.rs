//! Wraps the kernel half: loads, attaches, pins and adopts the eBPF programs of bpf/, and reads and writes the data that
//! they share with user space. All `unsafe` that concerns eBPF is here.

mod abi;
mod attach;
mod attached;
mod bare;
mod clsact;
mod dataplane;
mod error;
mod events;
mod flows;
mod foreign;
mod forwarding;
mod generations;
mod grace;
mod hook;
mod inspect;
mod layout;
mod leg;
mod links;
mod load;
mod mode;
mod neighbours;
mod options;
mod order;
mod pins;
mod retry_load;
mod ring;
pub mod rules;
mod run;
mod serials;
#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    clippy::all
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/forward.skel.rs"));
    macro_rules! skeletons {
        ($($name:ident)+) => { $(
            mod $name { include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".skel.rs")); }
        )+ };
    }
    skeletons! { ask_ecn bare inject flow_ops rules inspect table xdp }
    pub(crate) use ask_ecn::AskEcnSkelBuilder;
    pub(crate) use bare::BareSkelBuilder;
    pub(crate) use flow_ops::{FlowOpsSkelBuilder, types};
    pub(crate) use inject::InjectSkelBuilder;
    pub(crate) use inspect::{InspectSkelBuilder, types::__sk_buff};
    pub(crate) use rules::{RulesSkelBuilder, types as rule_types};
    pub(crate) use table::TableSkelBuilder;
    pub(crate) use xdp::{XdpSkelBuilder, types::xdp_md};
}
mod slot;
mod slots;
mod start_times;
mod successor;
mod table;
mod time;
mod verdicts;
mod view;
mod withhold;
mod xdp;

pub use abi::{ABI_VERSION, FLOW_BYTES, Family, Leg, Mapping, Offset, PerSide, Seq, Side};
pub use attached::{InstancesOrder, before_instances};
pub use bare::Framing;
pub use dataplane::{Adopted, Alone, Dataplane, RuledCounts, Ruling};
pub use error::Error;
pub use events::{Event, EventKind};
pub use flows::Direction;
pub use hook::Hook;
pub use inspect::Inspection;
pub use leg::{LegStart, LegState};
pub use mode::Mode;
pub use options::Options;
pub use order::Foreign;
pub use pins::remove_unserved;
pub use ring::Ring;
pub use run::{Context, Ran};
pub use slot::{Slot, Sockets};
pub use successor::{SuccessorAction, SuccessorPlan};
pub use time::monotonic;
pub use withhold::{EcnAsker, Withheld};
pub use xdp::{ParseXdpModeError, XdpError, XdpMode};
