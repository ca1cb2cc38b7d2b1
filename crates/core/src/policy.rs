//! Defines policies: when a pair of connections is spliced, and when a dormant pair is detached.

use std::{fmt, str::FromStr, time::Duration};

/// Policy by which a listener's connections are spliced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SplicePolicy {
    /// The advisor decides from the round-trip times and losses of both legs, and asks again later.
    #[default]
    Auto,
    /// The pair is spliced as soon as both legs are connected.
    Now,
    /// Never: the relay carries the connection to its end.
    Never,
    /// The pair is spliced once this many payload bytes (both directions together) have been relayed.
    AfterBytes(u64),
    /// The pair is spliced once it is this old.
    AfterTime(Duration),
}

/// Policy by which the parked sockets of a dormant pair are closed in silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetachPolicy {
    /// The sockets are closed as soon as the pair is spliced.
    Now,
    /// Never, unless memory or descriptors run short.
    Never,
    /// The sockets are closed once the pair has been dormant for this long.
    AfterTime(Duration),
}

impl Default for DetachPolicy {
    fn default() -> Self {
        DetachPolicy::AfterTime(Duration::from_secs(1))
    }
}

/// Error of a policy that could not be read; says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a policy: use {accepted}")]
pub struct ParsePolicyError {
    given: String,
    accepted: &'static str,
}

const SPLICE_ACCEPTED: &str = "auto, now, never, after=BYTES (such as after=1MiB; B, kB, KiB, MB, MiB, GB or GiB) or \
     after=DURATION (such as after=500ms)";
const DETACH_ACCEPTED: &str = "now, never or after=DURATION (such as after=1s)";

impl FromStr for SplicePolicy {
    type Err = ParsePolicyError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let fail = || ParsePolicyError {
            given: s.to_owned(),
            accepted: SPLICE_ACCEPTED,
        };
        match s {
            "auto" => Ok(SplicePolicy::Auto),
            "now" => Ok(SplicePolicy::Now),
            "never" => Ok(SplicePolicy::Never),
            _ => {
                let after = s.strip_prefix("after=").ok_or_else(fail)?;
                if let Some(d) = parse_duration(after) {
                    Ok(SplicePolicy::AfterTime(d))
                } else {
                    parse_bytes(after).map(SplicePolicy::AfterBytes).ok_or_else(fail)
                }
            }
        }
    }
}

impl FromStr for DetachPolicy {
    type Err = ParsePolicyError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let fail = || ParsePolicyError {
            given: s.to_owned(),
            accepted: DETACH_ACCEPTED,
        };
        match s {
            "now" => Ok(DetachPolicy::Now),
            "never" => Ok(DetachPolicy::Never),
            _ => s
                .strip_prefix("after=")
                .and_then(parse_duration)
                .map(DetachPolicy::AfterTime)
                .ok_or_else(fail),
        }
    }
}

impl fmt::Display for SplicePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SplicePolicy::Auto => f.write_str("auto"),
            SplicePolicy::Now => f.write_str("now"),
            SplicePolicy::Never => f.write_str("never"),
            SplicePolicy::AfterBytes(n) => write!(f, "after={n}"),
            SplicePolicy::AfterTime(d) => write!(f, "after={}", FormatDuration(*d)),
        }
    }
}

impl fmt::Display for DetachPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DetachPolicy::Now => f.write_str("now"),
            DetachPolicy::Never => f.write_str("never"),
            DetachPolicy::AfterTime(d) => write!(f, "after={}", FormatDuration(*d)),
        }
    }
}

/// Writes a duration so that [`parse_duration`] reads it back.
pub struct FormatDuration(pub Duration);

impl fmt::Display for FormatDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        match us {
            _ if us.is_multiple_of(1_000_000) => write!(f, "{}s", us / 1_000_000),
            _ if us.is_multiple_of(1_000) => write!(f, "{}ms", us / 1_000),
            _ => write!(f, "{us}us"),
        }
    }
}

/// Reads a whole number with a unit of time: `us`, `ms`, `s`, `m`, `h` or `d`. `None` if it is something else,
/// or longer than a century.
pub fn parse_duration(s: &str) -> Option<Duration> {
    let digits = s.bytes().take_while(u8::is_ascii_digit).count();
    let n: u64 = s[..digits].parse().ok()?;
    let unit_us: u64 = match &s[digits..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    let us = n.checked_mul(unit_us)?;
    (us <= 36_500 * 86_400_000_000).then(|| Duration::from_micros(us))
}

/// Lists the units of [`parse_bytes`], for messages.
pub const BYTE_UNITS: &str = "B, kB, KiB, MB, MiB, GB or GiB";

/// Reads a whole number of bytes, with an optional unit of [`BYTE_UNITS`]; case counts, as in `after=1m`, a minute.
/// `None` if it is something else, or more than 2^64 − 1.
pub fn parse_bytes(s: &str) -> Option<u64> {
    let digits = s.bytes().take_while(u8::is_ascii_digit).count();
    let n: u64 = s[..digits].parse().ok()?;
    let unit: u64 = match &s[digits..] {
        "" | "B" => 1,
        "kB" => 1_000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        _ => return None,
    };
    n.checked_mul(unit)
}

crate::as_text!(SplicePolicy, DetachPolicy);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_read_back_what_they_write() {
        for s in [
            "auto",
            "now",
            "never",
            "after=4096",
            "after=500ms",
            "after=2s",
            "after=7us",
        ] {
            assert_eq!(s.parse::<SplicePolicy>().unwrap().to_string(), s);
        }
        for s in ["now", "never", "after=1s", "after=1500ms"] {
            assert_eq!(s.parse::<DetachPolicy>().unwrap().to_string(), s);
        }
        assert_eq!("after=1MiB".parse(), Ok(SplicePolicy::AfterBytes(1 << 20)));
        assert_eq!(
            "after=2m".parse(),
            Ok(SplicePolicy::AfterTime(Duration::from_secs(120)))
        );
    }

    #[test]
    fn bytes_have_the_units_of_the_documentation_and_no_others() {
        for (unit, bytes) in [
            ("", 1),
            ("B", 1),
            ("kB", 1_000),
            ("KiB", 1 << 10),
            ("MB", 1_000_000),
            ("MiB", 1 << 20),
            ("GB", 1_000_000_000),
            ("GiB", 1 << 30),
        ] {
            assert_eq!(parse_bytes(&format!("3{unit}")), Some(3 * bytes), "{unit}");
            assert!(unit.is_empty() || BYTE_UNITS.contains(unit), "{unit}");
        }
        // Refuse what may mean 1000 or 1024, or a minute.
        for unit in ["k", "K", "KB", "M", "G", "m", "b", "kib", " kB"] {
            assert_eq!(parse_bytes(&format!("3{unit}")), None, "{unit}");
            let e = format!("after=3{unit}").parse::<SplicePolicy>();
            assert!(
                unit == "m" || e.unwrap_err().to_string().contains(BYTE_UNITS),
                "{unit}"
            );
        }
    }

    #[test]
    fn what_is_no_policy_is_named_with_the_remedy() {
        for s in [
            "",
            "after",
            "after=",
            "after=x",
            "after=-1s",
            "Auto",
            "after=99999999999999999999",
            "after=1y",
            "é",
        ] {
            let e = s.parse::<SplicePolicy>().unwrap_err().to_string();
            assert!(e.contains("after=BYTES"), "{e}");
        }
        assert!("after=4096".parse::<DetachPolicy>().is_err());
    }
}
