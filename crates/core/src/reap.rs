//! Decides when the record of a spliced flow is removed.
//!
//! eBPF notes FINs, their acknowledgements and valid resets in the record; a task that walks the records asks here what
//! to do with each. A record outlives its close, because the ends may still retransmit: without it, a late FIN would
//! meet a host that knows nothing of the connection and answers with a reset.

use std::time::Duration;

use crate::side::PerSide;

/// Limit of the time for which a reset flow lingers: no end retransmits into it, but a segment that crossed the reset
/// may come.
pub const RESET_LINGER: Duration = Duration::from_secs(5);

/// Least idle time of a closed flow whose source port a new connection may take while the record lingers. Idle times are exact
/// to a tick of 1.07 s, so that at least one second has passed; Linux waits as long for its own sockets (`tcp_tw_reuse`).
pub const REUSE_AFTER: Duration = Duration::from_secs(2);

/// End of one direction of a flow, as far as it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectionEnd {
    /// True if the sender has sent its FIN.
    pub fin_seen: bool,
    /// True if the receiver has acknowledged that FIN.
    pub fin_acknowledged: bool,
    /// True if the sender has sent a reset that its receiver would accept (RFC 5961 section 3).
    pub reset_seen: bool,
}

/// End of a flow, as far as it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEnd {
    /// Both directions, in any order.
    pub directions: PerSide<DirectionEnd>,
    /// Time since the last segment passed, in either direction.
    pub idle: Duration,
}

impl FlowEnd {
    /// Returns whether both ends have closed in order, and have acknowledged each other's FIN.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.directions.iter().all(|d| d.fin_seen && d.fin_acknowledged)
    }

    /// Returns whether an end has reset the connection. A reset after both ends have closed only answers a late duplicate.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        !self.is_closed() && self.directions.iter().any(|d| d.reset_seen)
    }

    /// Returns whether the flow is closed or reset: only retransmissions can still come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_reset() || self.is_closed()
    }
}

/// Times for which records are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time for which a closed flow lingers: two maximum segment lifetimes (RFC 9293 section 3.6.1).
    pub record_ttl: Duration,
    /// Time for which an open flow may be idle.
    pub idle_timeout: Duration,
}

/// Verdict on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The record stays.
    Keep,
    /// The record is removed, for this reason.
    Reap(Reaped),
}

/// Reason for which a record is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    /// Both ends closed in order, and the flow has lingered.
    Closed,
    /// One end reset the connection, and the flow has lingered for a moment.
    Reset,
    /// Nothing passed for longer than the idle timeout; the ends were not told.
    Idle,
}

/// Decides about the record of a flow.
#[must_use]
pub fn verdict(end: &FlowEnd, limits: &Limits) -> Verdict {
    let (lingers, reaped) = if end.is_closed() {
        (limits.record_ttl, Reaped::Closed)
    } else if end.is_reset() {
        (limits.record_ttl.min(RESET_LINGER), Reaped::Reset)
    } else {
        (limits.idle_timeout, Reaped::Idle)
    };
    match end.idle >= lingers {
        true => Verdict::Reap(reaped),
        false => Verdict::Keep,
    }
}

/// Returns the time until a new connection may take the source port of a flow (RFC 6191); zero: it may now. `None`: it may not
/// while the record is there, because no close in order was seen at both ends.
#[must_use]
pub fn port_free_in(end: &FlowEnd) -> Option<Duration> {
    end.is_closed().then(|| REUSE_AFTER.saturating_sub(end.idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: DirectionEnd = DirectionEnd {
        fin_seen: false,
        fin_acknowledged: false,
        reset_seen: false,
    };
    const FIN: DirectionEnd = DirectionEnd {
        fin_seen: true,
        ..OPEN
    };
    const DONE: DirectionEnd = DirectionEnd {
        fin_acknowledged: true,
        ..FIN
    };
    const RESET: DirectionEnd = DirectionEnd {
        reset_seen: true,
        ..OPEN
    };

    /// The sender has answered a late duplicate with a reset.
    const ANSWERED: DirectionEnd = DirectionEnd {
        reset_seen: true,
        ..DONE
    };

    fn ask(directions: [DirectionEnd; 2], idle_s: u64) -> Verdict {
        let limits = Limits {
            record_ttl: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(3600),
        };
        let answer = verdict(
            &FlowEnd {
                directions: directions.into(),
                idle: Duration::from_secs(idle_s),
            },
            &limits,
        );
        let [a, b] = directions;
        let mirrored = FlowEnd {
            directions: PerSide::new(b, a),
            idle: Duration::from_secs(idle_s),
        };
        assert_eq!(verdict(&mirrored, &limits), answer, "the directions are alike");
        answer
    }

    #[test]
    fn each_end_has_its_time() {
        use Reaped::*;
        for (directions, idle_s, expected) in [
            ([OPEN, OPEN], 3599, Verdict::Keep),
            ([OPEN, OPEN], 3600, Verdict::Reap(Idle)),
            ([DONE, OPEN], 61, Verdict::Keep), // half closed is normal
            ([DONE, FIN], 61, Verdict::Keep),  // the last FIN is still retransmitted
            ([DONE, FIN], 3600, Verdict::Reap(Idle)),
            ([DONE, DONE], 59, Verdict::Keep),
            ([DONE, DONE], 60, Verdict::Reap(Closed)),
            ([RESET, OPEN], 4, Verdict::Keep),
            ([RESET, OPEN], 5, Verdict::Reap(Reset)),
            ([RESET, DONE], 5, Verdict::Reap(Reset)),
            ([ANSWERED, DONE], 59, Verdict::Keep),
            ([ANSWERED, DONE], 60, Verdict::Reap(Closed)),
        ] {
            assert_eq!(
                ask(directions, idle_s),
                expected,
                "{directions:?} after {idle_s} s"
            );
        }
    }

    #[test]
    fn only_a_flow_that_was_closed_in_order_a_while_ago_gives_its_port() {
        let secs = Duration::from_secs;
        for (directions, idle_s, expected) in [
            ([OPEN, OPEN], 3600, None),
            ([DONE, OPEN], 3600, None),
            ([DONE, FIN], 59, None), // the last FIN may still be retransmitted
            ([RESET, OPEN], 4, None),
            ([RESET, DONE], 59, None),
            ([DONE, DONE], 0, Some(secs(2))),
            ([DONE, DONE], 1, Some(secs(1))),
            ([DONE, DONE], 2, Some(secs(0))),
            ([DONE, DONE], 59, Some(secs(0))),
            ([ANSWERED, DONE], 2, Some(secs(0))),
        ] {
            let [a, b] = directions;
            for directions in [PerSide::new(a, b), PerSide::new(b, a)] {
                let idle = secs(idle_s);
                let end = FlowEnd { directions, idle };
                assert_eq!(port_free_in(&end), expected, "{end:?}");
            }
        }
    }

    #[test]
    fn a_linger_below_five_seconds_bounds_that_of_a_reset() {
        let limits = Limits {
            record_ttl: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(3600),
        };
        let end = FlowEnd {
            directions: PerSide::new(RESET, OPEN),
            idle: Duration::from_secs(2),
        };
        assert_eq!(verdict(&end, &limits), Verdict::Reap(Reaped::Reset));
    }
}
