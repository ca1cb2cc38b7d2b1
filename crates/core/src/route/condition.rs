//! Defines the conditions of routes, on a request or on a connection.

use std::fmt;

use super::{
    Extension, Facts, Pattern, Text, Token, Want, cookie,
    host::Hosts,
    path::{PathText, has_query, is_cgi},
};
use crate::rules::Network;

/// Condition of a route. Of a list, any value may match. A condition on something unknown, such as the path of a
/// connection that is not read, does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The client is in one of these networks.
    Client(Vec<Network>),
    /// The method is one of these; case counts (RFC 9110 section 9.1).
    Method(Vec<Token>),
    /// The request has a query string; or it has none.
    Query(bool),
    /// A program would answer, by [`is_cgi`]; or a file.
    Cgi(bool),
    /// The server's name in the ClientHello is one of these (RFC 6066 section 3).
    Sni(Hosts),
    /// The ClientHello offers one of these protocols (RFC 7301).
    Alpn(Vec<String>),
    /// The requested host is one of these.
    Host(Hosts),
    /// The path is one of these.
    Path(Vec<PathText>),
    /// The path, as text, begins with one of these.
    PathPrefix(Vec<PathText>),
    /// The last segment of the path has one of these extensions.
    Extension(Vec<Extension>),
    /// A header field is as wanted.
    Header(Token, Want),
    /// A cookie is as wanted; without a name: any cookie.
    Cookie(Option<Token>, Want),
    /// One of these is found in the path.
    PathRegex(Vec<Pattern>),
}

impl Condition {
    /// Returns whether the condition is true.
    pub fn holds(&self, facts: &Facts<'_>) -> bool {
        match self {
            Condition::Client(networks) => networks.iter().any(|n| n.contains(facts.client)),
            Condition::Method(methods) => facts
                .method
                .is_some_and(|m| methods.iter().any(|one| one.as_str() == m)),
            Condition::Query(wanted) => facts.path.is_some() && has_query(facts.query) == *wanted,
            Condition::Cgi(wanted) => match (facts.method, facts.path) {
                (Some(method), Some(path)) => is_cgi(method, path, facts.query) == *wanted,
                _ => false,
            },
            Condition::Sni(hosts) => facts.sni.is_some_and(|name| hosts.find(name).is_some()),
            Condition::Alpn(protocols) => facts
                .alpn
                .iter()
                .any(|offered| protocols.iter().any(|p| p.as_bytes() == offered.as_slice())),
            Condition::Host(hosts) => facts.host.is_some_and(|host| hosts.find(host).is_some()),
            Condition::Path(paths) => facts
                .path
                .is_some_and(|path| paths.iter().any(|p| p.as_str() == path)),
            Condition::PathPrefix(prefixes) => facts
                .path
                .is_some_and(|path| prefixes.iter().any(|p| path.starts_with(p.as_str()))),
            Condition::Extension(extensions) => facts
                .path
                .is_some_and(|path| extensions.iter().any(|e| e.ends(path))),
            Condition::PathRegex(patterns) => facts
                .path
                .is_some_and(|path| patterns.iter().any(|p| p.is_match(path.as_bytes()))),
            Condition::Header(name, want) => {
                facts.method.is_some() && want.holds(|see| facts.headers.any(name.as_str(), see))
            }
            Condition::Cookie(name, want) => {
                let name = name.as_ref().map(Token::as_str);
                facts.method.is_some() && want.holds(|see| cookie::any(facts.headers, name, see))
            }
        }
    }

    /// Returns whether the condition looks at the path of a request.
    pub(super) fn asks_for_path(&self) -> bool {
        matches!(
            self,
            Condition::Path(_)
                | Condition::PathPrefix(_)
                | Condition::PathRegex(_)
                | Condition::Extension(_)
                | Condition::Cgi(_)
        )
    }

    /// Returns the cost of the condition, 0 being cheapest: a comparison of a few bytes comes before a walk through
    /// lists.
    pub(super) fn cost(&self) -> u8 {
        match self {
            Condition::Query(_) | Condition::Method(_) => 0,
            Condition::Client(_) | Condition::Cgi(_) | Condition::Alpn(_) => 1,
            Condition::Path(_) | Condition::PathPrefix(_) | Condition::Extension(_) => 2,
            Condition::Host(_) | Condition::Sni(_) => 3,
            Condition::Header(..) => 4,
            Condition::Cookie(..) => 5,
            Condition::PathRegex(_) => 6,
        }
    }

    /// Returns the key of the condition in a file.
    pub fn key(&self) -> &'static str {
        match self {
            Condition::Client(_) => "client",
            Condition::Method(_) => "method",
            Condition::Query(_) => "query",
            Condition::Cgi(_) => "cgi",
            Condition::Sni(_) => "sni",
            Condition::Alpn(_) => "alpn",
            Condition::Host(_) => "host",
            Condition::Path(_) => "path",
            Condition::PathPrefix(_) => "path_prefix",
            Condition::Extension(_) => "extension",
            Condition::Header(..) => "header",
            Condition::Cookie(..) => "cookie",
            Condition::PathRegex(_) => "path_regex",
        }
    }
}

/// Describes the condition in words.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Client(list) => write!(f, "client in {}", any_of(list)),
            Condition::Method(list) => write!(f, "method {}", any_of(list)),
            Condition::Query(true) => f.write_str("has a query string"),
            Condition::Query(false) => f.write_str("has no query string"),
            Condition::Cgi(true) => f.write_str("is CGI-like"),
            Condition::Cgi(false) => f.write_str("is not CGI-like"),
            Condition::Sni(hosts) => write!(f, "SNI {}", any_of(hosts.iter())),
            Condition::Alpn(list) => write!(f, "ALPN offers {}", any_of(list)),
            Condition::Host(hosts) => write!(f, "host {}", any_of(hosts.iter())),
            Condition::Path(list) => write!(f, "path is {}", any_of(list)),
            Condition::PathPrefix(list) => write!(f, "path begins with {}", any_of(list)),
            Condition::Extension(list) => write!(f, "extension {}", any_of(list)),
            Condition::PathRegex(list) => write!(f, "path matches {}", any_of(list)),
            Condition::Header(name, want) => field(f, &format!("header {name}"), want),
            Condition::Cookie(Some(name), want) => field(f, &format!("cookie {name}"), want),
            Condition::Cookie(None, want) => field(f, "any cookie", want),
        }
    }
}

fn any_of<T: fmt::Display>(list: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = list.into_iter().map(|one| one.to_string()).collect();
    all.join(" or ")
}

fn field(f: &mut fmt::Formatter<'_>, what: &str, want: &Want) -> fmt::Result {
    match want {
        Want::Present => write!(f, "{what} is there"),
        Want::Absent => write!(f, "{what} is not there"),
        Want::Value(texts) => write!(f, "{what} {}", any_of::<&Text>(texts)),
    }
}
