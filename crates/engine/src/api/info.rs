//! State of a splicer and its flows: for the library's user, and as JSON for the user of the command line.

use std::{collections::BTreeMap, net::SocketAddr};

use longsplice_core::{reason::RelayReason, seq::Offset};
use serde::{Deserialize, Serialize};

/// Identifies a flow for as long as its record lives, through splices and returns. The instance does not use it again
/// within 2^32 flows. Written as a plain number.
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

/// State of a flow's life (docs/lifecycle.md). The names in JSON are stable: `relay`, `coupling`, `draining`, `dormant`,
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
    /// Spliced; the sockets are parked.
    Dormant,
    /// Spliced, without sockets.
    Detached,
    /// Back in control mode: the sockets carry on, but both ends may not have acknowledged what bypassed them (papers'
    /// section III-D).
    Undraining,
    /// Spliced and ended at both sides; the record lingers.
    Closing,
}

/// State of one direction of a flow.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct DirectionInfo {
    /// Payload bytes, relayed and spliced; may begin anew when the pair has come back. Bytes that are retransmitted while
    /// spliced count again.
    pub bytes: u64,
    /// True if the sender has sent its FIN.
    pub fin: bool,
    /// Offset that is added to sequence numbers while spliced; 0 also if it is not known.
    #[serde(default)]
    pub seq_offset: Offset,
    /// True if the translation changes nothing but the time to live (papers' section III-F).
    #[serde(default)]
    pub identity: bool,
}

/// Addresses of a leg.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct LegInfo {
    /// Address of the far end.
    pub peer: SocketAddr,
    /// Address of our end.
    pub local: SocketAddr,
}

/// Describes one flow, as `longsplice flows --json` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlowInfo {
    /// Identity of the flow.
    pub id: FlowId,
    /// Addresses of leg A.
    pub client: LegInfo,
    /// Addresses of leg B.
    pub server: LegInfo,
    /// State of its life.
    pub state: FlowState,
    /// Reason that it is not spliced (yet), while it is relayed.
    pub reason: Option<RelayReason>,
    /// Direction from client to server.
    pub to_server: DirectionInfo,
    /// Direction from server to client.
    pub to_client: DirectionInfo,
    /// Seconds since the pair was handed over first. For a flow that no task holds: since it was registered to be spliced, or,
    /// if a predecessor did that, since this process adopted it.
    pub age_seconds: f64,
    /// Seconds since a segment or byte passed, if known.
    pub idle_seconds: Option<f64>,
    /// Round-trip time of the client's leg at the last look, in microseconds, if it was measured.
    #[serde(default)]
    pub client_round_trip_us: Option<u64>,
    /// Round-trip time of the server's leg.
    #[serde(default)]
    pub server_round_trip_us: Option<u64>,
    /// Names of the rules for spliced flows that it matches, in their order; the last one decides, unless it only counts.
    #[serde(default)]
    pub rules: Vec<String>,
    /// Counts of its segments since the first of these rules was in force for it; `None`: no rule matches.
    #[serde(default)]
    pub ruled: Option<FlowRuled>,
}

/// Counts of a spliced flow that matches a rule, of both directions together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlowRuled {
    /// Segments that could be their sender's; a GRO super-packet is one.
    pub packets: u64,
    /// Bytes of these segments, from the IP header on.
    pub bytes: u64,
    /// Segments among them that a rule dropped.
    pub dropped: u64,
}

impl FlowInfo {
    /// Returns true if its segments are spliced without any change but the time to live: the forwarder is a router to it
    /// (papers' section III-F).
    pub fn is_identity(&self) -> bool {
        self.to_server.identity && self.to_client.identity
    }
}

/// Counters of an instance, since this process started (`adopted_total`: flows of its predecessors; `segments`: since the
/// pins were made). Names are only ever added.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Connections accepted by listeners.
    pub accepted_total: u64,
    /// Splices; a pair that came back and is spliced again counts again.
    pub spliced_total: u64,
    /// Spliced pairs whose sockets were closed in silence.
    pub detached_total: u64,
    /// Times that the sockets of a spliced pair were taken back into the path; not always for a caller.
    pub resumed_total: u64,
    /// Flows of a predecessor that were found at the start.
    pub adopted_total: u64,
    /// Spliced flows whose records were removed, by how they ended: `closed`, `reset`, `idle`, `admin`. (Flows whose
    /// tuple a new connection took are counted in `segments`, as `syn_replaced`.)
    pub flows_ended_total: BTreeMap<String, u64>,
    /// Pairs that ended without ever having been spliced.
    pub relayed_total: u64,
    /// Pairs that ended without ever having been spliced, by reason.
    pub relayed_reasons: BTreeMap<String, u64>,
    /// Bytes moved by the relay.
    pub relay_bytes_total: u64,
    /// Packets that the kernel half forwarded, delivered, dropped…, by verdict (docs/configuration.md lists them). One of GRO's
    /// super-packets counts once.
    pub segments: BTreeMap<String, u64>,
    /// Spliced pairs that came back to a caller, by cause: the names of [`crate::Trap`].
    pub unsplices_total: BTreeMap<String, u64>,
    /// Unspliced pairs whose sockets took over the outstanding bytes ([`crate::Outstanding::Capture`]).
    pub captured_total: u64,
    /// Times that the switch to final took, once drained.
    pub transition_to_dormant: TransitionTimes,
    /// Times that the switch to final took together with closing the sockets, if that followed at once.
    pub transition_to_detached: TransitionTimes,
    /// Times that it took to build the sockets of a detached flow and to wake them.
    pub rebuild: TransitionTimes,
    /// Times that it took to build both sockets of a connection at its handshake ([`crate::handshake`]), and to send both
    /// segments on.
    pub take_over: TransitionTimes,
}

/// Quantiles of the last (up to 4,096) times.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct TransitionTimes {
    /// Number of times that the quantiles cover.
    pub samples: u32,
    /// Median, in nanoseconds.
    pub median_ns: u64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: u64,
}

/// Describes what the splicer can do here; shown by `status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Health {
    /// True if pairs can be spliced at all.
    pub splice_available: bool,
    /// Reason that they cannot, and what would help.
    pub why_not: Option<String>,
    /// Names of the interfaces that are watched.
    pub interfaces: Vec<String>,
    /// Interfaces among them that have the XDP program.
    pub xdp: Vec<String>,
    /// Interfaces among them on which programs of others stand before ours, with these programs: spliced flows may stop.
    pub before_ours: Vec<String>,
    /// Registered flows now: in transition, dormant, detached, lingering, or just come back.
    pub flows: u64,
    /// Maximum number of registered flows; that of the pins, if a predecessor has made them. 0 if nothing can be spliced.
    pub max_flows: u32,
    /// Source ports that legs B use, `LO-HI`.
    pub source_ports: String,
}
