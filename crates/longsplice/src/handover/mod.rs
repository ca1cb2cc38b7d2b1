//! Hands listening sockets from one process to the next, so that no connection is refused in between: from a running
//! predecessor over the admin socket (`--replace`), or from a process that holds them (socket activation).
//!
//! Both processes have the same sockets for a while, and each of them accepts from the same queues. The predecessor stops
//! once its successor says that it serves, and has been told that it may; if the successor ends before that, nothing has
//! changed. A successor that is not told ends, as long as its predecessor lives: one of them serves in the end.

mod descriptors;
mod inherited;
mod predecessor;
mod successor;

use std::{io, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};

pub(crate) use inherited::Inherited;
pub(crate) use predecessor::{Departure, Handover, Offer};
pub(crate) use successor::{Succession, request};

/// Name of the protocol, in the header `Upgrade`.
pub(crate) const PROTOCOL: &str = "longsplice-handover/2";

/// Longest time for an answer of the predecessor.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Word of the successor: it serves.
const SERVES: u8 = b'R';

/// Answer of the predecessor: it stops.
const STOPS: u8 = b'S';

/// Head of an offer. The descriptors follow in this order, and the lock of the instance.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// Number of the predecessor's process.
    pid: u32,
    sockets: Vec<Described>,
    /// True if it cannot splice. Versions that do not say so may splice.
    #[serde(default)]
    relays: bool,
}

/// Description of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Described {
    /// Address that the configuration names.
    configured: SocketAddr,
    /// Address that it is bound to.
    bound: SocketAddr,
}

/// Reason why the sockets of a predecessor could not be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoverError {
    /// The predecessor refuses.
    #[error("the running daemon does not hand over its sockets: {0}")]
    Refused(String),
    /// The predecessor has waited for too long, or ends by itself.
    #[error(
        "the running daemon (process {0}) does not stop for this one: it had waited for too long, or is ending by itself"
    )]
    GivenUp(u32),
    /// The predecessor is of a version that cannot do it, or broke off.
    #[error(
        "the running daemon did not hand over its sockets ({0}): stop it, and start this one without --replace"
    )]
    Io(io::Error),
    /// The predecessor is stopped, or does not come to answer.
    #[error(
        "the running daemon did not answer within {} s: it hangs, or is stopped (SIGSTOP); `ps -C longsplice -o pid,stat,args` shows it. \
         Continue it (SIGCONT), or end it and start this one without --replace",
        TIMEOUT.as_secs()
    )]
    Silent,
}

impl From<io::Error> for HandoverError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HandoverError::Silent,
            _ => HandoverError::Io(error),
        }
    }
}
