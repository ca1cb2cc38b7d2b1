//! Reads and writes TCP flags as people write them.

use std::{fmt, str::FromStr};

/// Names in the order of their bits (RFC 9293 section 3.1).
const NAMES: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// Flags that must be set and flags that must not: `new` (`syn,!ack`: a packet that opens a connection), `any`, or a
/// list of names with `!` before those that must not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flags {
    mask: u8,
    set: u8,
}

/// Error of a text that names no flags.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseFlagsError {
    /// The name is not that of a flag.
    #[error(
        "`{0}` is no TCP flag: write new, any, or some of fin, syn, rst, psh, ack, urg, ece, cwr with commas between, and ! before one that must not be set"
    )]
    Unknown(String),
    /// The flag stands twice.
    #[error("the flag {0} stands twice: write it once")]
    Twice(&'static str),
}

impl Flags {
    /// Flags of a packet that opens a connection: SYN without ACK.
    pub const NEW: Flags = Flags {
        mask: 0x12,
        set: 0x02,
    };
    /// Flags of every packet.
    pub const ANY: Flags = Flags { mask: 0, set: 0 };

    /// Returns the bits that count, as in the header.
    pub fn mask(self) -> u8 {
        self.mask
    }

    /// Returns the required values of these bits.
    pub fn set(self) -> u8 {
        self.set
    }
}

impl Default for Flags {
    fn default() -> Self {
        Flags::NEW
    }
}

impl FromStr for Flags {
    type Err = ParseFlagsError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "new" => return Ok(Flags::NEW),
            "any" => return Ok(Flags::ANY),
            _ => {}
        }
        let mut flags = Flags::ANY;
        for word in s.split(',').map(str::trim) {
            let (name, set) = word.strip_prefix('!').map_or((word, true), |name| (name, false));
            let Some((bit, name)) = NAMES.iter().enumerate().find(|(_, n)| **n == name) else {
                return Err(ParseFlagsError::Unknown(word.to_owned()));
            };
            if flags.mask & 1 << bit != 0 {
                return Err(ParseFlagsError::Twice(name));
            }
            flags.mask |= 1 << bit;
            flags.set |= u8::from(set) << bit;
        }
        Ok(flags)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Flags::NEW => return f.write_str("new"),
            Flags::ANY => return f.write_str("any"),
            _ => {}
        }
        let mut comma = "";
        for (bit, name) in NAMES.iter().enumerate() {
            if self.mask & 1 << bit != 0 {
                let not = if self.set & 1 << bit == 0 { "!" } else { "" };
                write!(f, "{comma}{not}{name}")?;
                comma = ",";
            }
        }
        Ok(())
    }
}

crate::as_text!(Flags);
