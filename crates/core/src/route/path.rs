//! Matches paths as routes name them. Compared paths are normalized: dot segments resolved, and percent-encoding only
//! where it is needed.

use std::{fmt, str::FromStr};

use crate::http::path;

/// Path, or the beginning of one: `/static/`. Case counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathText(Box<str>);

/// End of a path's last segment behind a dot: `gif`, `tar.gz`. Case does not count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Extension(Box<str>);

/// Error of a text that no path can be or begin with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePathError {
    /// The text does not begin with a slash.
    #[error("`{0}`: a path begins with /, write /{0}")]
    Slash(String),
    /// The text has a query or a fragment.
    #[error(
        "`{0}`: a path ends before `?` and `#`; the condition `query` tells requests with a query string"
    )]
    Query(String),
    /// The text has a segment `.` or `..`.
    #[error("`{0}`: no path is compared before its `.` and `..` are resolved, so write it without them")]
    Dots(String),
    /// The text has a character that must be percent-encoded.
    #[error("`{0}`: in a URL this is written {1}")]
    Encode(String, String),
    /// The text has an escape without a meaning, or one that is resolved before paths are compared.
    #[error("`{0}`: in the form that paths are compared in, this is written {1}")]
    Escape(String, String),
}

/// Error of a text that is no extension.
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
        match path::normalise(s) {
            Err(_) => Err(ParsePathError::Escape(text(), s.replace('%', "%25"))),
            Ok(_) if s.split('/').any(|segment| segment == "." || segment == "..") => {
                Err(ParsePathError::Dots(text()))
            }
            Ok(normal) if normal != s => Err(ParsePathError::Escape(text(), normal.into_owned())),
            Ok(_) => Ok(PathText(s.into())),
        }
    }
}

/// Byte of a path as it stands in a URL (RFC 3986 section 3.3); `%` counts as the beginning of an escape.
struct Encoded(u8);

impl fmt::Display for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b if b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b) => write!(f, "{}", char::from(b)),
            b => write!(f, "%{b:02X}"),
        }
    }
}

impl PathText {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PathText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::as_text!(PathText);

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
    /// Returns whether the last segment of a path ends with the extension, and has something before the dot: `/.gif`
    /// has no extension.
    pub fn ends(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or_default().as_bytes();
        let Some(rest) = name.len().checked_sub(self.0.len()) else {
            return false;
        };
        match name.split_at_checked(rest) {
            Some(([_, .., b'.'], end)) => end.eq_ignore_ascii_case(self.0.as_bytes()),
            _ => false,
        }
    }
}

impl fmt::Display for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::as_text!(Extension);

/// Returns whether a program would answer rather than a file (paper 003's CGI): a query string, a path with a segment
/// `cgi-bin`, or a method other than GET and HEAD.
pub fn is_cgi(method: &str, path: &str, query: Option<&str>) -> bool {
    has_query(query) || path.contains("/cgi-bin/") || !matches!(method, "GET" | "HEAD")
}

/// Returns whether there is a query string; a `?` with nothing behind it is none.
pub fn has_query(query: Option<&str>) -> bool {
    query.is_some_and(|q| !q.is_empty())
}
