//! Reports of a daemon, by the names that the command line promises.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::Deserialize;

/// Answer to `status --json`.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Status {
    pub pid: u32,
    pub stopping: bool,
    pub accepted_total: u64,
    pub spliced_total: u64,
    pub detached_total: u64,
    pub resumed_total: u64,
    pub adopted_total: u64,
    pub flows_ended_total: BTreeMap<String, u64>,
    pub relayed_total: u64,
    pub relayed_reasons: BTreeMap<String, u64>,
    pub relay_bytes_total: u64,
    pub segments: BTreeMap<String, u64>,
    pub unsplices_total: BTreeMap<String, u64>,
    pub health: Health,
    pub memory: Option<Memory>,
    pub accelerator: Option<Accelerator>,
    pub config_generation: Generation,
    pub listeners: Vec<Listener>,
}

/// Abilities of the daemon.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Health {
    pub splice_available: bool,
    pub why_not: Option<String>,
    pub interfaces: Vec<String>,
    pub xdp: Vec<String>,
    pub before_ours: Vec<String>,
    pub flows: u64,
    pub max_flows: u32,
}

/// Counters of the accelerator.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Accelerator {
    pub open: usize,
    pub taken_over_total: u64,
    pub taken_over_again_total: BTreeMap<String, u64>,
    pub released_total: u64,
    pub released_by_reason: BTreeMap<String, u64>,
    pub early_failures_total: u64,
    pub passed_through_total: BTreeMap<String, u64>,
}

/// Use of memory, where it is limited.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Memory {
    pub limit: u64,
    pub used: u64,
    pub refused_total: u64,
    pub shed_total: u64,
}

/// Configuration in force.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Generation {
    pub number: u64,
    pub failed_total: u64,
    pub failed: Option<FailedReload>,
}

/// Reload that failed and changed nothing.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct FailedReload {
    pub at: u64,
    pub error: String,
}

/// Listener.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Listener {
    pub name: String,
    pub listen: Vec<SocketAddr>,
    pub max_connections: Option<u32>,
    pub open: u64,
    pub refused_total: u64,
    pub splice_min: Option<u64>,
}

/// Element of `flows --json`.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Flow {
    pub id: u32,
    pub client: Leg,
    pub server: Leg,
    pub state: String,
    pub reason: Option<String>,
    pub to_server: Direction,
    pub to_client: Direction,
    pub age_seconds: f64,
    pub idle_seconds: Option<f64>,
    pub client_round_trip_us: Option<u64>,
    pub server_round_trip_us: Option<u64>,
    pub rules: Vec<String>,
    pub ruled: Option<longsplice_engine::FlowRuled>,
}

/// Addresses of a leg.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Leg {
    pub peer: SocketAddr,
    pub local: SocketAddr,
}

/// One direction of a flow.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the daemon documents them")]
pub struct Direction {
    pub bytes: u64,
    pub fin: bool,
    pub seq_offset: u32,
    pub identity: bool,
}

impl Status {
    /// Returns the number of pairs that were relayed to their end for this reason.
    pub fn relayed(&self, reason: &str) -> u64 {
        self.relayed_reasons.get(reason).copied().unwrap_or(0)
    }

    /// Returns the number of spliced flows that ended like this, and were removed.
    pub fn ended(&self, how: &str) -> u64 {
        self.flows_ended_total.get(how).copied().unwrap_or(0)
    }

    /// Returns the number of pairs that came back for this cause.
    pub fn returned(&self, why: &str) -> u64 {
        self.unsplices_total.get(why).copied().unwrap_or(0)
    }

    /// Returns the number of segments with this verdict of the kernel half.
    pub fn segments(&self, verdict: &str) -> u64 {
        self.segments.get(verdict).copied().unwrap_or(0)
    }
}

impl Flow {
    /// Returns whether segments pass without sockets, or past parked ones.
    pub fn is_spliced(&self) -> bool {
        matches!(self.state.as_str(), "dormant" | "detached" | "closing")
    }
}
