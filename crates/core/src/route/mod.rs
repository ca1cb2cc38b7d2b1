//! Routes: which upstream a connection or a request gets. The first route whose conditions are all true decides.
//!
//! [`Table::decide`] asks them in turn and allocates nothing; [`Table::explain`] says what came of each. docs/switch/routes.md
//! is the user's page.

mod action;
mod condition;
mod cookie;
mod cover;
mod explain;
mod field;
mod host;
mod path;
mod pattern;

use std::net::IpAddr;

pub use action::{Action, ParseRedirectError, Redirect};
pub use condition::Condition;
pub use explain::{Check, Explanation, Outcome, Verdict};
pub use field::{Headers, NoHeaders, ParseTokenError, Text, Token, Want};
pub use host::{HostPattern, Hosts, ParseHostError, bare};
pub use path::{Extension, ParseExtensionError, ParsePathError, PathText, has_query, is_cgi};
pub use pattern::{ParsePatternError, Pattern};

use crate::rules::as_text;

/// What is known of a connection or a request, for conditions.
pub struct Facts<'a> {
    /// The client's address; v4-mapped is as IPv4.
    pub client: IpAddr,
    /// The method of a request; `None`: nothing of HTTP was read.
    pub method: Option<&'a str>,
    /// The host that it asks for: of an absolute target, else of the Host header; a port may follow.
    pub host: Option<&'a str>,
    /// The path, normalised: dot segments resolved, unreserved characters not percent-encoded (RFC 3986 section 6.2.2).
    /// `None` where the target has none (`*`, or the authority form).
    pub path: Option<&'a str>,
    /// What follows `?`.
    pub query: Option<&'a str>,
    /// The header fields.
    pub headers: &'a dyn Headers,
    /// The name that the ClientHello says.
    pub sni: Option<&'a str>,
    /// The protocols that the ClientHello offers.
    pub alpn: &'a [Vec<u8>],
}

impl Facts<'_> {
    /// Of a connection of which nothing was read.
    pub fn of_client(client: IpAddr) -> Facts<'static> {
        Facts {
            client,
            method: None,
            host: None,
            path: None,
            query: None,
            headers: &NoHeaders,
            sni: None,
            alpn: &[],
        }
    }
}

/// A rule of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Names it in logs, metrics and explanations.
    pub name: String,
    /// All of them must be true; none: it takes everything.
    pub conditions: Vec<Condition>,
    /// What becomes of what it takes.
    pub action: Action,
}

impl Route {
    /// Whether it takes it.
    pub fn takes(&self, facts: &Facts<'_>) -> bool {
        self.conditions.iter().all(|c| c.holds(facts))
    }
}

/// The routes of a listener, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    routes: Vec<Route>,
}

impl Table {
    /// Puts them to use. The conditions of each are asked cheapest first.
    pub fn new(mut routes: Vec<Route>) -> Table {
        for route in &mut routes {
            route.conditions.sort_by_key(Condition::cost);
        }
        Table { routes }
    }

    /// The first route that takes it, and which one it is, from 0.
    pub fn decide(&self, facts: &Facts<'_>) -> Option<(usize, &Route)> {
        self.routes
            .iter()
            .enumerate()
            .find(|(_, route)| route.takes(facts))
    }

    /// The routes, in order.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
}

#[cfg(test)]
mod tests;
