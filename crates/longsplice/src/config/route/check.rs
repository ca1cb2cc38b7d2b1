//! Checks that routes make sense for their listener, and beside other routes.

use std::ops::Range;

use longsplice_core::route::{Condition, Table, Token};
use toml::Spanned;

use crate::config::{
    one_or_many::{OneOrMany, flatten},
    protocol::Protocol,
    settler::Settler,
};

/// Lists the registered methods (RFC 9110 section 16.1).
const METHODS: [&str; 40] = [
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// Properties of a listener that its routes depend on.
pub(in crate::config) struct Of<'a> {
    pub(in crate::config) protocol: Protocol,
    /// True if it terminates TLS.
    pub(in crate::config) terminates: bool,
    pub(in crate::config) intercepts: bool,
    /// Names of all upstreams.
    pub(in crate::config) upstreams: &'a [String],
}

impl Settler<'_> {
    /// Complains about conditions on values that a listener of this protocol never knows.
    pub(super) fn check_protocol(&mut self, conditions: &[Spanned<Condition>], of: &Of<'_>) {
        for condition in conditions {
            let key = condition.get_ref().key();
            let known = match condition.get_ref() {
                Condition::Client(_) => true,
                Condition::Sni(_) | Condition::Alpn(_) => of.protocol == Protocol::Tls || of.terminates,
                _ => of.protocol == Protocol::Http,
            };
            if known {
                continue;
            }
            let (message, help) = match (of.protocol, condition.get_ref()) {
                (Protocol::Http, _) => (
                    format!("`{key}` is never known here: this listener does not speak TLS"),
                    "add [listener.tls], or write protocol = \"tls\" to read SNI and ALPN without terminating TLS",
                ),
                (Protocol::Tls, _) => (
                    format!("`{key}` is never known here: what TLS encrypts is not read"),
                    "use sni, alpn or client; or terminate TLS: protocol = \"http\" and [listener.tls]",
                ),
                (Protocol::Tcp, Condition::Sni(_) | Condition::Alpn(_)) => (
                    format!("`{key}` is never known here: this listener reads nothing of a connection"),
                    "add protocol = \"tls\" to the listener",
                ),
                (Protocol::Tcp, _) => (
                    format!("`{key}` is never known here: this listener reads nothing of a connection"),
                    "add protocol = \"http\" to the listener",
                ),
            };
            self.complain(condition.span(), message, help);
        }
    }

    /// Complains about a method in another case than its requests have it: none would match.
    pub(super) fn check_methods(&mut self, given: Option<&Spanned<OneOrMany<Token>>>) {
        for method in given.cloned().map_or_else(Vec::new, flatten) {
            let name = method.get_ref().as_str();
            let upper = name.to_ascii_uppercase();
            if upper != name && METHODS.contains(&upper.as_str()) {
                let message =
                    format!("no request has the method `{name}`: case counts (RFC 9110 section 9.1)");
                self.complain(method.span(), message, &format!("write {upper}"));
            }
        }
    }

    /// Complains about an answering action on a listener that does not read HTTP.
    pub(super) fn only_http(&mut self, key: &str, place: Range<usize>, of: &Of<'_>) {
        if of.protocol != Protocol::Http {
            let message = format!("`{key}` answers requests, and this listener reads none");
            let help = "add protocol = \"http\" to the listener, or send what the route takes to an upstream";
            self.complain(place, message, help);
        }
    }

    pub(super) fn check_original(&mut self, given: &Spanned<bool>, of: &Of<'_>) {
        if !given.get_ref() {
            let help = "leave it out, and say what becomes of what the route takes";
            self.complain(given.span(), "`original = false` says nothing", help);
        } else if !of.intercepts {
            let message = "connections to this listener have no other destination: it does not intercept";
            let help = "name an upstream, or add `intercept` to the listener";
            self.complain(given.span(), message, help);
        }
    }

    pub(super) fn status(&mut self, given: &Spanned<i64>, of: &Of<'_>) -> u16 {
        self.only_http("status", given.span(), of);
        match u16::try_from(*given.get_ref()) {
            Ok(status @ 400..=599) => status,
            Ok(status @ 300..=399) => {
                let message = format!("{status} needs a place to go to");
                self.complain(
                    given.span(),
                    message,
                    "write redirect = \"https://…\", which is a 308",
                );
                status
            }
            _ => {
                let message = format!("{} cannot be answered here", given.get_ref());
                self.complain(
                    given.span(),
                    message,
                    "use 400 to 599: no server was asked, and the client should know",
                );
                404
            }
        }
    }

    /// Complains about routes that can never win.
    pub(super) fn check_table(&mut self, table: &Table, places: &[Range<usize>]) {
        let place = |n: usize| places.get(n).cloned().unwrap_or_default();
        for (n, route) in table.routes().iter().enumerate() {
            if let Some((a, b)) = route.contradiction() {
                let message = format!("route `{}` takes nothing: never both {a} and {b}", route.name);
                let help = "all conditions of a route must be true: leave one out, or make two routes";
                self.complain(place(n), message, help);
            }
        }
        let name = |n: usize| table.routes().get(n).map_or("", |route| &route.name);
        for (later, earlier) in table.hidden() {
            let message = format!(
                "route `{}` never wins: all that it would take, route `{}` before it takes",
                name(later),
                name(earlier)
            );
            let help = "the first route that matches wins: put it before that one, or leave it out";
            self.complain(place(later), message, help);
        }
    }
}
