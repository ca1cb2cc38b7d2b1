//! Conditions under which a pair comes back to the protocol handler: the traps of a splice (papers' section III-D).

use std::{fmt, str::FromStr, time::Duration};

use longsplice_core::policy::{BYTE_UNITS, parse_bytes, parse_duration};
use longsplice_dataplane::{PerSide, Side};
use serde::{Deserialize, Serialize};

/// Sets the conditions that end a splice before the connections do. [`Until::or`] joins them: the first one that is met
/// counts.
///
/// Positions count from the streams' state at the call of [`crate::Splicer::splice`]: bytes that the handler has read
/// from a side are behind it, bytes that wait in the socket are not. A condition works the same for a relayed, dormant or
/// detached pair: trapped data is not forwarded, and is readable on the returned socket, whole and in order, however
/// often its sender had to retransmit it.
///
/// In text, conditions are joined by commas: `data` (either side), `data=client`, `data=server`, `bytes=SIDE:COUNT`
/// (units as in `1MiB`, `64kB`), `after=DURATION`, `idle=DURATION` (a whole number with `us`, `ms`, `s`, `m`, `h` or
/// `d`). `bytes=client:0` is `data=client`, and reads back as that. [`Until::closed`] has no text.
///
/// ```
/// use longsplice_engine::{Side, Until};
/// use std::time::Duration;
///
/// // An HTTP/1.1 proxy: replies pass, the next request is trapped.
/// let replies = Until::data_from(Side::Client);
/// // At most a mebibyte from the server, and not longer than a minute.
/// let some = Until::bytes_from(Side::Server, 1 << 20).or(Until::elapsed(Duration::from_secs(60)));
/// assert_eq!(some.to_string(), "bytes=server:1048576,after=60s");
/// assert_eq!("data=client".parse(), Ok(replies));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Until {
    budgets: PerSide<Option<u64>>,
    /// True if payload beyond the budget brings control back, rather than its end.
    beyond: PerSide<bool>,
    elapsed: Option<Duration>,
    idle: Option<Duration>,
    /// True for a predecessor's rest: see [`Until::rest`].
    is_rest: bool,
}

impl Until {
    /// Waits until both ends are done: no trap. The call ends as soon as such a pair is detached, and the flow may
    /// outlive this process ([`crate::Ended::Detached`]).
    pub fn closed() -> Until {
        Until::default()
    }

    /// Waits until a side sends payload. It is trapped whole: none of it reaches the other end. The end of the side's
    /// stream alone (FIN) is not payload, and passes. This is the papers' example of HTTP/1.1 (section III-D), and costs
    /// the kernel half a comparison of sequence numbers.
    pub fn data_from(side: Side) -> Until {
        Until::data_beyond(side, 0)
    }

    /// Waits until a side sends payload beyond its next so many bytes, which pass: a request whose length the handler
    /// knows and which it has not read, then the reply, until the next request.
    pub fn data_beyond(side: Side, bytes: u64) -> Until {
        let mut until = Until::default();
        until.budgets[side] = Some(bytes);
        until.beyond[side] = true;
        until
    }

    /// Waits until either side sends payload.
    pub fn data() -> Until {
        Until::data_from(Side::Client).or(Until::data_from(Side::Server))
    }

    /// Waits until so many payload bytes of a side have passed: exactly so many, later ones are trapped. (With 0, it is
    /// [`Until::data_from`].)
    pub fn bytes_from(side: Side, bytes: u64) -> Until {
        Until {
            beyond: PerSide::both(bytes == 0),
            ..Until::data_beyond(side, bytes)
        }
        .tidy()
    }

    /// Clears `beyond` of sides without a budget, so that equal conditions compare equal.
    fn tidy(mut self) -> Until {
        for side in Side::BOTH {
            self.beyond[side] &= self.budgets[side].is_some();
        }
        self
    }

    /// Waits until this much time has passed since the call, in whole milliseconds at best. Segments that are in flight
    /// then arrive at the ends; later ones go to the sockets.
    pub fn elapsed(time: Duration) -> Until {
        Until {
            elapsed: Some(time),
            ..Until::default()
        }
    }

    /// Waits until nothing has passed in either direction for this long. (A spliced flow is looked at every 250 ms: it
    /// may be that much late.)
    pub fn idle(time: Duration) -> Until {
        Until {
            idle: Some(time),
            ..Until::default()
        }
    }

    /// Waits until the rest of a predecessor's conditions has passed. For each side: a number of bytes (`None`: all), and
    /// true if payload beyond them was the condition rather than the last one of them. Data beyond a budget is not read,
    /// and brings nothing back. Met as soon as a budget of the other kind has passed, or when neither side may send any
    /// more.
    pub(crate) fn rest(budgets: PerSide<Option<(u64, bool)>>) -> Until {
        Until {
            budgets: budgets.map(|b| b.map(|(bytes, _)| bytes)),
            beyond: budgets.map(|b| b.is_some_and(|(_, beyond)| beyond)),
            is_rest: true,
            ..Until::default()
        }
    }

    /// Waits until one or the other is met; of two conditions of one kind, until the nearer one.
    #[must_use]
    pub fn or(self, other: Until) -> Until {
        fn nearer<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        }
        let budgets = PerSide::from_fn(|side| {
            let of = |u: &Until| u.budgets[side].map(|n| (n, u.beyond[side]));
            nearer(of(&self), of(&other))
        });
        Until {
            budgets: budgets.map(|b| b.map(|(n, _)| n)),
            beyond: budgets.map(|b| b.is_some_and(|(_, beyond)| beyond)),
            elapsed: nearer(self.elapsed, other.elapsed),
            idle: nearer(self.idle, other.idle),
            is_rest: self.is_rest || other.is_rest,
        }
    }

    /// Returns true if each has a condition of one kind: only the nearer one would count.
    fn overlaps(&self, other: &Until) -> bool {
        Side::BOTH
            .iter()
            .any(|&side| self.budgets[side].is_some() && other.budgets[side].is_some())
            || (self.elapsed.is_some() && other.elapsed.is_some())
            || (self.idle.is_some() && other.idle.is_some())
    }

    /// Sets a side's payload condition to payload beyond its next so many bytes; the others stay.
    #[must_use]
    pub fn with_data_beyond(mut self, side: Side, bytes: u64) -> Until {
        self.budgets[side] = Some(bytes);
        self.beyond[side] = true;
        self
    }

    /// Returns true if there is no trap.
    pub fn is_closed(&self) -> bool {
        *self == Until::default()
    }

    /// Returns the number of payload bytes of a side that may pass, 0 to 2^64 − 1; `None`: all.
    pub fn budget(&self, side: Side) -> Option<u64> {
        self.budgets[side]
    }

    /// Returns true if payload beyond the budget of a side brings control back, rather than the end of the budget.
    pub fn is_data(&self, side: Side) -> bool {
        self.beyond[side]
    }

    /// Returns true if it is a predecessor's.
    pub(crate) fn is_rest(&self) -> bool {
        self.is_rest
    }

    /// Returns the time that may pass.
    pub fn time(&self) -> Option<Duration> {
        self.elapsed
    }

    /// Returns the idle time that may pass.
    pub fn idleness(&self) -> Option<Duration> {
        self.idle
    }
}

/// Reason that a pair came back. Of several conditions that are met at the same time: the first in this order, but
/// `Admin` before those of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Trap {
    /// The budget of the client's stream is used up, and has passed; or, with a budget of 0, there is payload.
    Client,
    /// The budget of the server's stream is used up, and has passed; or, with a budget of 0, there is payload.
    Server,
    /// The time is over.
    Elapsed,
    /// Nothing has passed for the time that was set.
    Idle,
    /// A request asked for it ([`crate::Splicer::request_unsplice`]), or a trap was met that a predecessor had set.
    Admin,
}

longsplice_core::named!(pub Trap);

impl Trap {
    pub(crate) fn of(side: Side) -> Trap {
        match side {
            Side::Client => Trap::Client,
            Side::Server => Trap::Server,
        }
    }
}

/// Names a condition that could not be read, and the accepted ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{part}` {wrong}: use data, data=SIDE, data=SIDE:BYTES, bytes=SIDE:BYTES (such as bytes=server:1MiB; {BYTE_UNITS}), \
     after=DURATION or idle=DURATION (such as idle=10s), joined by commas; SIDE is client or server"
)]
pub struct ParseUntilError {
    part: String,
    wrong: &'static str,
}

impl FromStr for Until {
    type Err = ParseUntilError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.split(',')
            .map(str::trim)
            .try_fold(Until::closed(), |all, part| {
                let fail = |wrong| ParseUntilError {
                    part: part.to_owned(),
                    wrong,
                };
                let one = parse_condition(part).ok_or_else(|| fail("is no condition"))?;
                match all.overlaps(&one) {
                    true => Err(fail("is a second condition of one kind, or of one side's bytes")),
                    false => Ok(all.or(one)),
                }
            })
    }
}

fn parse_condition(s: &str) -> Option<Until> {
    let side = |name| match name {
        "client" => Some(Side::Client),
        "server" => Some(Side::Server),
        _ => None,
    };
    match s.split_once('=') {
        None if s == "data" => Some(Until::data()),
        Some(("data", rest)) => match rest.split_once(':') {
            None => side(rest).map(Until::data_from),
            Some((name, count)) => Some(Until::data_beyond(side(name)?, parse_bytes(count)?)),
        },
        Some(("bytes", rest)) => {
            let (name, count) = rest.split_once(':')?;
            Some(Until::bytes_from(side(name)?, parse_bytes(count)?))
        }
        Some(("after", time)) => parse_duration(time).map(Until::elapsed),
        Some(("idle", time)) => parse_duration(time).map(Until::idle),
        _ => None,
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (side, name) in Side::BOTH.into_iter().zip(["client", "server"]) {
            match (self.budgets[side], self.beyond[side]) {
                (Some(0), _) => parts.push(format!("data={name}")),
                (Some(n), true) => parts.push(format!("data={name}:{n}")),
                (Some(n), false) => parts.push(format!("bytes={name}:{n}")),
                (None, _) => {}
            }
        }
        for (time, name) in [(self.elapsed, "after"), (self.idle, "idle")] {
            if let Some(time) = time {
                parts.push(format!(
                    "{name}={}",
                    longsplice_core::policy::FormatDuration(time)
                ));
            }
        }
        f.write_str(&parts.join(","))
    }
}

longsplice_core::as_text!(Until);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_read_back_what_they_write() {
        for s in [
            "data=client",
            "data=server",
            "data=client,data=server",
            "data=client:1000,bytes=server:1",
            "bytes=client:1,bytes=server:1048576,after=5s,idle=250ms",
        ] {
            assert_eq!(s.parse::<Until>().unwrap().to_string(), s);
        }
        assert_eq!("data".parse(), Ok(Until::data()));
        assert_eq!(
            "idle=1s, data".parse(),
            Ok(Until::idle(Duration::from_secs(1)).or(Until::data()))
        );
        assert_eq!(
            "bytes=server:2MiB".parse(),
            Ok(Until::bytes_from(Side::Server, 2 << 20))
        );
    }

    #[test]
    fn what_is_no_condition_is_named_with_the_remedy() {
        for s in [
            "",
            "data=",
            "data=me",
            "bytes=client",
            "bytes=client:x",
            "after=x",
            "idle",
            "closed",
        ] {
            let e = s.parse::<Until>().unwrap_err().to_string();
            assert!(e.contains("idle=DURATION"), "{e}");
        }
    }

    #[test]
    fn of_two_conditions_of_one_kind_the_second_is_refused() {
        for (s, named) in [
            ("data,data", "`data`"),
            ("data, bytes=server:1", "`bytes=server:1`"),
            ("data=client:5,data=server,data=client", "`data=client`"),
            ("after=1m,after=2m", "`after=2m`"),
            ("idle=1s, idle=2s", "`idle=2s`"),
        ] {
            let e = s.parse::<Until>().unwrap_err().to_string();
            assert!(
                e.starts_with(&format!("{named} is a second condition")),
                "{s}: {e}"
            );
        }
    }
}
