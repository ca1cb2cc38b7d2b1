//! Types that a caller of the engine uses.

mod config;
pub(crate) mod handle;
mod info;
pub(crate) mod lingering_close;
pub(crate) mod until;

use std::{io, time::Duration};

use longsplice_core::{
    advisor::Thresholds,
    idle::IdlePolicy,
    limit::RateLimit,
    policy::{DetachPolicy, SplicePolicy},
    reason::RelayReason,
};
use longsplice_dataplane::{PerSide, Side, SuccessorAction};
use longsplice_repair::options;
use serde::{Deserialize, Serialize};
use tokio::{net::TcpStream, time::Instant};

pub use config::SplicerConfig;
pub use handle::FlowHandle;
pub use info::{
    Counters, DirectionInfo, FlowId, FlowInfo, FlowRuled, FlowState, Health, LegInfo, TransitionTimes,
};
pub use lingering_close::{LINGERING_CLOSE_TIMEOUT, lingering_close};
pub use until::{ParseUntilError, Trap, Until};

/// Holds two connected sockets, and how to join them.
///
/// Bytes that the handler has read from one socket and not written to the other are the handler's. Bytes that it writes
/// itself come before all that is forwarded. From the call of [`crate::Splicer::splice`] on, the engine owns the bytes
/// that wait in the sockets and those that come.
#[derive(Debug)]
pub struct Pair {
    /// Leg A: the initiator's.
    pub client: TcpStream,
    /// Leg B: the target's.
    pub server: TcpStream,
    /// Sets when to splice. Bytes and time count from the call.
    pub splice: SplicePolicy,
    /// Sets when to close the parked sockets; it happens earlier when memory, descriptors or `max_dormant` run short.
    pub detach: DetachPolicy,
    /// Sets who retransmits the segments in flight when the pair comes back.
    pub outstanding: Outstanding,
    /// Limits the rate of payload in each direction, the same relayed and spliced, and over returns. In a relayed pair,
    /// excess payload waits in the sockets. In a spliced pair it is dropped (`drop_rate`), and its sender slows down.
    /// Acknowledgements and other segments without payload are never held back.
    pub rate_limit: RateLimit,
    /// Limits how long a relayed pair may be idle; a spliced pair has [`SplicerConfig::idle_timeout`].
    pub idle: IdlePolicy,
    pub(crate) handle: Option<FlowHandle>,
    /// See [`Pair::with_successor`].
    pub(crate) successor: SuccessorAction,
    /// Rate-limit account carried over from other connections, by side: see [`Pair::with_paid`].
    pub(crate) paid: PerSide<u64>,
    /// Number of bytes that are known to come in this call.
    pub(crate) length: Option<u64>,
    /// See [`Pair::with_splice_min`].
    pub(crate) splice_min: Option<u64>,
    /// True if the pair is left out of the counters.
    pub(crate) is_trial: bool,
    /// State of an earlier call, for a pair that came back.
    pub(crate) before: Option<Before>,
    /// True if each socket's timestamp clock is the far end's.
    pub(crate) one_clock: bool,
    /// See [`Pair::with_acceleration`].
    pub(crate) acceleration: Option<Acceleration>,
    /// See [`Pair::with_reason`].
    pub(crate) reason: Option<RelayReason>,
}

/// Treats a pair as that of an accelerator (paper 004): it is relayed where two control loops carry it faster than one,
/// and spliced where they do not. The round-trip times of the handshakes ([`FlowHandle::note_round_trip`]) count until
/// the sockets have measured their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acceleration {
    /// Thresholds under which [`SplicePolicy::Auto`] splices it.
    pub thresholds: Thresholds,
    /// Longest time that a byte shall wait in the sockets of the relay, at the rate at which they drain.
    pub queue: Duration,
}

/// Selects who is responsible for segments that were forwarded and are not yet acknowledged when a pair comes back: the
/// two ways of the papers (section III-D of 002).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outstanding {
    /// Leaves them to the two ends until they are acknowledged. Retransmissions pass meanwhile, and later segments are
    /// acknowledged only then. The pair comes back at once.
    #[default]
    Await,
    /// Collects copies of them first, which takes about a round trip. Then the sockets acknowledge them and take over
    /// their retransmission, so that neither end depends on the other any more. Falls back to [`Outstanding::Await`] if
    /// that cannot be done within a few seconds (a reader that has stopped reading).
    Capture,
}

/// State of a pair from an earlier call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    pub(crate) id: FlowId,
    /// Addresses of both legs. A socket that has ended cannot return its own any more.
    pub(crate) legs: PerSide<LegInfo>,
    /// Time at which it was handed over first, and the payload bytes that have passed since, as the lists show them.
    pub(crate) since: Instant,
    pub(crate) counted: PerSide<u64>,
    /// True if it was spliced.
    pub(crate) spliced: bool,
    /// Its rate limit, and the account of that, by side: see [`longsplice_core::limit::Rate`].
    pub(crate) rate_limit: RateLimit,
    pub(crate) paid: PerSide<u64>,
    /// True for a side whose FIN was passed to the other end.
    pub(crate) half_closed: PerSide<bool>,
    /// `SO_COOKIE` of both sockets: they show whether the caller has put another socket in its place.
    pub(crate) cookies: PerSide<u64>,
    /// Time at which bytes passed last, and time at which the caller was given the pair.
    pub(crate) active: Instant,
    pub(crate) returned: Instant,
    /// Round-trip times of the legs, as far as they were measured: a socket that was built anew has none.
    pub(crate) round_trips: PerSide<Option<Duration>>,
}

impl Before {
    /// Longest time for which a caller may have the pair before its own activity counts.
    const AT_ONCE: Duration = Duration::from_secs(1);

    /// Returns the time at which bytes passed last, as far as that is known: the caller may have moved some itself.
    pub(crate) fn active(&self, now: Instant) -> Instant {
        match now.duration_since(self.returned) < Before::AT_ONCE {
            true => self.active,
            false => now,
        }
    }
}

impl Pair {
    /// Returns a pair under the default policies: `auto` and `after=1s`.
    pub fn new(client: TcpStream, server: TcpStream) -> Pair {
        Pair {
            client,
            server,
            splice: SplicePolicy::default(),
            detach: DetachPolicy::default(),
            outstanding: Outstanding::default(),
            rate_limit: RateLimit::default(),
            idle: IdlePolicy::default(),
            handle: None,
            successor: SuccessorAction::default(),
            paid: PerSide::both(0),
            length: None,
            splice_min: None,
            is_trial: false,
            before: None,
            one_clock: false,
            acceleration: None,
            reason: None,
        }
    }

    /// Sets the reason that is shown while the pair is relayed, until another one is known.
    #[must_use]
    pub fn with_reason(self, reason: RelayReason) -> Pair {
        Pair {
            reason: Some(reason),
            ..self
        }
    }

    /// Marks the sockets' timestamp clocks as those of the far ends, as nearly as they were set.
    pub(crate) fn with_one_clock(self) -> Pair {
        Pair {
            one_clock: true,
            ..self
        }
    }

    /// Treats the pair as an accelerator's, over all its returns.
    #[must_use]
    pub fn with_acceleration(self, acceleration: Acceleration) -> Pair {
        Pair {
            acceleration: Some(acceleration),
            ..self
        }
    }

    /// Sets the number of bytes, relayed in both directions together, from which on [`SplicePolicy::Auto`] considers a
    /// splice of a pair whose length is unknown. It considers one after 100 ms, too. Let relaying so many bytes cost as much
    /// as a splice: a pair that ends right afterwards has cost twice what it should at most. Without this call it is 256 KiB.
    #[must_use]
    pub fn with_splice_min(self, bytes: u64) -> Pair {
        Pair {
            splice_min: Some(bytes),
            ..self
        }
    }

    /// Sets how the pair comes back.
    #[must_use]
    pub fn with_outstanding(self, outstanding: Outstanding) -> Pair {
        Pair { outstanding, ..self }
    }

    /// Limits the pair to these rates.
    ///
    /// ```
    /// # use longsplice_engine::{Pair, limit::{ParseRateLimitError, Rate, RateLimit}};
    /// # fn limit(pair: Pair) -> Result<(), ParseRateLimitError> {
    /// // Downloads at 10 MB/s, as text or not; 256 KiB at once.
    /// let pair = pair.with_rate_limit("server=10MB/s,burst=256KiB".parse()?);
    /// let rate = Rate::new(10_000_000).map(|rate| rate.with_burst(256 << 10));
    /// assert_eq!(pair.rate_limit, RateLimit { server: rate, ..RateLimit::default() });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_rate_limit(self, rate_limit: RateLimit) -> Pair {
        Pair { rate_limit, ..self }
    }

    /// Sets keep-alive and a timeout for the pair while it is relayed and idle. The engine probes both ends, and resets
    /// them after too long an idle time ([`Summary::idle`]). Without this call it does neither. A pair with
    /// [`Pair::with_acceleration`] is spliced instead of reset.
    #[must_use]
    pub fn with_idle(self, idle: IdlePolicy) -> Pair {
        Pair { idle, ..self }
    }

    /// Continues the rate limit of another pair ([`Returned::paid`]): one limit for all that a client gets from several
    /// servers, one after the other. That pair had the same limit. A pair that came back keeps its own account instead, also if
    /// its limit is changed: it owes the same bytes.
    #[must_use]
    pub fn with_paid(self, paid: PerSide<u64>) -> Pair {
        Pair { paid, ..self }
    }

    /// Binds `handle` to the pair's flow, from the beginning of its call of [`crate::Splicer::splice`] on.
    #[must_use]
    pub fn with_handle(self, handle: &FlowHandle) -> Pair {
        Pair {
            handle: Some(handle.clone()),
            ..self
        }
    }

    /// Sets what the next process of the instance does if the flow meets a payload condition after this process has
    /// ended; that process knows nothing of the handler. Holds for one call of [`crate::Splicer::splice`], not for the
    /// next one of the pair that it returned.
    #[must_use]
    pub fn with_successor(self, successor: SuccessorAction) -> Pair {
        Pair { successor, ..self }
    }

    /// Promises that so many bytes come during this call, and none beyond a budget before the caller has the pair back.
    /// So [`SplicePolicy::Auto`] asks the advisor at once, without waiting to see whether the pair is worth a splice.
    /// Each end is offered a window of at most 32 KiB beyond its budget, so that its next data does not come to a socket
    /// by the megabyte before another splice takes hold. The caller must know the number.
    #[must_use]
    pub fn with_length(self, bytes: u64) -> Pair {
        Pair {
            length: Some(bytes),
            ..self
        }
    }

    /// Marks the pair as a trial, which only shows what a splice costs here. Its splices and bytes are left out of the
    /// [`Counters`]; its segments are not, since the kernel half counts them.
    #[must_use]
    pub fn for_trial(self) -> Pair {
        Pair {
            is_trial: true,
            ..self
        }
    }

    /// Sets the policy that says when to splice.
    #[must_use]
    pub fn with_splice(self, splice: SplicePolicy) -> Pair {
        Pair { splice, ..self }
    }

    /// Sets the policy that says when to detach.
    #[must_use]
    pub fn with_detach(self, detach: DetachPolicy) -> Pair {
        Pair { detach, ..self }
    }
}

/// Holds a pair that is in control mode again. Its sockets are ordinary ones: to be read, written, closed, pooled, or
/// spliced again, with each other (`splicer.splice(returned, …)`) or with others. An end may not have acknowledged all
/// that has passed. The kernel half sees to that, and lets a new splice wait for it ([`RelayReason::Unsettled`]).
///
/// Closing or dropping them resets their connections, so that a process that dies or gives up in the middle never makes
/// an unfinished stream look finished: [`Returned::set_reset_on_close`] ends that. `TCP_NODELAY` is on,
/// `TCP_NOTSENT_LOWAT` is 256 KiB, and urgent data is read inline (`SO_OOBINLINE`). Sockets of a detached flow are
/// rebuilt, and lose every other option of the handler, such as a congestion control, marks, TOS or buffer sizes. They
/// lose their measured round-trip times, too: they begin with a congestion window of 10 segments (papers' section III-D:
/// “a slow start is initiated”). They have no ECN (RFC 3168), which `TCP_REPAIR` cannot restore; so a pair with ECN that
/// has conditions is detached only when memory, descriptors or `max_dormant` run short.
#[derive(Debug)]
pub struct Returned {
    /// Leg A. Data that the client sent beyond the forwarded bytes is readable here.
    pub client: TcpStream,
    /// Leg B. Data that the server sent beyond the forwarded bytes is readable here.
    pub server: TcpStream,
    /// Condition that brought it back.
    pub why: Trap,
    /// Payload bytes that passed during this call: from the client, and from the server. With a budget of bytes exactly
    /// that many, on its side. Of a detached flow that is taken back by [`crate::Splicer::request_unsplice`]: since the
    /// beginning of the call in which it was detached, as in [`crate::FlowEnded`]; 0 if a predecessor detached it.
    pub passed: PerSide<u64>,
    /// Payload bytes of both directions among them that bypassed the sockets.
    pub bytes_spliced: u64,
    /// True if the pair was spliced during this call; else the condition was met in the relay.
    pub spliced: bool,
    /// Reason that the pair was not spliced, if it was not.
    pub relay_reason: Option<RelayReason>,
    /// Identity of the flow, kept if the same pair is spliced again.
    pub id: FlowId,
    pub(crate) splice: SplicePolicy,
    pub(crate) detach: DetachPolicy,
    pub(crate) outstanding: Outstanding,
    pub(crate) idle: IdlePolicy,
    pub(crate) splice_min: Option<u64>,
    pub(crate) handle: Option<FlowHandle>,
    pub(crate) is_trial: bool,
    pub(crate) acceleration: Option<Acceleration>,
    pub(crate) before: Before,
}

impl Returned {
    /// Returns the rate limit's account, by side: the time at which the limit has allowed all that has passed (see
    /// [`longsplice_core::limit::Rate`]), in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn paid(&self) -> PerSide<u64> {
        self.before.paid
    }

    /// Returns true if the end of a side's stream (FIN) was passed to the other end. That end may close its connection
    /// at any time, and takes no more bytes of this side: do not give it to another client.
    pub fn is_half_closed(&self, side: Side) -> bool {
        self.before.half_closed[side]
    }

    /// Sets whether closing either socket resets its connection (`SO_LINGER` with no time). Pass false before an orderly
    /// close.
    ///
    /// # Errors
    /// None is known for a TCP socket.
    pub fn set_reset_on_close(&self, on: bool) -> io::Result<()> {
        for socket in [&self.client, &self.server] {
            options::set_reset_on_close(socket, on)?;
        }
        Ok(())
    }
}

impl From<Returned> for Pair {
    fn from(r: Returned) -> Pair {
        Pair {
            client: r.client,
            server: r.server,
            splice: r.splice,
            detach: r.detach,
            outstanding: r.outstanding,
            rate_limit: r.before.rate_limit,
            idle: r.idle,
            handle: r.handle,
            successor: SuccessorAction::default(),
            paid: PerSide::both(0),
            length: None,
            splice_min: r.splice_min,
            is_trial: r.is_trial,
            before: Some(r.before),
            one_clock: false,
            acceleration: r.acceleration,
            reason: None,
        }
    }
}

/// Outcome of a call of [`crate::Splicer::splice`].
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "made once in a call, and taken apart at once"
)]
pub enum Ended {
    /// Both ends are done, in order or by a reset; the sockets are closed.
    Closed(Summary),
    /// A condition of the caller was met: the pair is back in control mode (papers' section III-D).
    Returned(Returned),
    /// The flow lives on in the kernel, without sockets and without this process. With a condition under which the pair
    /// is to come back, the call returns this only at a shutdown. Budgets of bytes stay armed then, and a flow that meets
    /// one waits for a successor ([`Pair::with_successor`]); conditions of time are forgotten.
    Detached(FlowId),
}

/// Sums up one call for a pair of connections.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// Identity of the flow.
    pub id: FlowId,
    /// Payload bytes from client to server.
    pub bytes_to_server: u64,
    /// Payload bytes from server to client.
    pub bytes_to_client: u64,
    /// Payload bytes of both directions that bypassed the sockets.
    #[serde(default)]
    pub bytes_spliced: u64,
    /// True if the pair was spliced at any time, in this call or before.
    pub spliced: bool,
    /// Reason that the pair was not spliced, if it was not.
    pub relay_reason: Option<RelayReason>,
    /// True if either end was reset.
    pub reset: bool,
    /// True if it was ended because nothing had passed for too long: in the relay ([`IdlePolicy`]), or spliced
    /// ([`SplicerConfig::idle_timeout`]); then each end is reset by its next segment.
    #[serde(default)]
    pub idle: bool,
    /// True if its records were removed before they were looked at, as a new connection took their place after its end: how it
    /// ended is not known.
    #[serde(default)]
    pub replaced: bool,
}

/// Says what happens to spliced flows when the splicer shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Leaves them in the kernel, where a successor adopts them. Pairs in control mode are reset after the grace period.
    KeepSpliced,
    /// Resets them too, and removes programs and pins.
    EndSpliced,
}

/// Reason that a request about one flow failed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no such flow.
    #[error("there is no flow {0}: `longsplice flows` lists them")]
    NoSuchFlow(FlowId),
    /// The flow is spliced already, or on the way there.
    #[error("flow {0} is spliced already")]
    AlreadySpliced(FlowId),
    /// The flow is in control mode already.
    #[error("flow {0} is not spliced")]
    NotSpliced(FlowId),
    /// The flow is about to end.
    #[error("flow {0} is ending: both ends have closed, or one was reset")]
    Ending(FlowId),
    /// The flow could not be brought back, for this reason: no room in `max_dormant`, no descriptor, or the kernel
    /// refused a socket. It is still spliced.
    #[error("flow {0} stays spliced: {1}")]
    CannotReturn(FlowId, String),
    /// The flow could not be spliced now, for this reason.
    #[error("flow {0} stays relayed ({1}): {why}", why = .1.explain())]
    StaysRelayed(FlowId, RelayReason),
    /// This splicer cannot splice.
    #[error("this instance cannot splice: {0}")]
    CannotSplice(String),
}
