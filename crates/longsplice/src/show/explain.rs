//! Shows for `longsplice check --explain` which route wins, and why.

use std::fmt::{self, Write};

use longsplice_core::route::{Facts, Outcome, Verdict};
use serde::Serialize;

use super::line;
use crate::config::{Protocol, ServerConfig};

/// Decision on a request, with the reasons.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    /// Listener that it arrives at.
    pub listener: String,
    /// Protocol that the listener reads.
    pub protocol: Protocol,
    /// Properties of the request that the listener knows.
    pub seen: Seen,
    /// Path that the decision used, if it differs from the one in `seen`, because of `strict_paths`.
    pub read_as: Option<String>,
    /// Reason why it is answered before any route is asked.
    pub refused: Option<String>,
    /// Route that wins.
    pub route: Option<String>,
    /// Result of each route.
    pub routes: Vec<Verdict>,
    pub destination: Destination,
}

/// Properties of a request that a listener knows.
#[derive(Debug, Serialize)]
pub(crate) struct Seen {
    pub client: std::net::IpAddr,
    pub method: Option<String>,
    pub host: Option<String>,
    pub path: Option<String>,
    pub query: Option<String>,
    pub sni: Option<String>,
    pub alpn: Vec<String>,
}

/// Destination of a request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Destination {
    /// One of these servers.
    Upstream {
        /// Name of the upstream.
        name: String,
        /// Algorithm that chooses a server.
        balance: String,
        /// All of its servers.
        servers: Vec<Place>,
    },
    /// The first of these that answers.
    Targets(Vec<String>),
    /// The original destination of an intercepted connection.
    Original,
    /// None: the request is answered with this status.
    Status(u16),
    /// None: the request is answered with a redirect to this address.
    Redirect(String),
}

/// A server of an upstream.
#[derive(Debug, Serialize)]
pub(crate) struct Place {
    pub address: String,
    /// Name, if it is not the address.
    pub name: Option<String>,
    /// True if it serves only when no other server is up.
    pub backup: bool,
}

impl Place {
    /// Converts a configured server.
    pub(crate) fn of(server: &ServerConfig) -> Place {
        Place {
            address: server.place.to_string(),
            name: server.name.clone(),
            backup: server.backup,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.address)?,
            None => f.write_str(&self.address)?,
        }
        f.write_str(if self.backup { " as a backup" } else { "" })
    }
}

impl Seen {
    /// Copies the facts.
    pub(crate) fn of(facts: &Facts<'_>) -> Seen {
        let text = |text: Option<&str>| text.map(str::to_owned);
        Seen {
            client: facts.client,
            method: text(facts.method),
            host: text(facts.host),
            path: text(facts.path),
            query: text(facts.query),
            sni: text(facts.sni),
            alpn: facts.alpn.iter().map(|p| p.escape_ascii().to_string()).collect(),
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.client)?;
        let known = [
            ("method", &self.method),
            ("host", &self.host),
            ("path", &self.path),
            ("query", &self.query),
            ("SNI", &self.sni),
        ];
        for (name, value) in known {
            if let Some(value) = value {
                write!(f, ", {name} {value}")?;
            }
        }
        match self.alpn.as_slice() {
            [] => Ok(()),
            offered => write!(f, ", ALPN {}", offered.join(" ")),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Upstream {
                name,
                balance,
                servers,
            } => {
                let all: Vec<_> = servers.iter().map(ToString::to_string).collect();
                match servers.len() {
                    0 | 1 => write!(f, "upstream {name}: {}", all.join(", ")),
                    _ => write!(f, "upstream {name}, by {balance}: {}", all.join(", ")),
                }
            }
            Destination::Targets(targets) => f.write_str(&targets.join(", else ")),
            Destination::Original => f.write_str("where it was going"),
            Destination::Status(status) => write!(f, "no server: it is answered with {status}"),
            Destination::Redirect(to) => write!(f, "no server: it is redirected (308) to {to}"),
        }
    }
}

/// Describes the decision on a request in words.
pub(crate) fn explained(e: &Explained) -> String {
    let mut out = String::new();
    let protocol = format!("{:?}", e.protocol).to_lowercase();
    line(&mut out, "listener", format!("{} ({protocol})", e.listener));
    line(&mut out, "sees", e.seen.to_string());
    if let Some(path) = &e.read_as {
        line(
            &mut out,
            "read as",
            format!("path {path}, as some servers would (strict_paths)"),
        );
    }
    for route in &e.routes {
        verdict(&mut out, route);
    }
    let by = match (&e.refused, &e.route) {
        (Some(why), _) => format!("the listener, before its routes: {why}"),
        (None, Some(route)) => format!("route {route}"),
        (None, None) if e.routes.is_empty() => "the listener, which has no routes".into(),
        (None, None) => "the listener: no route takes it".into(),
    };
    line(&mut out, "decided by", by);
    line(&mut out, "goes to", e.destination.to_string());
    out
}

fn verdict(out: &mut String, route: &Verdict) {
    let outcome = match route.outcome {
        Outcome::Wins => "wins",
        Outcome::TooLate => "would take it, but an earlier route does",
        Outcome::Fails => "does not match",
    };
    line(out, "route", format!("{}: {outcome}", route.name));
    if route.checks.is_empty() {
        line(out, "", "yes  it has no conditions".into());
    }
    for check in &route.checks {
        let holds = if check.holds { "yes" } else { "no " };
        let mut text = format!("{holds}  {}", check.condition);
        // Writing to a String cannot fail.
        let _ = write!(text, "; {}", check.seen);
        line(out, "", text);
    }
}
