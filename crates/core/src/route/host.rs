//! Matches names of hosts, exact and with a wildcard, of a Host header or of SNI.

use std::{cmp::Ordering, fmt, net::Ipv6Addr, str::FromStr};

/// Host as a route names it: `img.example`, `*.cdn.example` (any names below it, of any depth, not itself), or an
/// address. Case, a trailing dot and the form of an IPv6 address do not count; a port is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    /// Name in lower case, without `*.` and without the trailing dot; an IPv6 address in its one form (RFC 5952).
    name: Box<str>,
    below: bool,
}

/// Error of a text that is no such pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseHostError {
    /// The text cannot be a host's name.
    #[error("`{0}` is no host: write a name such as img.example or *.example, or an address")]
    Form(String),
    /// The wildcard is in another place than the first label.
    #[error("`{0}`: a wildcard stands for whole names at the beginning, such as *.example")]
    Wildcard(String),
    /// The text is `*`.
    #[error("`*` is every host: leave the condition out")]
    Every,
    /// The text has a port.
    #[error("`{host}:{port}`: ports are not compared, write {host}")]
    Port {
        /// Text before the port.
        host: String,
        /// Port.
        port: String,
    },
    /// The text is an IPv6 address without brackets.
    #[error("`{0}`: put the IPv6 address in brackets, [{0}], as it stands in a Host header")]
    Brackets(String),
    /// The name is in another script than ASCII.
    #[error("`{0}` is not ASCII: write the name as it is in DNS, with xn--")]
    Unicode(String),
}

impl FromStr for HostPattern {
    type Err = ParseHostError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let text = || s.escape_debug().to_string();
        if s == "*" {
            return Err(ParseHostError::Every);
        }
        if !s.is_ascii() {
            return Err(ParseHostError::Unicode(text()));
        }
        if s.parse::<Ipv6Addr>().is_ok() {
            return Err(ParseHostError::Brackets(text()));
        }
        let bare = without_port(s);
        if let Some(port) = s.get(bare.len() + 1..) {
            return Err(ParseHostError::Port {
                host: bare.escape_debug().to_string(),
                port: port.escape_debug().to_string(),
            });
        }
        let (name, below) = match bare.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (bare, false),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.contains('*') {
            return Err(ParseHostError::Wildcard(text()));
        }
        let literal = v6_literal(name).filter(|_| !below);
        if literal.is_none() && !is_name(name) {
            return Err(ParseHostError::Form(text()));
        }
        Ok(HostPattern {
            name: literal.unwrap_or_else(|| name.to_ascii_lowercase()).into(),
            below,
        })
    }
}

/// Returns whether a text can be a name of DNS, or an IPv4 address. Underscores are in use.
fn is_name(s: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    s.len() <= 253 && s.split('.').all(label)
}

/// Returns the one form of an IPv6 address in brackets (RFC 5952), which can be written in many; `None` for other texts.
fn v6_literal(s: &str) -> Option<String> {
    let inside = s.strip_prefix('[').and_then(|s| s.strip_suffix(']'))?;
    let address: Ipv6Addr = inside.parse().ok()?;
    Some(format!("[{address}]"))
}

impl HostPattern {
    /// Returns whether the pattern takes every host that the other one takes.
    pub(super) fn takes_all_of(&self, other: &HostPattern) -> bool {
        match (self.below, other.below) {
            (false, true) => false,
            (false, false) => self.name == other.name,
            (true, false) => is_below(&other.name, &self.name),
            (true, true) => self.name == other.name || is_below(&other.name, &self.name),
        }
    }
}

/// Returns whether a name is one of those below another, both in lower case.
fn is_below(name: &str, above: &str) -> bool {
    let rest = name.strip_suffix(above);
    rest.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wildcard = if self.below { "*." } else { "" };
        write!(f, "{wildcard}{}", self.name)
    }
}

crate::as_text!(HostPattern);

/// Patterns, of which any may match. A look-up takes time logarithmic in their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    exact: Box<[HostPattern]>,
    below: Box<[HostPattern]>,
}

impl FromIterator<HostPattern> for Hosts {
    fn from_iter<I: IntoIterator<Item = HostPattern>>(patterns: I) -> Self {
        let (mut below, mut exact): (Vec<_>, Vec<_>) = patterns.into_iter().partition(|p| p.below);
        for list in [&mut below, &mut exact] {
            list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            list.dedup();
        }
        Hosts {
            exact: exact.into(),
            below: below.into(),
        }
    }
}

impl Hosts {
    /// Returns the pattern that takes this host, given as in a Host header or in SNI.
    pub fn find(&self, host: &str) -> Option<&HostPattern> {
        let host = bare(host);
        let literal = v6_literal(host);
        let host = literal.as_deref().unwrap_or(host);
        if let Some(found) = lookup(&self.exact, host) {
            return Some(found);
        }
        if self.below.is_empty() {
            return None;
        }
        let dots = host.bytes().enumerate().filter(|(n, b)| *n > 0 && *b == b'.');
        let mut above = dots.filter_map(|(n, _)| host.get(n + 1..));
        above.find_map(|above| lookup(&self.below, above))
    }

    /// Returns the patterns.
    pub fn iter(&self) -> impl Iterator<Item = &HostPattern> {
        self.exact.iter().chain(&self.below)
    }
}

fn lookup<'p>(sorted: &'p [HostPattern], name: &str) -> Option<&'p HostPattern> {
    let at = sorted.binary_search_by(|p| compare(p.name.as_bytes(), name.as_bytes()));
    at.ok().and_then(|at| sorted.get(at))
}

/// Compares a text in lower case with a text in any case.
fn compare(lower: &[u8], any: &[u8]) -> Ordering {
    lower.iter().copied().cmp(any.iter().map(u8::to_ascii_lowercase))
}

/// Returns a host without its port (RFC 9110 section 7.2) and without the dot of a fully qualified name.
pub fn bare(host: &str) -> &str {
    let host = without_port(host);
    host.strip_suffix('.').unwrap_or(host)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.contains(':') => name,
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && name.ends_with(']') => name,
        _ => host,
    }
}
