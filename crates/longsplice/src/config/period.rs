//! Reads and writes durations.

use std::{fmt, str::FromStr, time::Duration};

use longsplice_core::policy::parse_duration;
use serde::{Deserialize, Deserializer, de};

/// A duration, written as a whole number with its unit: `500ms`, `30s`, `24h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period(pub Duration);

/// Error: the text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no duration: write a whole number and its unit (us, ms, s, m, h or d), such as 30s")]
pub(crate) struct PeriodError(String);

impl FromStr for Period {
    type Err = PeriodError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        parse_duration(s)
            .map(Period)
            .ok_or_else(|| PeriodError(s.to_owned()))
    }
}

/// Writes the largest unit that leaves a whole number, so that it reads back as the same value.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u128, &str); 6] = [
            (86_400_000_000, "d"),
            (3_600_000_000, "h"),
            (60_000_000, "m"),
            (1_000_000, "s"),
            (1_000, "ms"),
            (1, "us"),
        ];
        let us = self.0.as_micros();
        let fits = UNITS
            .iter()
            .find(|(unit, _)| us >= *unit && us.is_multiple_of(*unit));
        match fits {
            Some((unit, name)) => write!(f, "{}{name}", us / unit),
            None => f.write_str("0s"),
        }
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Period;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration in quotes, such as \"30s\" (us, ms, s, m, h or d)")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Period, E> {
                s.parse().map_err(E::custom)
            }
        }
        d.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_it_writes() {
        for s in [
            "0s", "1us", "1500us", "20ms", "1s", "90s", "2m", "24h", "90m", "7d",
        ] {
            let written = s.parse::<Period>().unwrap().to_string();
            assert_eq!(written.parse::<Period>(), s.parse(), "{s} {written}");
        }
        assert_eq!("24h".parse::<Period>().unwrap().to_string(), "1d");
        assert!("5".parse::<Period>().is_err());
    }
}
