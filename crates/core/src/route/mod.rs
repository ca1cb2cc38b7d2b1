//! Routes a connection or a request to an upstream. The first route whose conditions are all true decides.
//!
//! [`Table::decide`] checks them in turn and allocates nothing; [`Table::explain`] gives the result of each.
//! docs/switch/routes.md is the user's page.

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

use crate::http::RequestHead;

/// Known properties of a connection or a request, for conditions.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// Address of the client; a v4-mapped one counts as IPv4.
    pub client: IpAddr,
    /// Method of a request; `None`: no HTTP was read.
    pub method: Option<&'a str>,
    /// Host that is requested: of an absolute target, else of the Host header; a port may follow.
    pub host: Option<&'a str>,
    /// Path, normalized: dot segments resolved, unreserved characters not percent-encoded (RFC 3986 section 6.2.2).
    /// `None` if the target has none (`*`, or the authority form).
    pub path: Option<&'a str>,
    /// Other readings of the path, by more liberal servers ([`RequestHead::other_paths`]): a route that refuses a
    /// request takes one with such a reading, too. Empty: only the path counts.
    pub other_paths: &'a [String],
    /// Query, behind `?`.
    pub query: Option<&'a str>,
    /// Header fields.
    pub headers: &'a dyn Headers,
    /// Server's name in the ClientHello.
    pub sni: Option<&'a str>,
    /// Protocols that the ClientHello offers.
    pub alpn: &'a [Vec<u8>],
}

impl Facts<'_> {
    /// Returns the facts of a connection of which nothing was read.
    pub fn of_client(client: IpAddr) -> Facts<'static> {
        Facts {
            client,
            method: None,
            host: None,
            path: None,
            other_paths: &[],
            query: None,
            headers: &NoHeaders,
            sni: None,
            alpn: &[],
        }
    }

    /// Returns the facts of a request whose head was read; nothing is known of TLS.
    pub fn of_request<'a>(client: IpAddr, head: &'a RequestHead<'_>) -> Facts<'a> {
        Facts {
            method: Some(head.method()),
            host: head.authority().map(|authority| authority.host()),
            path: head.path(),
            query: head.query(),
            headers: head.fields(),
            ..Facts::of_client(client)
        }
    }
}

/// Route of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Name in logs, metrics and explanations.
    pub name: String,
    /// Conditions that must all be true; without any, the route takes everything.
    pub conditions: Vec<Condition>,
    /// Action for requests that the route takes.
    pub action: Action,
}

impl Route {
    /// Returns whether the route takes a connection or request.
    pub fn takes(&self, facts: &Facts<'_>) -> bool {
        self.conditions.iter().all(|c| c.holds(facts))
    }
}

/// Routes of a listener, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    routes: Vec<Route>,
}

impl Table {
    /// Makes a table of routes. The conditions of each are checked cheapest first.
    pub fn new(mut routes: Vec<Route>) -> Table {
        for route in &mut routes {
            route.conditions.sort_by_key(Condition::cost);
        }
        Table { routes }
    }

    /// Returns the first route that takes the request, and its number, from 0. The path is that of the reading that
    /// decides ([`Table::reading`]).
    pub fn decide(&self, facts: &Facts<'_>) -> Option<(usize, &Route)> {
        self.first(&self.reading(facts))
    }

    /// Returns the facts in the reading of the path that decides: the first of [`Facts::other_paths`] that is refused
    /// with a status, or else the path itself.
    pub fn reading<'a>(&self, facts: &Facts<'a>) -> Facts<'a> {
        let of = |path| Facts { path, ..*facts };
        let is_refused = |facts: &Facts<'_>| {
            let first = self.first(facts);
            first.is_some_and(|(_, route)| matches!(route.action, Action::Status(_)))
        };
        let others = facts.other_paths.iter().map(|path| of(Some(path)));
        match facts.other_paths.is_empty() || is_refused(facts) {
            true => *facts,
            false => others.into_iter().find(is_refused).unwrap_or(*facts),
        }
    }

    fn first(&self, facts: &Facts<'_>) -> Option<(usize, &Route)> {
        self.routes
            .iter()
            .enumerate()
            .find(|(_, route)| route.takes(facts))
    }

    /// Returns whether a request can be refused by its path: a route answers with a status, and that or another one
    /// asks for the path.
    pub fn refuses_by_path(&self) -> bool {
        let refuses = |route: &Route| matches!(route.action, Action::Status(_));
        let asks = |route: &Route| route.conditions.iter().any(Condition::asks_for_path);
        self.routes.iter().any(refuses) && self.routes.iter().any(asks)
    }

    /// Returns the routes, in order.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
}

#[cfg(test)]
mod tests;
