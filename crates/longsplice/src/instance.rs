//! Defines the name that distinguishes several daemons on one machine.

use std::{fmt, str::FromStr};

use serde::Serialize;

/// Name of an instance. It becomes part of file names (the admin socket, the pins), so its alphabet is small.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct InstanceName(String);

/// Error: the text cannot name an instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot name an instance: use 1 to 32 of a-z, 0-9, `_` and `-`, beginning with a letter or a digit"
)]
pub struct InstanceNameError(String);

impl InstanceName {
    /// Length of the longest name, in bytes.
    pub const MAX_LEN: usize = 32;

    /// Returns the name as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for InstanceName {
    fn default() -> Self {
        InstanceName("default".to_owned())
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for InstanceName {
    type Err = InstanceNameError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let rest = |b: u8| first(b) || b == b'_' || b == b'-';
        let good = s.len() <= Self::MAX_LEN && s.bytes().next().is_some_and(first) && s.bytes().all(rest);
        if good {
            Ok(InstanceName(s.to_owned()))
        } else {
            Err(InstanceNameError(s.to_owned()))
        }
    }
}

longsplice_core::from_text!(InstanceName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_safe_in_a_path_are_taken_and_no_others() {
        for good in ["default", "a", "0", "edge-1", "a_b", &"x".repeat(32)] {
            assert!(good.parse::<InstanceName>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            "_a",
            "A",
            "a/b",
            "..",
            "a.b",
            "ä",
            "a b",
            &"x".repeat(33),
        ] {
            assert!(bad.parse::<InstanceName>().is_err(), "{bad}");
        }
    }
}
