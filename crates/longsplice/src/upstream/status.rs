//! What upstreams show of themselves.

use std::sync::atomic::{AtomicU64, Ordering};

use longsplice_core::balance::FULL_SHARE;
use serde::{Deserialize, Serialize};

use super::crew::Member;

/// An upstream as it stands.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct UpstreamStatus {
    /// Its name; of a listener with `to`, the listener's.
    pub name: String,
    /// How a server is chosen.
    pub balance: String,
    /// How many wait for a place now.
    pub queued: u64,
    /// How many waited in vain, since the upstream is known.
    pub queue_timeouts_total: u64,
    /// How many found the queue full.
    pub queue_overflows_total: u64,
    /// Its servers, in the order of the configuration.
    pub servers: Vec<ServerStatus>,
    /// Names that have no address, with the reason.
    pub unresolved: Vec<Unresolved>,
}

/// A name that stands for no address now, or whose addresses may be old.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Unresolved {
    /// As it is written.
    pub server: String,
    /// What the last look-up said.
    pub why: String,
}

/// A server as it stands. Totals count since the server is known.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct ServerStatus {
    /// Its upstream.
    pub upstream: String,
    /// Its name.
    pub server: String,
    /// Its address.
    pub address: String,
    /// `up`, `down` (by its checks), `out` (by failed connections) or `draining`.
    pub state: String,
    /// Its weight.
    pub weight: u32,
    /// The part of its weight that it gets: less than 1 in a slow start.
    pub share: f64,
    /// Whether it is a backup.
    pub backup: bool,
    /// Connections and requests that it serves now.
    pub open: u64,
    /// The limit of these.
    #[serde(default)]
    pub max_connections: Option<u32>,
    /// Idle connections to it.
    pub idle: u64,
    /// Connections and requests that it was given.
    pub requests_total: u64,
    /// Of them, over a connection that had been idle.
    pub reused_total: u64,
    /// Connections made to it.
    pub connects_total: u64,
    /// Connections that could not be made.
    pub connect_failures_total: u64,
    /// Requests that it failed otherwise: no reply, or none in time.
    pub failures_total: u64,
    /// Replies by the first digit of their status, 1 to 5.
    pub replies_total: [u64; 5],
    /// The time until these began, together, in seconds.
    pub reply_seconds_total: f64,
    /// The last active check.
    #[serde(default)]
    pub last_check: Option<CheckStatus>,
}

/// An active check.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct CheckStatus {
    /// Whether it was good.
    pub good: bool,
    /// How long ago it was, in seconds.
    pub seconds_ago: f64,
    /// What was wrong.
    #[serde(default)]
    pub why: Option<String>,
}

pub(super) fn server(upstream: &str, member: &Member, now: std::time::Duration) -> ServerStatus {
    let server = &member.server;
    let (state, share) = server.state(now);
    let counts = &server.counts;
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    ServerStatus {
        upstream: upstream.to_owned(),
        server: server.name().to_owned(),
        address: server.address().to_string(),
        state: state.as_str().to_owned(),
        weight: member.weight,
        share: f64::from(share) / f64::from(FULL_SHARE),
        backup: member.backup,
        open: server.open.load(Ordering::Relaxed).into(),
        max_connections: member.max_connections,
        idle: server.idle.len() as u64,
        requests_total: count(&counts.requests),
        reused_total: count(&counts.reused),
        connects_total: count(&counts.connects),
        connect_failures_total: count(&counts.connect_failures),
        failures_total: count(&counts.failures),
        replies_total: counts.replies.each_ref().map(count),
        reply_seconds_total: count(&counts.reply_micros) as f64 / 1e6,
        last_check: server.last_check().map(|(at, result)| CheckStatus {
            good: result.is_ok(),
            seconds_ago: now.saturating_sub(at).as_secs_f64(),
            why: result.err(),
        }),
    }
}
