//! Reads and writes ports as people write them.

use std::{fmt, str::FromStr};

use crate::ports::parse_port;

/// Port, or a range of ports with both ends: `80`, `1024-65535`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    min: u16,
    max: u16,
}

/// Error of a text that is no range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePortsError {
    /// There is no number from 0 to 65535, or there are not two.
    #[error(
        "`{0}` is no port: write a number from 0 to 65535, or two with a hyphen between, such as 8000-8080"
    )]
    Form(String),
    /// The range runs backwards.
    #[error("the range {0}-{1} runs backwards: write {1}-{0}")]
    Backwards(u16, u16),
}

impl Ports {
    /// Range of all ports.
    pub const ALL: Ports = Ports {
        min: 0,
        max: u16::MAX,
    };

    /// Returns the lowest port.
    pub fn min(self) -> u16 {
        self.min
    }

    /// Returns the highest port.
    pub fn max(self) -> u16 {
        self.max
    }
}

impl From<u16> for Ports {
    fn from(port: u16) -> Ports {
        Ports { min: port, max: port }
    }
}

impl FromStr for Ports {
    type Err = ParsePortsError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (min, max) = s.split_once('-').unwrap_or((s, s));
        match (parse_port(min), parse_port(max)) {
            (Some(min), Some(max)) if min <= max => Ok(Ports { min, max }),
            (Some(min), Some(max)) => Err(ParsePortsError::Backwards(min, max)),
            _ => Err(ParsePortsError::Form(s.to_owned())),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => self.min.fmt(f),
            false => write!(f, "{}-{}", self.min, self.max),
        }
    }
}

crate::as_text!(Ports);
