//! Defines the actions of routes.

use std::{fmt, str::FromStr};

use crate::http::Target;

/// Action for the requests that a route takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Forward to the upstream of this name.
    Upstream(String),
    /// Forward to the destination that the connection had when it was intercepted.
    Original,
    /// Answer with this status: 400 to 599.
    Status(u16),
    /// Redirect elsewhere (308, RFC 9110 section 15.4.9).
    Redirect(Redirect),
}

/// Destination of a redirect: a scheme, a host, and the part before the request's own path. The request's target is
/// appended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Redirect(Box<str>);

/// Error of a text that is no such destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseRedirectError {
    /// The scheme is neither http nor https.
    #[error("`{0}` does not begin with http:// or https://: write such as https://www.example")]
    Scheme(String),
    /// There is no host.
    #[error("`{0}` names no host: write such as https://www.example")]
    Host(String),
    /// There is a query or fragment, behind which no path can stand.
    #[error("`{0}`: the request's path and query are appended, so it must not have `?` or `#`")]
    Query(String),
    /// There is a character that no URL has.
    #[error("`{0}` has a character that must be percent-encoded in a URL")]
    Character(String),
}

impl FromStr for Redirect {
    type Err = ParseRedirectError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let text = || s.escape_debug().to_string();
        let Some(rest) = s.strip_prefix("https://").or(s.strip_prefix("http://")) else {
            return Err(ParseRedirectError::Scheme(text()));
        };
        if s.contains(['?', '#']) {
            return Err(ParseRedirectError::Query(text()));
        }
        if !s
            .bytes()
            .all(|b| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b))
        {
            return Err(ParseRedirectError::Character(text()));
        }
        let host = rest.split('/').next().unwrap_or_default();
        if host.is_empty() || host.starts_with(':') {
            return Err(ParseRedirectError::Host(text()));
        }
        Ok(Redirect(s.trim_end_matches('/').into()))
    }
}

impl Redirect {
    /// Returns the destination of a request with this target: its path and query, as the client wrote them, are
    /// appended.
    pub fn location(&self, target: &Target<'_>) -> String {
        let path = target.raw_path().unwrap_or_default();
        match target.query() {
            Some(query) => format!("{}{path}?{query}", self.0),
            None => format!("{}{path}", self.0),
        }
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::as_text!(Redirect);

/// Describes the action in words.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Upstream(name) => write!(f, "upstream {name}"),
            Action::Original => f.write_str("its original destination"),
            Action::Status(status) => write!(f, "status {status}"),
            Action::Redirect(to) => write!(f, "redirect to {to}"),
        }
    }
}
