//! Reads `balance`: the algorithm, and the part of a request that it hashes.

use std::{fmt, str::FromStr};

use longsplice_core::balance::{Algorithm, ParseAlgorithmError};

use crate::config::rules::is_token;

/// Method of choosing a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Balance {
    pub algorithm: Algorithm,
    /// Part of a request that is hashed; [`KeyKind::None`] for algorithms that do not hash.
    pub key: KeyKind,
}

/// Part of a request that a choice depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// Nothing.
    None,
    /// The client's address.
    Client,
    /// The value of this header field; the name is in lower case.
    Header(String),
    /// The value of this cookie.
    Cookie(String),
}

impl Balance {
    /// Chooses the first server that answers.
    pub(crate) fn first() -> Balance {
        Algorithm::First.into()
    }
}

impl From<Algorithm> for Balance {
    fn from(algorithm: Algorithm) -> Balance {
        Balance {
            algorithm,
            key: KeyKind::None,
        }
    }
}

impl Default for Balance {
    fn default() -> Self {
        Algorithm::default().into()
    }
}

/// Error: the text names no method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseBalanceError {
    /// The algorithm is unknown.
    #[error(transparent)]
    Algorithm(#[from] ParseAlgorithmError),
    /// The text is `hash` without a key.
    #[error("`{0}` does not say what is hashed: use hash=client, hash=header:NAME or hash=cookie:NAME")]
    Key(String),
}

impl FromStr for Balance {
    type Err = ParseBalanceError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let unclear = || ParseBalanceError::Key(s.to_owned());
        let Some(of) = s.strip_prefix("hash=") else {
            let algorithm: Algorithm = s.parse()?;
            return match algorithm {
                Algorithm::Hash => Err(unclear()),
                other => Ok(other.into()),
            };
        };
        let key = match of.split_once(':') {
            None if of == "client" => KeyKind::Client,
            Some(("header", name)) if is_token(name) => KeyKind::Header(name.to_ascii_lowercase()),
            Some(("cookie", name)) if is_token(name) => KeyKind::Cookie(name.to_owned()),
            _ => return Err(unclear()),
        };
        Ok(Balance {
            algorithm: Algorithm::Hash,
            key,
        })
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            KeyKind::None => self.algorithm.fmt(f),
            KeyKind::Client => f.write_str("hash=client"),
            KeyKind::Header(name) => write!(f, "hash=header:{name}"),
            KeyKind::Cookie(name) => write!(f, "hash=cookie:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_reads_back() {
        for way in [
            "round_robin",
            "least_connections",
            "p2c",
            "first",
            "hash=client",
            "hash=header:x-user",
            "hash=cookie:Session",
        ] {
            assert_eq!(way.parse::<Balance>().unwrap().to_string(), way);
        }
        for (given, says) in [
            ("hash", "hash=client"),
            ("hash=", "hash=client"),
            ("hash=header:", "hash=header:NAME"),
            ("hash=header:a b", "hash=header:NAME"),
            ("hash=cookie", "hash=cookie:NAME"),
            ("fastest", "use round_robin"),
        ] {
            let e = given.parse::<Balance>().unwrap_err().to_string();
            assert!(e.contains(says), "{given}: {e}");
        }
    }
}
