//! Status of upstreams, for operators.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use longsplice_core::balance::FULL_SHARE;
use serde::{Deserialize, Serialize};

use super::backend_set::{BackendSet, Member};

/// Status of an upstream.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct UpstreamStatus {
    /// Its name; for a listener with `to`, the listener's name.
    pub name: String,
    /// Algorithm that chooses a server.
    pub balance: String,
    /// Number of clients in the queue now.
    pub queued: u64,
    /// Number of clients that waited in vain, since the upstream is known.
    pub queue_timeouts_total: u64,
    /// Number of clients that found the queue full.
    pub queue_overflows_total: u64,
    /// Its servers, in the order of the configuration.
    pub servers: Vec<ServerStatus>,
    /// Names whose last look-up failed, with the reason.
    pub unresolved: Vec<Unresolved>,
}

/// A name whose last look-up failed: it has no address, or its addresses may be old.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct Unresolved {
    /// The name as configured.
    pub server: String,
    /// Error of the last look-up.
    pub why: String,
}

/// Status of a server. Totals count since the server is known.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct ServerStatus {
    pub upstream: String,
    /// Its name.
    pub server: String,
    pub address: String,
    /// `up`, `down` (by its checks), `out` (by failed connections or replies) or `draining`.
    pub state: String,
    pub weight: u32,
    /// Share of its weight that it gets: less than 1 in a slow start.
    pub share: f64,
    pub backup: bool,
    /// Number of connections and requests that it serves now.
    pub open: u64,
    /// Limit of `open`.
    #[serde(default)]
    pub max_connections: Option<u32>,
    /// Number of idle connections to it.
    pub idle: u64,
    /// Number of connections that stand aside: their last client has not acknowledged all of its reply.
    #[serde(default)]
    pub aside: u64,
    /// Number of connections and requests that it was given.
    pub requests_total: u64,
    /// Number of those over a connection that had been idle.
    pub reused_total: u64,
    /// Number of connections that stood aside and were closed.
    #[serde(default)]
    pub given_up_total: u64,
    /// Number of connections made to it.
    pub connects_total: u64,
    /// Number of connections that could not be made.
    pub connect_failures_total: u64,
    /// Number of requests that it failed otherwise: no reply, or none in time.
    pub failures_total: u64,
    /// Number of replies by the first digit of their status, 1 to 5.
    pub replies_total: [u64; 5],
    /// Sum of the times until replies began, in seconds.
    pub reply_seconds_total: f64,
    /// Last active check.
    #[serde(default)]
    pub last_check: Option<CheckStatus>,
}

/// Result of an active check.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct CheckStatus {
    /// True if it succeeded.
    pub good: bool,
    /// Time since then, in seconds.
    pub seconds_ago: f64,
    /// Error, if it failed.
    #[serde(default)]
    pub why: Option<String>,
}

/// Describes the servers of an upstream.
pub(super) fn servers(upstream: &str, backends: &BackendSet, now: Duration) -> Vec<ServerStatus> {
    let members = backends.members.iter();
    members.map(|member| server(upstream, member, now)).collect()
}

/// Returns the names whose last look-up failed.
pub(super) fn unresolved(backends: &BackendSet) -> Vec<Unresolved> {
    let failed = backends.entries.iter().filter_map(|entry| {
        Some(Unresolved {
            server: entry.place.to_string(),
            why: entry.failure()?,
        })
    });
    failed.collect()
}

fn server(upstream: &str, member: &Member, now: Duration) -> ServerStatus {
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
        aside: server.idle.aside() as u64,
        requests_total: count(&counts.requests),
        reused_total: count(&counts.reused),
        given_up_total: server.idle.given_up(),
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
