//! What can be seen of a splicer and its flows: by the library's user, and as JSON by that of the command line.

use std::{collections::BTreeMap, net::SocketAddr};

use longsplice_core::reason::RelayReason;
use serde::{Deserialize, Serialize};

/// Identifies a flow for as long as its record lives, through splices and returns; never used again by the instance within
/// 2^32 flows. Written as a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlowId(pub u32);

impl std::fmt::Display for FlowId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for FlowId {
    type Err = std::num::ParseIntError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.parse().map(FlowId)
    }
}

/// Where a flow is in its life (docs/lifecycle.md). The names in JSON are stable: `relay`, `coupling`, `draining`, `dormant`,
/// `detached`, `undraining`, `closing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// Control mode or forwarding over the sockets, in user space.
    Relay,
    /// The windows are being coupled, before a drain (papers' section III-E).
    Coupling,
    /// New segments pass already; old bytes are still delivered (papers' section III-C).
    Draining,
    /// Spliced, the sockets are parked.
    Dormant,
    /// Spliced, no sockets.
    Detached,
    /// It has come back: the sockets go on, while what had passed by them may not be acknowledged by both ends yet (papers'
    /// section III-D).
    Undraining,
    /// Spliced and ended at both sides; the record lingers.
    Closing,
}

/// One direction of a flow.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct DirectionInfo {
    /// Payload bytes, relayed and spliced; may begin anew when the pair has come back. What is sent again while spliced counts
    /// again.
    pub bytes: u64,
    /// Whether the sender has sent its FIN.
    pub fin: bool,
    /// What is added to sequence numbers while spliced, modulo 2^32; 0 also where that is not known.
    #[serde(default)]
    pub seq_offset: u32,
    /// Whether the translation changes nothing but the time to live (papers' section III-F).
    #[serde(default)]
    pub identity: bool,
}

/// A leg's addresses.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct LegInfo {
    /// The far end.
    pub peer: SocketAddr,
    /// Our end.
    pub local: SocketAddr,
}

/// One flow, as `longsplice flows --json` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlowInfo {
    /// Its identity.
    pub id: FlowId,
    /// Leg A.
    pub client: LegInfo,
    /// Leg B.
    pub server: LegInfo,
    /// Where it is in its life.
    pub state: FlowState,
    /// While relayed: why it is not spliced (yet).
    pub reason: Option<RelayReason>,
    /// From client to server.
    pub to_server: DirectionInfo,
    /// From server to client.
    pub to_client: DirectionInfo,
    /// Seconds since the pair was handed over; of a flow that nobody holds: since it was registered to be spliced, or, where a
    /// predecessor did that, since this process has it.
    pub age_seconds: f64,
    /// Seconds since a segment or byte passed, where known.
    pub idle_seconds: Option<f64>,
}

impl FlowInfo {
    /// Whether it is spliced without any change to its segments but the time to live: the forwarder is a router to it
    /// (papers' section III-F).
    pub fn is_identity(&self) -> bool {
        self.to_server.identity && self.to_client.identity
    }
}

/// The counters of an instance, since this process started (`adopted_total`: flows of its predecessors; `segments`: since the
/// pins were made). Names only ever come to it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Connections accepted by listeners.
    pub accepted_total: u64,
    /// Splices; a pair that came back and is spliced again counts again.
    pub spliced_total: u64,
    /// Spliced pairs whose sockets were closed in silence.
    pub detached_total: u64,
    /// How often the sockets of a spliced pair were taken back into the path; not always to a caller.
    pub unspliced_total: u64,
    /// Flows found at the start, of a predecessor.
    pub adopted_total: u64,
    /// Spliced flows whose records were removed, by how they ended: `closed`, `reset`, `idle`, `asked`. (Those whose tuple a new
    /// connection took are counted in `segments`, as `syn_replaced`.)
    pub ended_total: BTreeMap<String, u64>,
    /// Pairs that ended without ever having been spliced.
    pub relayed_total: u64,
    /// The same by reason.
    pub relayed_reasons: BTreeMap<String, u64>,
    /// Bytes moved by the relay.
    pub relay_bytes_total: u64,
    /// Packets that the kernel half forwarded, delivered, dropped…, by verdict (docs/configuration.md lists them). One of GRO's
    /// super-packets counts once.
    pub segments: BTreeMap<String, u64>,
    /// Spliced pairs that came back to a caller, by cause: the names of [`crate::Trap`].
    pub returned_total: BTreeMap<String, u64>,
    /// Unspliced pairs whose sockets took over what was outstanding ([`crate::Outstanding::Capture`]).
    pub captured_total: u64,
    /// How long the switch to final took, once drained.
    pub switch_to_dormant: SwitchTimes,
    /// The same, with the sockets closed, where that followed at once.
    pub switch_to_detached: SwitchTimes,
    /// How long it took to build the sockets of a detached flow and to wake them.
    pub rebuild: SwitchTimes,
}

/// Quantiles over the last (up to 4,096) times.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct SwitchTimes {
    /// How many the quantiles are of.
    pub samples: u32,
    /// Median, in nanoseconds.
    pub median_ns: u64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: u64,
}

/// What the splicer can do here; shown by `status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Health {
    /// Whether pairs can be spliced at all.
    pub can_splice: bool,
    /// If not: why, and what would help.
    pub why_not: Option<String>,
    /// The interfaces that are watched, by name.
    pub interfaces: Vec<String>,
    /// Those of them that have the XDP program.
    pub xdp: Vec<String>,
    /// Registered flows now: in transition, dormant, detached, lingering, or just come back.
    pub flows: u64,
    /// Their limit; that of the pins, where a predecessor has made them. 0 where nothing can be spliced.
    pub max_flows: u32,
    /// The source ports that legs B use, `LO-HI`.
    pub source_ports: String,
}
