//! What the caller of the engine sees.

use std::{collections::BTreeMap, net::SocketAddr, ops::RangeInclusive, time::Duration};

use longsplice_core::{
    policy::{DetachPolicy, SplicePolicy},
    reason::RelayReason,
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use crate::until::Trap;

/// How a [`Splicer`] is set up.
#[derive(Debug, Clone)]
pub struct SplicerConfig {
    /// Names the pins (`/sys/fs/bpf/longsplice-NAME`): instances with different names do not disturb each other.
    pub instance: String,
    /// Only these interfaces are watched; `None`: all that routes use, and the loopback, followed when they change.
    pub interfaces: Option<Vec<String>>,
    /// How many flows may be spliced at once (1 to 2^26). Fixed while pins of the instance live.
    pub max_flows: u32,
    /// How many of them may be in transition or dormant at once; the rest must be detached (1 to 2^20).
    pub max_dormant: u32,
    /// Source ports of the legs to the targets; `None`: a range that the kernel does not hand out itself.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// A spliced flow in which nothing passed for this long is ended.
    pub idle_timeout: Duration,
    /// How long the record of a flow outlives its close (2 MSL, RFC 9293 section 3.6.1).
    pub linger: Duration,
}

impl Default for SplicerConfig {
    fn default() -> Self {
        SplicerConfig {
            instance: "default".into(),
            interfaces: None,
            max_flows: 65_536,
            max_dormant: 4_096,
            source_ports: None,
            idle_timeout: Duration::from_secs(24 * 3600),
            linger: Duration::from_secs(60),
        }
    }
}

/// Two connected sockets, and how they are to be joined.
#[derive(Debug)]
pub struct Pair {
    /// Leg A: the initiator's.
    pub client: TcpStream,
    /// Leg B: the target's.
    pub server: TcpStream,
    /// When to splice.
    pub splice: SplicePolicy,
    /// When to let go of the parked sockets.
    pub detach: DetachPolicy,
    pub(crate) id: Option<FlowId>,
}

impl Pair {
    /// A pair under the default policies.
    pub fn new(client: TcpStream, server: TcpStream) -> Pair {
        Pair {
            client,
            server,
            splice: SplicePolicy::default(),
            detach: DetachPolicy::default(),
            id: None,
        }
    }

    /// The same pair, spliced when this policy says so.
    #[must_use]
    pub fn with_splice(self, splice: SplicePolicy) -> Pair {
        Pair { splice, ..self }
    }

    /// The same pair, detached when this policy says so.
    #[must_use]
    pub fn with_detach(self, detach: DetachPolicy) -> Pair {
        Pair { detach, ..self }
    }
}

/// A pair that is in control mode again. Its sockets are ordinary ones: to be read, written, closed, pooled, or spliced
/// again, with each other (`splicer.splice(returned, …)`) or with others.
#[derive(Debug)]
pub struct Returned {
    /// Leg A. What the client sent beyond what has passed is readable here.
    pub client: TcpStream,
    /// Leg B, likewise.
    pub server: TcpStream,
    /// Why it came back.
    pub why: Trap,
    /// Payload bytes that passed during this call: from the client, and from the server.
    pub passed: [u64; 2],
    /// Whether it was spliced in between.
    pub spliced: bool,
    /// Its identity, kept if the same pair is spliced again.
    pub id: FlowId,
    pub(crate) splice: SplicePolicy,
    pub(crate) detach: DetachPolicy,
}

impl From<Returned> for Pair {
    fn from(r: Returned) -> Pair {
        Pair {
            client: r.client,
            server: r.server,
            splice: r.splice,
            detach: r.detach,
            id: Some(r.id),
        }
    }
}

/// How a call of [`crate::Splicer::splice`] ended.
#[derive(Debug)]
pub enum Ended {
    /// Both ends are done.
    Closed(Summary),
    /// A condition of the caller was met: back in control mode.
    Returned(Returned),
    /// The flow lives on in the kernel, without sockets and without this process. Not before a shutdown, if there is a
    /// condition under which it is to come back.
    Detached(FlowId),
}

/// What passed over a pair of connections while this process held it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// The flow's identity.
    pub id: FlowId,
    /// Payload bytes from client to server.
    pub bytes_to_server: u64,
    /// Payload bytes from server to client.
    pub bytes_to_client: u64,
    /// Whether it was spliced at any time.
    pub spliced: bool,
    /// Why it was not spliced, where it was not.
    pub relay_reason: Option<RelayReason>,
    /// Whether either end was reset.
    pub reset: bool,
}

/// Identifies a flow for as long as its record lives; never used again by the instance within 2^32 flows.
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

/// Where a flow is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// Control mode or forwarding over the sockets, in user space.
    Relay,
    /// The windows are being coupled, before a drain.
    Coupling,
    /// New segments pass already; old bytes are still delivered.
    Draining,
    /// Spliced, the sockets are parked.
    Dormant,
    /// Spliced, no sockets.
    Detached,
    /// It has come back, and what had passed is not yet acknowledged by both ends.
    Undraining,
    /// Spliced and ended at both sides; the record lingers.
    Closing,
}

/// One direction of a flow.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct DirectionInfo {
    /// Payload bytes, relayed and spliced.
    pub bytes: u64,
    /// Segments translated by the kernel half (wire segments, as GSO would cut them); 0 while relayed.
    pub segments: u64,
    /// Whether the sender has sent its FIN.
    pub fin: bool,
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
    /// Seconds since the pair was connected (since adoption for a flow that a predecessor left).
    pub age_seconds: f64,
    /// Seconds since a segment or byte passed, where known.
    pub idle_seconds: Option<f64>,
}

/// The counters of an instance, since this process started (`adopted_total` of its predecessors' flows).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Connections accepted by listeners.
    pub accepted_total: u64,
    /// Pairs that were spliced.
    pub spliced_total: u64,
    /// Spliced pairs whose sockets were closed in silence.
    pub detached_total: u64,
    /// Spliced pairs that came back to control mode.
    pub unspliced_total: u64,
    /// Flows found at the start, of a predecessor.
    pub adopted_total: u64,
    /// Spliced flows whose records were removed, by how they ended: `closed`, `reset`, `idle`. (Those whose tuple a new
    /// connection took are counted in `segments`, as `syn_replaced`.)
    pub ended_total: BTreeMap<String, u64>,
    /// Pairs that ended without having been spliced.
    pub relayed_total: u64,
    /// The same by reason.
    pub relayed_reasons: BTreeMap<String, u64>,
    /// Bytes moved by the relay.
    pub relay_bytes_total: u64,
    /// Segments that the kernel half forwarded, delivered, dropped…, by verdict.
    pub segments: BTreeMap<String, u64>,
    /// Unsplices by their cause: `client`, `server`, `elapsed`, `idle`, `asked`.
    pub returned_total: BTreeMap<String, u64>,
    /// Nanoseconds that the switch to final took, once drained.
    pub switch_to_dormant: SwitchTimes,
    /// The same, with the sockets closed.
    pub switch_to_detached: SwitchTimes,
    /// Nanoseconds that it took to build the sockets of a detached flow and to wake them.
    pub rebuild: SwitchTimes,
}

/// Quantiles over the last (up to 4,096) switches.
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
    /// The interfaces that are watched.
    pub interfaces: Vec<String>,
    /// Spliced flows now (dormant, detached and lingering).
    pub flows: u64,
    /// The limit.
    pub max_flows: u32,
    /// The source ports that legs B use.
    pub source_ports: String,
}

/// What to do with spliced flows when the splicer shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// They run on in the kernel; a successor adopts them. Pairs in control mode are reset after the grace period.
    KeepSpliced,
    /// They are reset too, and programs and pins are removed.
    EndSpliced,
}

/// Why a request about one flow could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no such flow.
    #[error("there is no flow {0}: `longsplice flows` lists them")]
    NoSuchFlow(FlowId),
    /// It is spliced already.
    #[error("flow {0} is spliced already")]
    AlreadySpliced(FlowId),
    /// It is in control mode already.
    #[error("flow {0} is not spliced")]
    NotSpliced(FlowId),
    /// It is about to end.
    #[error("flow {0} is ending: both ends have closed, or one was reset")]
    Ending(FlowId),
    /// It could not be brought back; it is spliced still.
    #[error("flow {0} stays spliced: {1}")]
    CannotReturn(FlowId, String),
    /// This splicer cannot splice.
    #[error("this instance cannot splice: {0}")]
    CannotSplice(String),
}
