//! `longsplice check --explain`: which route wins, and why.

use std::fmt::{self, Write};

use longsplice_core::route::{Facts, Outcome, Verdict};
use serde::Serialize;

use super::line;
use crate::config::{Protocol, ServerConfig};

/// What becomes of a request, and why.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The listener that it comes to.
    pub listener: String,
    /// What that one reads.
    pub protocol: Protocol,
    /// What it knows of the request.
    pub seen: Seen,
    /// The route that wins.
    pub route: Option<String>,
    /// What came of each route.
    pub routes: Vec<Verdict>,
    /// Where it goes.
    pub destination: Destination,
}

/// What a listener knows of a request.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "each is that of Facts")]
pub struct Seen {
    pub client: std::net::IpAddr,
    pub method: Option<String>,
    pub host: Option<String>,
    pub path: Option<String>,
    pub query: Option<String>,
    pub sni: Option<String>,
    pub alpn: Vec<String>,
}

/// Where a request goes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// To one of these servers.
    Upstream {
        /// The name of the upstream.
        name: String,
        /// How one of them is chosen.
        balance: String,
        /// All of its servers.
        servers: Vec<Place>,
    },
    /// To the first of these that answers.
    Targets(Vec<String>),
    /// Where it was going when it was intercepted.
    Original,
    /// Nowhere: it is answered with this status.
    Status(u16),
    /// Nowhere: it is told to go there.
    Redirect(String),
}

/// A server of an upstream.
#[derive(Debug, Serialize)]
pub struct Place {
    /// Where it is.
    pub address: String,
    /// Its name, if it is not its address.
    pub name: Option<String>,
    /// Whether it only serves when no other is in order.
    pub backup: bool,
}

impl Place {
    /// Of this one.
    pub fn of(server: &ServerConfig) -> Place {
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
    /// Of these.
    pub fn of(facts: &Facts<'_>) -> Seen {
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
            Destination::Status(status) => write!(f, "nobody: it is answered with {status}"),
            Destination::Redirect(to) => write!(f, "nobody: it is redirected (308) to {to}"),
        }
    }
}

/// What becomes of a request, in words.
pub fn explained(e: &Explained) -> String {
    let mut out = String::new();
    let protocol = format!("{:?}", e.protocol).to_lowercase();
    line(&mut out, "listener", format!("{} ({protocol})", e.listener));
    line(&mut out, "sees", e.seen.to_string());
    for route in &e.routes {
        verdict(&mut out, route);
    }
    let by = match &e.route {
        Some(route) => format!("route {route}"),
        None if e.routes.is_empty() => "the listener, which has no routes".into(),
        None => "the listener: no route takes it".into(),
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
