//! Defines why a call leaves a state for its end.

use std::io;

use crate::{api::Trap, relay::pump::Broken};

/// Reason that a call comes to its end.
#[derive(Debug)]
pub(super) enum Exit {
    /// Both streams have ended in order.
    Finished,
    /// An end was reset, or the system failed: reset the other end.
    Broken(io::Error),
    /// A condition of the caller is met.
    Trapped(Trap),
    /// Nothing has passed in the relay for too long: reset both ends.
    Idle,
}

impl Exit {
    /// Returns the error for the end of a shutdown's grace period.
    pub(super) fn stopped() -> Exit {
        io::Error::new(io::ErrorKind::Interrupted, "the daemon shuts down").into()
    }

    /// Returns the error for an end that has sent no acknowledgement for too long.
    pub(super) fn given_up() -> Exit {
        io::Error::new(io::ErrorKind::TimedOut, "an end acknowledges nothing").into()
    }

    /// Returns the error for a reset of an end or a socket; `what` says of which.
    pub(super) fn reset(what: &'static str) -> Exit {
        io::Error::new(io::ErrorKind::ConnectionReset, what).into()
    }

    /// Returns the error for a flow that was ended on request.
    pub(super) fn asked() -> Exit {
        io::Error::new(io::ErrorKind::ConnectionAborted, "its end was asked for").into()
    }
}

impl From<Broken> for Exit {
    fn from(b: Broken) -> Self {
        Exit::Broken(b.error)
    }
}

impl From<io::Error> for Exit {
    fn from(e: io::Error) -> Self {
        Exit::Broken(e)
    }
}
