//! Paths as routes name them. What is compared is normalised: dot segments resolved, and percent-encoding only where it is needed.

use std::{fmt, str::FromStr};

/// A path, or the beginning of one: `/static/`. Case counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathText(Box<str>);

/// The end of a path's last segment behind a dot: `gif`, `tar.gz`. Case does not count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Extension(Box<str>);

/// Text that no path can be or begin with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePathError {
    /// It does not begin with a slash.
    #[error("`{0}`: a path begins with /, write /{0}")]
    Slash(String),
    /// A query or a fragment.
    #[error(
        "`{0}`: a path ends before `?` and `#`; the condition `query` tells requests with a query string"
    )]
    Query(String),
    /// `.` or `..`.
    #[error("`{0}`: no path is compared before its `.` and `..` are resolved, so write it without them")]
    Dots(String),
    /// A character that must be percent-encoded.
    #[error("`{0}`: in a URL this is written {1}")]
    Encode(String, String),
    /// An escape that stands for nothing, or that is resolved before paths are compared.
    #[error("`{0}`: paths are compared with {1}")]
    Escape(String, String),
}

/// Text that is no extension.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no extension: write what follows the dot, such as gif")]
pub struct ParseExtensionError(String);

impl FromStr for PathText {
    type Err = ParsePathError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let text = || s.escape_debug().to_string();
        if !s.starts_with('/') {
            return Err(ParsePathError::Slash(text()));
        }
        if s.contains(['?', '#']) {
            return Err(ParsePathError::Query(text()));
        }
        let written: String = s.bytes().map(Encoded).map(|e| e.to_string()).collect();
        if written != s {
            return Err(ParsePathError::Encode(text(), written));
        }
        let normal = normalise_escapes(s);
        if normal != s {
            return Err(ParsePathError::Escape(text(), normal));
        }
        if s.split('/').any(|segment| segment == "." || segment == "..") {
            return Err(ParsePathError::Dots(text()));
        }
        Ok(PathText(s.into()))
    }
}

/// A byte of a path as it stands in a URL (RFC 3986 section 3.3); `%` is taken for the beginning of an escape.
struct Encoded(u8);

impl fmt::Display for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b if b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b) => write!(f, "{}", char::from(b)),
            b => write!(f, "%{b:02X}"),
        }
    }
}

/// Escapes of unreserved characters resolved, others in upper case (RFC 3986 section 6.2.2), and `%` itself escaped.
fn normalise_escapes(s: &str) -> String {
    let mut parts = s.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..2).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        let rest = part.get(2..).unwrap_or_default();
        match byte {
            None => out.extend(["%25", part]),
            Some(b) if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => {
                out.push(b.into());
                out.push_str(rest);
            }
            Some(b) => {
                out.push_str(&format!("%{b:02X}"));
                out.push_str(rest);
            }
        }
    }
    out
}

impl PathText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PathText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

super::as_text!(PathText);

impl FromStr for Extension {
    type Err = ParseExtensionError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let good = |b: u8| b.is_ascii_graphic() && !b"/?#%".contains(&b);
        match !s.is_empty() && s.split('.').all(|part| !part.is_empty()) && s.bytes().all(good) {
            true => Ok(Extension(s.to_ascii_lowercase().into())),
            false => Err(ParseExtensionError(s.escape_debug().to_string())),
        }
    }
}

impl Extension {
    /// Whether the last segment of a path ends with it.
    pub fn ends(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or_default().as_bytes();
        let Some(rest) = name.len().checked_sub(self.0.len()) else {
            return false;
        };
        match name.split_at_checked(rest) {
            Some((front, end)) => front.ends_with(b".") && end.eq_ignore_ascii_case(self.0.as_bytes()),
            None => false,
        }
    }
}

impl fmt::Display for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

super::as_text!(Extension);

/// Whether a program would answer rather than a file (paper 003's CGI): a query string, a path with a segment `cgi-bin`, or a
/// method other than GET and HEAD.
pub fn is_cgi(method: &str, path: &str, query: Option<&str>) -> bool {
    has_query(query) || path.contains("/cgi-bin/") || !matches!(method, "GET" | "HEAD")
}

/// A `?` with nothing behind it is no query string.
pub fn has_query(query: Option<&str>) -> bool {
    query.is_some_and(|q| !q.is_empty())
}
