//! Reads `health` and `outlier_detection`: settings for the detection of failed servers.

use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

use longsplice_core::health::PassiveRules;
use serde::Deserialize;
use toml::Spanned;

use crate::config::{period::Period, settler::Settler};

/// Settings of active checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthConfig {
    /// Kind of check.
    pub probe: Probe,
    /// Time between two checks; it varies by a tenth.
    pub interval: Duration,
    /// Longest time for a check.
    pub timeout: Duration,
    /// Number of consecutive successes that bring a server up.
    pub rise: u32,
    /// Number of consecutive failures that take it down.
    pub fall: u32,
}

/// Kind of check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Connects.
    Tcp,
    /// Sends a GET request, and checks the status.
    Http {
        /// Path, with a query if there is one.
        path: String,
        /// Value of Host; `None` means the server's address.
        host: Option<String>,
        /// Statuses of good replies.
        status: Statuses,
    },
}

/// A set of status codes: `200-399`, or several, `200-299,401`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statuses(Vec<RangeInclusive<u16>>);

/// Error: the text is no set of status codes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no set of status codes: write such as 200-399, or 200-299,401 (each from 100 to 599)")]
pub(crate) struct ParseStatusesError(String);

impl Statuses {
    /// Returns whether it contains this status.
    pub(crate) fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl Default for Statuses {
    fn default() -> Self {
        Statuses(vec![200..=399])
    }
}

impl FromStr for Statuses {
    type Err = ParseStatusesError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let code = |s: &str| {
            let code = s.trim().parse().ok();
            code.filter(|code| (100..=599).contains(code))
        };
        let range = |part: &str| {
            let (lo, hi) = part.split_once('-').unwrap_or((part, part));
            let (lo, hi) = (code(lo)?, code(hi)?);
            (lo <= hi).then_some(lo..=hi)
        };
        let ranges: Option<_> = s.split(',').map(range).collect();
        ranges
            .map(Statuses)
            .ok_or_else(|| ParseStatusesError(s.to_owned()))
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, range) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match range.start() == range.end() {
                true => write!(f, "{comma}{}", range.start())?,
                false => write!(f, "{comma}{}-{}", range.start(), range.end())?,
            }
        }
        Ok(())
    }
}

/// The table `health` as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHealth {
    tcp: Option<bool>,
    http: Option<Spanned<String>>,
    host: Option<Spanned<String>>,
    status: Option<Spanned<String>>,
    interval: Option<Spanned<Period>>,
    timeout: Option<Spanned<Period>>,
    rise: Option<Spanned<i64>>,
    fall: Option<Spanned<i64>>,
}

/// The table `outlier_detection` as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOutlierDetection {
    failures: Option<Spanned<i64>>,
    period: Option<Spanned<Period>>,
    ejection_time: Option<Spanned<Period>>,
    status: Option<bool>,
}

const DAY: Duration = Duration::from_secs(86_400);
const MOST_IN_A_ROW: u32 = 1000;

pub(super) fn health(s: &mut Settler<'_>, given: Spanned<RawHealth>) -> HealthConfig {
    let place = given.span();
    let raw = given.into_inner();
    let kinds = (raw.tcp.unwrap_or(false), raw.http.is_some());
    match kinds {
        (true, true) => s.complain(
            place,
            "health is checked either by `tcp` or by `http`",
            "leave one out: an HTTP check connects, too",
        ),
        (false, false) => s.complain(
            place,
            "health does not say how",
            "add tcp = true, or http = \"/PATH\"",
        ),
        _ => {}
    }
    for key in [&raw.host, &raw.status].into_iter().flatten() {
        if raw.http.is_none() {
            s.complain(
                key.span(),
                "only a check by `http` has a host and a status",
                "add http = \"/PATH\", or leave it out",
            );
        }
    }
    let host = raw.host.map(|given| visible(s, given, "a host"));
    let status = raw.status.map(|given| {
        let parsed = given.get_ref().parse();
        parsed.unwrap_or_else(|error: ParseStatusesError| {
            s.complain(given.span(), error.to_string(), "200-399 is the default");
            Statuses::default()
        })
    });
    let probe = raw.http.map_or(Probe::Tcp, |given| {
        if !given.get_ref().starts_with('/') {
            let message = format!("`{}` is no path", given.get_ref());
            s.complain(
                given.span(),
                message,
                "it begins with a slash, such as \"/health\"",
            );
        }
        Probe::Http {
            path: visible(s, given, "a path"),
            host,
            status: status.unwrap_or_default(),
        }
    });
    let (ms, second) = (Duration::from_millis(1), Duration::from_secs(1));
    HealthConfig {
        probe,
        interval: s.period("interval", raw.interval, second * 2, ms * 10, DAY),
        timeout: s.period("timeout", raw.timeout, second, ms, second * 600),
        rise: s.count("rise", raw.rise.as_ref(), 2, MOST_IN_A_ROW),
        fall: s.count("fall", raw.fall.as_ref(), 3, MOST_IN_A_ROW),
    }
}

/// Checks text that is copied into a request: a line end in it would begin a field of its own.
fn visible(s: &mut Settler<'_>, given: Spanned<String>, what: &str) -> String {
    if given.get_ref().is_empty() || !given.get_ref().bytes().all(|b| b.is_ascii_graphic()) {
        let message = format!("this cannot be {what}");
        s.complain(
            given.span(),
            message,
            "use visible ASCII characters; others are written as %XX in a path",
        );
    }
    given.into_inner()
}

/// Checks the rules of `outlier_detection`. Returns them, and whether a status of 500 or more counts as a failure.
pub(super) fn outlier_detection(
    s: &mut Settler<'_>,
    given: Option<RawOutlierDetection>,
    default: PassiveRules,
) -> (PassiveRules, bool) {
    let Some(raw) = given else {
        return (default, false);
    };
    let ms = Duration::from_millis(1);
    let rules = PassiveRules {
        failures: s.number(
            "failures",
            raw.failures.as_ref(),
            default.failures,
            0..=MOST_IN_A_ROW,
        ),
        period: s.period("period", raw.period, default.period, ms, DAY),
        ejection_time: s.period("ejection_time", raw.ejection_time, default.ejection_time, ms, DAY),
    };
    (rules, raw.status.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_read_back() {
        for text in ["200-399", "200", "200-299,401"] {
            assert_eq!(text.parse::<Statuses>().unwrap().to_string(), text);
        }
        for text in ["", "ok", "399-200", "99", "600", "200-", "200,,201"] {
            assert!(text.parse::<Statuses>().is_err(), "{text}");
        }
        let some: Statuses = "200-299,401".parse().unwrap();
        assert!(some.contains(200) && some.contains(401) && !some.contains(300));
    }
}
