//! Limits the time in which nothing passes on a relayed connection.

use std::{fmt, str::FromStr, time::Duration};

use crate::policy::{FormatDuration, parse_duration};

/// Limit of a relayed connection's idle time, and the probes of its ends meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdlePolicy {
    /// Time without a byte in either direction after which both ends are reset, or spliced if they are accelerated; `None`:
    /// never.
    pub limit: Option<Duration>,
    /// Probes of the ends; `None`: there are none.
    pub keepalive: Option<Keepalive>,
}

/// Rules by which an idle end is probed and considered gone (RFC 9293 section 3.8.4).
///
/// Reads as text: `idle=2m,interval=15s,probes=4`, each of which may be left out.
///
/// ```
/// use longsplice_core::idle::Keepalive;
///
/// let keepalive: Keepalive = "idle=1m".parse()?;
/// assert_eq!(keepalive.to_string(), "idle=60s,interval=15s,probes=4");
/// # Ok::<(), longsplice_core::idle::ParseKeepaliveError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Time without a segment before the first probe: whole seconds, 1 to 32,767 (`TCP_KEEPIDLE`).
    pub idle: Duration,
    /// Time from one probe to the next: whole seconds, 1 to 32,767 (`TCP_KEEPINTVL`).
    pub interval: Duration,
    /// Number of unanswered probes after which the end is gone: 1 to 127 (`TCP_KEEPCNT`).
    pub probes: u8,
}

impl Default for Keepalive {
    /// Returns two minutes, 15 seconds, 4 probes: an end that vanished is noticed after three minutes.
    fn default() -> Self {
        Keepalive {
            idle: Duration::from_secs(120),
            interval: Duration::from_secs(15),
            probes: 4,
        }
    }
}

/// Error of a text that is no [`Keepalive`]; says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no keep-alive: use idle=DURATION, interval=DURATION (1s to 32767s) and probes=COUNT (1 to 127), joined by commas \
     (such as idle=2m,interval=15s,probes=4)"
)]
pub struct ParseKeepaliveError(String);

impl FromStr for Keepalive {
    type Err = ParseKeepaliveError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let mut keepalive = Keepalive::default();
        for part in s.split(',').map(str::trim) {
            let fail = || ParseKeepaliveError(part.to_owned());
            match part.split_once('=').ok_or_else(fail)? {
                ("idle", time) => keepalive.idle = parse_seconds(time).ok_or_else(fail)?,
                ("interval", time) => keepalive.interval = parse_seconds(time).ok_or_else(fail)?,
                ("probes", count) => {
                    let count = count.parse().ok().filter(|n| (1..=127).contains(n));
                    keepalive.probes = count.ok_or_else(fail)?;
                }
                _ => return Err(fail()),
            }
        }
        Ok(keepalive)
    }
}

/// Reads a duration that the kernel takes: it counts these in seconds.
fn parse_seconds(s: &str) -> Option<Duration> {
    let time = parse_duration(s)?;
    let is_whole = time.subsec_nanos() == 0;
    (is_whole && (1..=32_767).contains(&time.as_secs())).then_some(time)
}

impl fmt::Display for Keepalive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (idle, interval) = (FormatDuration(self.idle), FormatDuration(self.interval));
        write!(f, "idle={idle},interval={interval},probes={}", self.probes)
    }
}

crate::as_text!(Keepalive);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_reads_back_and_what_the_kernel_refuses_is_refused() {
        for s in [
            "idle=1s,interval=1s,probes=1",
            "idle=32767s,interval=20s,probes=127",
        ] {
            assert_eq!(s.parse::<Keepalive>().unwrap().to_string(), s);
        }
        let given: Keepalive = "probes=2, interval=1m".parse().unwrap();
        assert_eq!(given.to_string(), "idle=120s,interval=60s,probes=2");
        for s in [
            "",
            "idle",
            "idle=0s",
            "idle=1500ms",
            "idle=10h",
            "interval=x",
            "probes=0",
            "probes=128",
            "count=3",
        ] {
            let error = s.parse::<Keepalive>().unwrap_err().to_string();
            assert!(error.contains("idle=2m,interval=15s"), "{s}: {error}");
        }
    }
}
