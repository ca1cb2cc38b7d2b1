//! Matches regular expressions, bounded in size. Any expression takes time linear in the text.

use std::{fmt, str::FromStr};

use regex::bytes::{Regex, RegexBuilder};

/// Limit of the size of a compiled expression, in bytes.
const MAX_SIZE: usize = 1 << 20;
/// Limit of the automaton's cache while it runs, in bytes. Beyond it, the cache is begun anew.
const MAX_CACHE: usize = 1 << 20;
/// Limit of the nesting of groups.
const MAX_DEPTH: u32 = 100;

/// Regular expression in the syntax of the crate `regex`. It matches anywhere unless it has `^` and `$`.
#[derive(Clone)]
pub struct Pattern(Regex);

/// Error of a text that is no expression, or a too large one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePatternError {
    /// The compiled expression exceeds [`MAX_SIZE`].
    #[error("the expression takes more than {MAX_SIZE} bytes: use smaller repetitions")]
    Large,
    /// The parser's error.
    #[error("the expression is wrong: {0}")]
    Wrong(String),
}

impl FromStr for Pattern {
    type Err = ParsePatternError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let built = RegexBuilder::new(s)
            .size_limit(MAX_SIZE)
            .dfa_size_limit(MAX_CACHE)
            .nest_limit(MAX_DEPTH)
            .build();
        built.map(Pattern).map_err(|e| match e {
            regex::Error::CompiledTooBig(_) => ParsePatternError::Large,
            e => ParsePatternError::Wrong(reason(&e.to_string())),
        })
    }
}

/// Returns the last line of the parser's message; the lines before it draw the expression with a mark below.
fn reason(message: &str) -> String {
    let last = message.lines().next_back().unwrap_or_default().trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

impl Pattern {
    /// Returns whether the expression is found in the text.
    pub fn is_match(&self, text: &[u8]) -> bool {
        self.0.is_match(text)
    }

    /// Returns the expression as it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.as_str())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

crate::as_text!(Pattern);
