//! Matches header fields and cookies by name and value.

use std::{fmt, str::FromStr};

use super::Pattern;
use crate::http::{Fields, text::is_token};

/// Name of a header field, of a cookie or of a method: a token (RFC 9110 section 5.6.2).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token(Box<str>);

/// Error of a text that is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no name: write letters, digits and !#$%&'*+-.^_`|~ only")]
pub struct ParseTokenError(String);

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match is_token(s.as_bytes()) {
            true => Ok(Token(s.into())),
            false => Err(ParseTokenError(s.escape_debug().to_string())),
        }
    }
}

impl Token {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::as_text!(Token);

/// Condition on a header field, or on a cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// It is there, with any value.
    Present,
    /// It is not there.
    Absent,
    /// One of its values matches one of these.
    Value(Vec<Text>),
}

/// Condition on a value. Case counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// The value is this text.
    Exact(String),
    /// The value begins with this text.
    Prefix(String),
    /// The expression is found in the value.
    Regex(Pattern),
}

impl Text {
    pub(super) fn takes(&self, value: &[u8]) -> bool {
        match self {
            Text::Exact(text) => value == text.as_bytes(),
            Text::Prefix(text) => value.starts_with(text.as_bytes()),
            Text::Regex(pattern) => pattern.is_match(value),
        }
    }

    fn takes_all_of(&self, other: &Text) -> bool {
        match (self, other) {
            (_, Text::Exact(text)) => self.takes(text.as_bytes()),
            (Text::Prefix(a), Text::Prefix(b)) => b.starts_with(a),
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Text::Exact(text) => write!(f, "is {text:?}"),
            Text::Prefix(text) => write!(f, "begins with {text:?}"),
            Text::Regex(pattern) => write!(f, "matches /{pattern}/"),
        }
    }
}

impl Want {
    /// Returns whether the condition holds for a field or cookie. `search` shows its values to the closure until it
    /// answers true.
    pub(super) fn holds(&self, search: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool) -> bool) -> bool {
        match self {
            Want::Present => search(&mut |_| true),
            Want::Absent => !search(&mut |_| true),
            Want::Value(texts) => search(&mut |value| texts.iter().any(|t| t.takes(value))),
        }
    }

    /// Returns whether the condition holds wherever the other one does.
    pub(super) fn takes_all_of(&self, other: &Want) -> bool {
        match (self, other) {
            (Want::Absent, other) => *other == Want::Absent,
            (_, Want::Absent) => false,
            (Want::Present, _) => true,
            (Want::Value(_), Want::Present) => false,
            (Want::Value(a), Want::Value(b)) => b.iter().all(|b| a.iter().any(|a| a.takes_all_of(b))),
        }
    }
}

/// Source of a request's header fields.
pub trait Headers {
    /// Shows the values of a field to `see`, in the order of its lines and without blanks around them, until it answers
    /// true. Names are compared without case (RFC 9110 section 5.1). Returns whether `see` answered true.
    fn any(&self, name: &str, see: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

impl<N: AsRef<str>, V: AsRef<[u8]>> Headers for Vec<(N, V)> {
    fn any(&self, name: &str, see: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let of_name = self.iter().filter(|(n, _)| n.as_ref().eq_ignore_ascii_case(name));
        let mut values = of_name.map(|(_, value)| value.as_ref().trim_ascii());
        values.any(see)
    }
}

impl Headers for Fields<'_> {
    fn any(&self, name: &str, see: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.values(name).any(see)
    }
}

/// Source without any header field.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHeaders;

impl Headers for NoHeaders {
    fn any(&self, _: &str, _: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }
}
