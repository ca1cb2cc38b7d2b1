//! What becomes of what a route takes.

use std::{fmt, str::FromStr};

/// What becomes of what a route takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It goes to the upstream of this name.
    Upstream(String),
    /// It goes where it was going when it was intercepted.
    Original,
    /// It is answered with this status: 200, 204, or 400 to 599.
    Status(u16),
    /// It is sent elsewhere (308, RFC 9110 section 15.4.9).
    Redirect(Redirect),
}

/// Where requests are sent: a scheme, a host, and what comes before their own path. Their target is appended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Redirect(Box<str>);

/// Text that is no such place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseRedirectError {
    /// Neither http nor https.
    #[error("`{0}` does not begin with http:// or https://: write such as https://www.example")]
    Scheme(String),
    /// No host.
    #[error("`{0}` names no host: write such as https://www.example")]
    Host(String),
    /// A query or fragment, behind which no path could stand.
    #[error("`{0}`: the request's path and query are appended, so it must not have `?` or `#`")]
    Query(String),
    /// A character that no URL has.
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
    /// Where a request goes whose target, in origin form, is this.
    pub fn location(&self, target: &str) -> String {
        format!("{}{target}", self.0)
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

super::as_text!(Redirect);

/// What becomes of it, in words.
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
