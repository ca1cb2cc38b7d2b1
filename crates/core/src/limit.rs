//! Limits the rate of the payload of a flow by a token bucket for each direction, the same in the relay and in the
//! kernel half (bpf/limit.h).

use std::{fmt, str::FromStr};

use crate::{
    policy::{BYTE_UNITS, parse_bytes},
    side::PerSide,
};

/// Parts of a second after which the freed bytes are worth a read.
const WORTHWHILE_PARTS: u32 = 100;

/// Milliseconds whose bytes are the default burst. Exceeds the least retransmission timeout of Linux (200 ms): where the round trip is
/// short a whole window is dropped at once, and only that timer sends it again. A bucket that is full before wastes its rate.
const BURST_MILLISECONDS: u64 = 300;
/// Smallest default burst, in bytes: a GRO super-packet.
const LEAST_BURST: u32 = 64 << 10;

const NANOSECONDS: u64 = 1_000_000_000;

/// Rate of one direction.
///
/// Its state is one time, `paid`: the time at which all passed bytes are paid for (the virtual scheduling form of GCRA,
/// ITU-T I.371). Times are nanoseconds of one clock that does not go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    per_second: u32,
    burst: u32,
}

impl Rate {
    /// Lowest and highest rate, in bytes per second.
    pub const RANGE: std::ops::RangeInclusive<u64> = 1_000..=u32::MAX as u64;

    /// Makes a rate of payload bytes per second, in [`Rate::RANGE`]. The burst is the bytes of 300 ms, and 64 KiB at
    /// least. `None` out of range.
    pub fn new(per_second: u64) -> Option<Rate> {
        if !Rate::RANGE.contains(&per_second) {
            return None;
        }
        let burst = u32::try_from(per_second * BURST_MILLISECONDS / 1_000).ok()?;
        Some(Rate {
            per_second: u32::try_from(per_second).ok()?,
            burst: burst.max(LEAST_BURST),
        })
    }

    /// Returns the rate with another burst, 1 to 2^32 − 1 bytes. A piece passes whole if it begins before the burst is
    /// used up.
    #[must_use]
    pub fn with_burst(self, burst: u32) -> Rate {
        let burst = burst.max(1);
        Rate { burst, ..self }
    }

    /// Returns the payload bytes per second.
    pub fn per_second(self) -> u32 {
        self.per_second
    }

    /// Returns the bytes that may pass at once.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// Returns the bytes that must be free before a read is worthwhile: a hundredth of a second's, 1 byte to the burst.
    pub fn worthwhile(self) -> u32 {
        (self.per_second / WORTHWHILE_PARTS).clamp(1, self.burst)
    }

    /// Returns the bytes that may pass now.
    pub fn allowance(self, paid: u64, now: u64) -> u64 {
        let owed =
            u128::from(paid.saturating_sub(now)) * u128::from(self.per_second) / u128::from(NANOSECONDS);
        u64::from(self.burst).saturating_sub(u64::try_from(owed).unwrap_or(u64::MAX))
    }

    /// Returns `paid` after `bytes` have passed.
    pub fn charge(self, paid: u64, now: u64, bytes: u64) -> u64 {
        let time = u128::from(bytes) * u128::from(NANOSECONDS) / u128::from(self.per_second);
        paid.max(now)
            .saturating_add(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// Returns `paid` after a change from the rate `before` to this one: the account owes as many bytes, but no more than the
    /// burst. What is beyond that was another burst's.
    fn carry_over(self, before: Rate, paid: u64, now: u64) -> u64 {
        let owed = u128::from(paid.saturating_sub(now)) * u128::from(before.per_second);
        let owed = owed.min(u128::from(self.burst) * u128::from(NANOSECONDS));
        let time = owed / u128::from(self.per_second);
        now.saturating_add(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// Returns the nanoseconds after which `bytes` may pass; more than the burst never may at once.
    pub fn wait(self, paid: u64, now: u64, bytes: u32) -> u64 {
        let free = u64::from(self.burst.saturating_sub(bytes)) * NANOSECONDS / u64::from(self.per_second);
        paid.saturating_sub(now).saturating_sub(free)
    }
}

/// Rates of a flow's two directions.
///
/// Reads as text: a rate for each direction, `10MB/s`, or one for each sender, `client=1MB/s,server=10MB/s`;
/// `burst=256KiB` applies to all of them.
///
/// ```
/// use longsplice_core::limit::{Rate, RateLimit};
///
/// let limit: RateLimit = "server=10MB/s,burst=256KiB".parse()?;
/// assert_eq!(limit.server, Rate::new(10_000_000).map(|rate| rate.with_burst(256 << 10)));
/// assert_eq!(limit.client, None);
/// # Ok::<(), longsplice_core::limit::ParseRateLimitError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Rate of the client's bytes; `None`: no limit.
    pub client: Option<Rate>,
    /// Rate of the server's bytes; `None`: no limit.
    pub server: Option<Rate>,
}

impl RateLimit {
    /// Makes a limit with the same rate for each direction.
    pub fn each(rate: Rate) -> RateLimit {
        RateLimit {
            client: Some(rate),
            server: Some(rate),
        }
    }

    /// Returns both accounts after a change from the limit `before` to this one: see [`Rate`]. A rate that has not changed keeps its
    /// account as it is, and a side without a limit owes nothing.
    #[must_use]
    pub fn carry_over(&self, before: &RateLimit, paid: PerSide<u64>, now: u64) -> PerSide<u64> {
        let rates = PerSide::new((before.client, self.client), (before.server, self.server));
        rates.zip(paid).map(|(rates, paid)| match rates {
            (_, None) => 0,
            (Some(before), Some(after)) if before != after => after.carry_over(before, paid, now),
            _ => paid,
        })
    }

    /// Returns whether no direction is limited.
    pub fn is_none(&self) -> bool {
        *self == RateLimit::default()
    }
}

/// Error of a rate limit that could not be read; says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{part}` {wrong}: use RATE for each direction, or client=RATE and server=RATE for what they send, and \
     burst=BYTES, joined by commas; a RATE is 1kB/s to 4294967295B/s (such as 10MB/s), a burst 1B to 4294967295B, each in \
     {BYTE_UNITS}"
)]
pub struct ParseRateLimitError {
    part: String,
    wrong: &'static str,
}

impl ParseRateLimitError {
    fn unknown(part: &str) -> ParseRateLimitError {
        let part = part.to_owned();
        ParseRateLimitError {
            part,
            wrong: "is no rate limit",
        }
    }

    fn again(part: &str) -> ParseRateLimitError {
        let part = part.to_owned();
        ParseRateLimitError {
            part,
            wrong: "sets again what another part sets",
        }
    }
}

impl FromStr for RateLimit {
    type Err = ParseRateLimitError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let mut limit = RateLimit::default();
        let mut burst = None;
        for part in s.split(',').map(str::trim) {
            let fail = || ParseRateLimitError::unknown(part);
            let is_set = match part.split_once('=') {
                Some(("burst", _)) => burst.is_some(),
                Some(("client", _)) => limit.client.is_some(),
                Some(("server", _)) => limit.server.is_some(),
                Some(_) => false,
                None => !limit.is_none() && parse_rate(part).is_some(),
            };
            if is_set {
                return Err(ParseRateLimitError::again(part));
            }
            match part.split_once('=') {
                Some(("burst", bytes)) => {
                    let bytes = parse_bytes(bytes).and_then(|n| u32::try_from(n).ok());
                    burst = Some(bytes.filter(|&n| n > 0).ok_or_else(fail)?);
                }
                Some(("client", rate)) => {
                    limit.client = Some(parse_rate(rate).ok_or_else(fail)?);
                }
                Some(("server", rate)) => {
                    limit.server = Some(parse_rate(rate).ok_or_else(fail)?);
                }
                None if limit.is_none() => limit = RateLimit::each(parse_rate(part).ok_or_else(fail)?),
                _ => return Err(fail()),
            }
        }
        if limit.is_none() {
            return Err(ParseRateLimitError::unknown(s));
        }
        if let Some(burst) = burst {
            let with = |rate: Option<Rate>| rate.map(|rate| rate.with_burst(burst));
            limit = RateLimit {
                client: with(limit.client),
                server: with(limit.server),
            };
        }
        Ok(limit)
    }
}

fn parse_rate(s: &str) -> Option<Rate> {
    Rate::new(parse_bytes(s.strip_suffix("/s")?)?)
}

impl fmt::Display for RateLimit {
    /// Writes the limit. Bursts that differ are left out, because the text cannot express them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        match (self.client, self.server) {
            (Some(a), Some(b)) if a == b => parts.push(format!("{}B/s", a.per_second)),
            (client, server) => {
                for (name, rate) in [("client", client), ("server", server)] {
                    parts.extend(rate.map(|rate| format!("{name}={}B/s", rate.per_second)));
                }
            }
        }
        let mut bursts = [self.client, self.server].into_iter().flatten().map(|r| r.burst);
        let first = bursts.next();
        let is_usual = |rate: Rate| Rate::new(rate.per_second.into()) == Some(rate);
        let usual = [self.client, self.server].into_iter().flatten().all(is_usual);
        if let Some(burst) = first.filter(|_| !usual)
            && bursts.all(|other| other == burst)
        {
            parts.push(format!("burst={burst}"));
        }
        f.write_str(&parts.join(","))
    }
}

crate::as_text!(RateLimit);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = NANOSECONDS;

    #[test]
    fn a_bucket_lets_its_rate_pass_whatever_the_pieces() {
        let rate = Rate::new(1_000_000).unwrap().with_burst(50_000);
        for piece in [1, 1_460, 65_536] {
            let (mut paid, mut passed) = (0, 0);
            for now in (0..10 * SECOND).step_by(100_000) {
                while rate.allowance(paid, now) > 0 {
                    paid = rate.charge(paid, now, piece);
                    passed += piece;
                }
            }
            // Ten seconds' worth and the burst pass; the last piece of all may exceed them.
            assert!(
                (10_049_000..=10_050_000 + piece).contains(&passed),
                "{piece}: {passed}"
            );
        }
    }

    #[test]
    fn a_wait_is_as_long_as_it_must_be() {
        let rate = Rate::new(1_000).unwrap().with_burst(500);
        let paid = rate.charge(0, 7, 1_500);
        assert_eq!(
            (rate.allowance(paid, 7), rate.wait(paid, 7, 1)),
            (0, 1_001_000_000)
        );
        let later = 7 + rate.wait(paid, 7, 100);
        assert_eq!(rate.allowance(paid, later), 100);
        assert_eq!(rate.allowance(paid, later - 1_000_000), 99);
        assert_eq!(
            (
                rate.allowance(paid, 7 + 9 * SECOND),
                rate.wait(paid, 7 + 9 * SECOND, 500)
            ),
            (500, 0)
        );
        // The rate is beyond any connection's.
        let most = Rate::new(u64::from(u32::MAX)).unwrap().with_burst(u32::MAX);
        assert_eq!(most.allowance(u64::MAX, 0), 0);
        assert_eq!(most.charge(u64::MAX, 0, u64::MAX), u64::MAX);
    }

    #[test]
    fn an_account_owes_bytes_whatever_its_rate_becomes() {
        let (now, limit) = (7 * SECOND, |text: &str| text.parse::<RateLimit>().unwrap());
        let owed = |limit: &RateLimit, paid: PerSide<u64>| {
            let owed =
                |rate: Option<Rate>, paid| rate.map(|rate| u64::from(rate.burst) - rate.allowance(paid, now));
            [owed(limit.client, paid.client), owed(limit.server, paid.server)]
        };
        let slow = limit("2kB/s,burst=64kB");
        let paid = PerSide::new(now + 20 * SECOND, now + 3600 * SECOND);
        for (rate, expected) in [
            ("100MB/s", [40_000, 7_200_000]),
            ("1kB/s", [40_000, 65_536]),
            ("4294967295B/s,burst=4294967295B", [40_000, 7_200_000]),
            ("1kB/s,burst=1", [1, 1]),
        ] {
            let new = limit(rate);
            let later = new.carry_over(&slow, paid, now);
            for (found, expected) in owed(&new, later).into_iter().zip(expected) {
                let found = found.unwrap();
                // A nanosecond of the highest rate is 4 bytes.
                assert!(
                    found <= expected && found + 5 >= expected,
                    "{rate}: {found}, of {expected}"
                );
            }
            // Neither wait is longer than that of an account that has used up its burst.
            let rate = new.client.unwrap();
            let full = rate.charge(0, now, rate.burst.into());
            assert!(later.client.max(later.server) <= full);
        }
        // A debt beyond the burst stays while the rate does.
        assert_eq!(slow.carry_over(&slow, paid, now), paid);
        assert_eq!(slow.carry_over(&RateLimit::default(), paid, now), paid);
        assert_eq!(limit("client=1MB/s").carry_over(&slow, paid, now).server, 0);
        let none = slow.carry_over(&limit("1MB/s"), PerSide::new(0, now - 1), now);
        assert_eq!(owed(&slow, none), [Some(0), Some(0)]);
        // The numbers are beyond any account's.
        let fast = limit("4294967295B/s,burst=4294967295B");
        assert_eq!(
            slow.carry_over(&fast, PerSide::both(u64::MAX), u64::MAX - 1),
            PerSide::both(u64::MAX)
        );
    }

    #[test]
    fn limits_read_back_what_they_write() {
        for s in [
            "10000000B/s",
            "client=1000B/s",
            "client=1000B/s,server=4294967295B/s",
            "5000B/s,burst=1",
        ] {
            assert_eq!(s.parse::<RateLimit>().unwrap().to_string(), s);
        }
        let two: RateLimit = "burst=1KiB, server=2MB/s, client=1MiB/s".parse().unwrap();
        assert_eq!(two.to_string(), "client=1048576B/s,server=2000000B/s,burst=1024");
        let usual = Rate::new(10_000_000).unwrap();
        assert_eq!(
            (usual.burst(), Rate::new(1_000).unwrap().burst()),
            (3_000_000, 65_536)
        );
    }

    #[test]
    fn what_is_no_limit_is_named_with_the_remedy() {
        for s in [
            "",
            "10MB",
            "10MB/s,",
            "999B/s",
            "5GB/s",
            "burst=1KiB",
            "1MB/s,burst=0",
            "1MB/s,2MB/s",
            "me=1MB/s",
            "client=1MB/s,client=1MB/s",
            "client=",
            "1MB/s,client=1MB/s",
            "-1MB/s",
        ] {
            let e = s.parse::<RateLimit>().unwrap_err().to_string();
            assert!(e.contains("such as 10MB/s"), "{e}");
        }
    }

    #[test]
    fn what_is_limited_twice_is_named_as_such() {
        for (s, named) in [
            ("1MB/s,2MB/s", "`2MB/s`"),
            ("client=1MB/s,client=2MB/s", "`client=2MB/s`"),
            ("server=1MB/s,client=1MB/s,server=x", "`server=x`"),
            ("1MB/s,client=1MB/s", "`client=1MB/s`"),
            ("client=1MB/s,burst=1,burst=2", "`burst=2`"),
        ] {
            let e = s.parse::<RateLimit>().unwrap_err().to_string();
            assert!(e.starts_with(&format!("{named} sets again")), "{s}: {e}");
        }
    }
}
