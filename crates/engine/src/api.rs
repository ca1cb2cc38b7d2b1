//! What the caller of the engine sees.

mod config;
mod info;

use std::io;

use longsplice_core::{
    limit::RateLimit,
    policy::{DetachPolicy, SplicePolicy},
    reason::RelayReason,
};
use longsplice_dataplane::Successor;
use longsplice_repair::options;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

pub use config::SplicerConfig;
pub use info::{Counters, DirectionInfo, FlowId, FlowInfo, FlowState, Health, LegInfo, SwitchTimes};

use crate::{handle::FlowHandle, until::Trap};

/// Two connected sockets, and how they are to be joined.
///
/// What was read from a socket and not written to the other is the handler's; what it writes of its own comes before all
/// that is forwarded. From the call of [`crate::Splicer::splice`] on, the bytes that wait in the sockets and those that come are
/// the engine's.
#[derive(Debug)]
pub struct Pair {
    /// Leg A: the initiator's.
    pub client: TcpStream,
    /// Leg B: the target's.
    pub server: TcpStream,
    /// When to splice. Bytes and time count from the call.
    pub splice: SplicePolicy,
    /// When to let go of the parked sockets; earlier when memory, descriptors or `max_dormant` run short.
    pub detach: DetachPolicy,
    /// What becomes of segments that are on their way when it comes back.
    pub outstanding: Outstanding,
    /// How fast payload may pass, in each direction: the same relayed and spliced, and over returns. Of a relayed pair what is
    /// too fast waits in the sockets; of a spliced one it is dropped (`drop_rate`), and its sender slows down. Acknowledgements
    /// and all else without payload are never held back.
    pub rate_limit: RateLimit,
    pub(crate) handle: Option<FlowHandle>,
    /// See [`Pair::with_successor`].
    pub(crate) successor: Successor,
    /// What the limit has seen pass over other connections: see [`Pair::with_paid`].
    pub(crate) paid: [u64; 2],
    /// So many bytes more are known to come.
    pub(crate) length: Option<u64>,
    /// Nobody is told of it by the counters.
    pub(crate) is_trial: bool,
    /// Of a pair that came back.
    pub(crate) before: Option<Before>,
    /// The timestamp clock of each socket is the far end's.
    pub(crate) one_clock: bool,
}

/// What becomes of segments that were forwarded and are not yet acknowledged when a pair comes back: the two ways of the
/// papers (section III-D of 002).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outstanding {
    /// They stay the business of the two ends until they are acknowledged; retransmissions pass meanwhile, and what comes
    /// after them is acknowledged only then. The pair comes back at once.
    #[default]
    Await,
    /// Copies of them are collected first, which takes about a round trip; then the sockets acknowledge them and take over
    /// their retransmission, so that neither end depends on the other any more. Where that cannot be done within a few
    /// seconds (a reader that stands still), it is [`Outstanding::Await`].
    Capture,
}

/// What is known of a pair from an earlier call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    pub(crate) id: FlowId,
    /// Of both legs. A socket that has ended cannot tell any more.
    pub(crate) legs: [LegInfo; 2],
    /// Whether it was spliced.
    pub(crate) spliced: bool,
    /// Of its rate limit: see [`longsplice_core::limit::Rate`].
    pub(crate) paid: [u64; 2],
    /// `SO_COOKIE` of both sockets: the caller may have put another one in the place.
    pub(crate) cookies: [u64; 2],
}

impl Pair {
    /// A pair under the default policies: `auto` and `after=1s`.
    pub fn new(client: TcpStream, server: TcpStream) -> Pair {
        Pair {
            client,
            server,
            splice: SplicePolicy::default(),
            detach: DetachPolicy::default(),
            outstanding: Outstanding::default(),
            rate_limit: RateLimit::default(),
            handle: None,
            successor: Successor::default(),
            paid: [0; 2],
            length: None,
            is_trial: false,
            before: None,
            one_clock: false,
        }
    }

    /// The same pair, whose sockets' timestamp clocks are those of the far ends, as nearly as they were told.
    pub(crate) fn with_one_clock(self) -> Pair {
        Pair {
            one_clock: true,
            ..self
        }
    }

    /// The same pair, with this way back.
    #[must_use]
    pub fn with_outstanding(self, outstanding: Outstanding) -> Pair {
        Pair { outstanding, ..self }
    }

    /// The same pair, limited to these rates.
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

    /// The same pair, whose rate limit goes on where that of another pair stands ([`Returned::paid`]): one limit for what a
    /// client gets of several servers, one after the other. Of a pair that came back, its own account counts.
    #[must_use]
    pub fn with_paid(self, paid: [u64; 2]) -> Pair {
        Pair { paid, ..self }
    }

    /// The same pair, whose flow `handle` names from the beginning of its call of [`crate::Splicer::splice`] on.
    #[must_use]
    pub fn with_handle(self, handle: &FlowHandle) -> Pair {
        Pair {
            handle: Some(handle.clone()),
            ..self
        }
    }

    /// The same pair, with which this is done where a condition of payload is met after this process has ended: by the next one
    /// of the instance, which knows nothing of the handler. For one call of [`crate::Splicer::splice`], not for the next one of what
    /// that returned.
    #[must_use]
    pub fn with_successor(self, successor: Successor) -> Pair {
        Pair { successor, ..self }
    }

    /// The same pair, in which so many bytes are known to come during this call, and nothing behind a budget before the caller has
    /// it back: [`SplicePolicy::Auto`] asks the advisor at once, and does not wait to see whether it is worth that; and an end is
    /// offered a window of at most 32 KiB beyond its budget, so that what it says next does not come to a socket by the megabyte
    /// before another splice takes hold. It is the caller's to know how many are.
    #[must_use]
    pub fn with_length(self, bytes: u64) -> Pair {
        Pair {
            length: Some(bytes),
            ..self
        }
    }

    /// The same pair, which only shows what a splice costs here: its splices and bytes are not among the [`Counters`], but for the
    /// segments, which the kernel half counts.
    #[must_use]
    pub fn for_trial(self) -> Pair {
        Pair {
            is_trial: true,
            ..self
        }
    }

    /// The same pair, spliced when this policy says so.
    #[must_use]
    pub fn with_splice(self, splice: SplicePolicy) -> Pair {
        Pair { splice, ..self }
    }

    /// The same pair, detached when this policy says so.
    #[must_use]
    pub fn with_detach(self, detach: DetachPolicy) -> Pair {
        Pair { detach, ..self }
    }
}

/// A pair that is in control mode again. Its sockets are ordinary ones: to be read, written, closed, pooled, or spliced
/// again, with each other (`splicer.splice(returned, …)`) or with others. Something that passed may still be unacknowledged by an
/// end; the kernel half sees to that, and lets a new splice wait for it ([`RelayReason::Unsettled`]).
///
/// Closed or dropped, they reset their connections, so that a process that dies or gives up in the middle never makes a stream look
/// finished that is not: [`Returned::set_reset_on_close`] ends that. `TCP_NODELAY` is on, `TCP_NOTSENT_LOWAT` is 256 KiB, and
/// urgent data is read inline (`SO_OOBINLINE`). Sockets that were rebuilt, because the flow was detached, have nothing else of what the
/// handler had set, such as a congestion control, marks, TOS or buffer sizes, nor measured round-trip times: they begin with a
/// congestion window of 10 segments (papers' section III-D: “a slow start is initiated”). Nor have they ECN (RFC 3168), which
/// `TCP_REPAIR` cannot restore; so a pair with ECN that has conditions is detached only when memory, descriptors or
/// `max_dormant` run short.
#[derive(Debug)]
pub struct Returned {
    /// Leg A. What the client sent beyond what has passed is readable here.
    pub client: TcpStream,
    /// Leg B, likewise.
    pub server: TcpStream,
    /// Why it came back.
    pub why: Trap,
    /// Payload bytes that passed during this call: from the client, and from the server. With a budget of bytes exactly
    /// that many, on its side.
    pub passed: [u64; 2],
    /// Payload bytes of both among them that went past the sockets.
    pub bytes_spliced: u64,
    /// Whether it was spliced during this call; else the condition was met in the relay.
    pub spliced: bool,
    /// Why it was not, where it was not.
    pub relay_reason: Option<RelayReason>,
    /// Its identity, kept if the same pair is spliced again.
    pub id: FlowId,
    pub(crate) splice: SplicePolicy,
    pub(crate) detach: DetachPolicy,
    pub(crate) outstanding: Outstanding,
    pub(crate) rate_limit: RateLimit,
    pub(crate) handle: Option<FlowHandle>,
    pub(crate) is_trial: bool,
    pub(crate) before: Before,
}

impl Returned {
    /// When what has passed is worth its time at the rate limit, by side: see [`longsplice_core::limit::Rate`]; nanoseconds of
    /// `CLOCK_MONOTONIC`.
    pub fn paid(&self) -> [u64; 2] {
        self.before.paid
    }

    /// Whether a close of either socket resets its connection (`SO_LINGER` with no time). Say no before the last one.
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
            rate_limit: r.rate_limit,
            handle: r.handle,
            successor: Successor::default(),
            paid: [0; 2],
            length: None,
            is_trial: r.is_trial,
            before: Some(r.before),
            one_clock: false,
        }
    }
}

/// How a call of [`crate::Splicer::splice`] ended.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "made once in a call, and taken apart at once"
)]
pub enum Ended {
    /// Both ends are done, in order or by a reset; the sockets are closed.
    Closed(Summary),
    /// A condition of the caller was met: back in control mode (papers' section III-D).
    Returned(Returned),
    /// The flow lives on in the kernel, without sockets and without this process. Not before a shutdown, if there is a
    /// condition under which it is to come back: budgets of bytes stay armed then, and what meets one waits for a successor
    /// ([`Pair::with_successor`]); conditions of time are forgotten.
    Detached(FlowId),
}

/// What passed over a pair of connections during one call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// The flow's identity.
    pub id: FlowId,
    /// Payload bytes from client to server.
    pub bytes_to_server: u64,
    /// Payload bytes from server to client.
    pub bytes_to_client: u64,
    /// Of both, those that went past the sockets.
    #[serde(default)]
    pub bytes_spliced: u64,
    /// Whether it was spliced at any time, in this call or before.
    pub spliced: bool,
    /// Why it was not spliced, where it was not.
    pub relay_reason: Option<RelayReason>,
    /// Whether either end was reset.
    pub reset: bool,
}

/// What to do with spliced flows when the splicer shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// They run on in the kernel; a successor adopts them. Pairs in control mode are reset after the grace period.
    KeepSpliced,
    /// They are reset too, and programs and pins are removed.
    EndSpliced,
}

/// Why a request about one flow could not be done. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no such flow.
    #[error("there is no flow {0}: `longsplice flows` lists them")]
    NoSuchFlow(FlowId),
    /// It is spliced already, or on the way there.
    #[error("flow {0} is spliced already")]
    AlreadySpliced(FlowId),
    /// It is in control mode already.
    #[error("flow {0} is not spliced")]
    NotSpliced(FlowId),
    /// It is about to end.
    #[error("flow {0} is ending: both ends have closed, or one was reset")]
    Ending(FlowId),
    /// It could not be brought back, for this reason: no room in `max_dormant`, no descriptor, or the kernel refused a socket. It is
    /// spliced still.
    #[error("flow {0} stays spliced: {1}")]
    CannotReturn(FlowId, String),
    /// This splicer cannot splice.
    #[error("this instance cannot splice: {0}")]
    CannotSplice(String),
}
