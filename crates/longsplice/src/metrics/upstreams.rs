//! Writes the metrics of servers.

use std::fmt;

use super::out::Out;
use crate::upstream::{ServerStatus, UpstreamStatus};

/// Values of [`ServerStatus::state`].
const STATES: [&str; 4] = ["up", "down", "out", "draining"];

pub(super) fn write(out: &mut Out<'_>, upstreams: &[UpstreamStatus]) -> fmt::Result {
    let each = |value: fn(&UpstreamStatus) -> u64| {
        upstreams
            .iter()
            .map(move |u| ([("upstream", u.name.as_str())], value(u)))
    };
    let queued = each(|u| u.queued).map(|(labels, n)| (labels, n as f64));
    out.gauge(
        "upstream_queued",
        "Connections and requests that wait for a place at a server",
        queued,
    )?;
    out.counter(
        "upstream_queue_timeouts",
        "Connections and requests whose wait ended without a place",
        each(|u| u.queue_timeouts_total),
    )?;
    out.counter(
        "upstream_queue_overflows",
        "Connections and requests refused because the queue was full",
        each(|u| u.queue_overflows_total),
    )?;
    let unresolved = each(|u| u.unresolved.len() as u64).map(|(labels, n)| (labels, n as f64));
    out.gauge(
        "upstream_unresolved",
        "Names of servers that have no address, or an old one",
        unresolved,
    )?;
    let servers: Vec<&ServerStatus> = upstreams.iter().flat_map(|u| &u.servers).collect();
    gauges(out, &servers)?;
    counters(out, &servers)
}

fn labels(server: &ServerStatus) -> [(&'static str, &str); 2] {
    [("upstream", &server.upstream), ("server", &server.server)]
}

fn gauges(out: &mut Out<'_>, servers: &[&ServerStatus]) -> fmt::Result {
    let states = servers.iter().flat_map(|server| {
        let [upstream, name] = labels(server);
        STATES.map(move |state| {
            let is = f64::from(u8::from(server.state == state));
            ([upstream, name, ("state", state)], is)
        })
    });
    out.gauge("server_state", "1 for the state that a server is in", states)?;
    let each = |value: fn(&ServerStatus) -> f64| servers.iter().map(move |s| (labels(s), value(s)));
    out.gauge(
        "server_connections_open",
        "Connections and requests that a server serves",
        each(|s| s.open as f64),
    )?;
    out.gauge(
        "server_connections_idle",
        "Idle connections to a server",
        each(|s| s.idle as f64),
    )?;
    out.gauge(
        "server_connections_aside",
        "Connections to a server whose last client has not acknowledged all of its reply",
        each(|s| s.aside as f64),
    )?;
    out.gauge(
        "server_weight",
        "The weight of a server",
        each(|s| f64::from(s.weight)),
    )?;
    out.gauge(
        "server_share",
        "The part of its weight that a server gets",
        each(|s| s.share),
    )
}

fn counters(out: &mut Out<'_>, servers: &[&ServerStatus]) -> fmt::Result {
    let each = |value: fn(&ServerStatus) -> u64| servers.iter().map(move |s| (labels(s), value(s)));
    out.counter(
        "server_requests",
        "Connections and requests that a server was given",
        each(|s| s.requests_total),
    )?;
    out.counter(
        "server_reused",
        "Of them, over a connection that had been idle",
        each(|s| s.reused_total),
    )?;
    out.counter(
        "server_given_up",
        "Connections whose last client did not acknowledge all of its reply in time",
        each(|s| s.given_up_total),
    )?;
    out.counter(
        "server_connects",
        "Connections made to a server",
        each(|s| s.connects_total),
    )?;
    out.counter(
        "server_connect_failures",
        "Connections that could not be made",
        each(|s| s.connect_failures_total),
    )?;
    out.counter(
        "server_failures",
        "Requests that a server failed: no reply, or none in time",
        each(|s| s.failures_total),
    )?;
    let replies = servers.iter().flat_map(|server| {
        let [upstream, name] = labels(server);
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"]
            .into_iter()
            .zip(server.replies_total);
        classes.map(move |(class, n)| ([upstream, name, ("class", class)], n))
    });
    out.counter(
        "server_replies",
        "Replies of a server by the class of their status",
        replies,
    )?;
    let times = servers.iter().map(|s| (labels(s), s.reply_seconds_total));
    out.counter(
        "server_reply_seconds",
        "The time until the replies of a server began, together",
        times,
    )
}
