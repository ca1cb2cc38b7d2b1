//! Defines why a phase of a call ends without the next one.

use std::io;

use crate::{pump::Broken, until::Trap};

/// Reason that a phase ended without the next one.
#[derive(Debug)]
pub(crate) enum Over {
    /// Both streams have ended in order.
    Finished,
    /// An end was reset, or the system failed: reset the other end.
    Broken(io::Error),
    /// A condition of the caller is met.
    Trapped(Trap),
    /// Nothing has passed in the relay for too long: reset both ends.
    Idle,
}

impl Over {
    /// Returns the error for the end of a shutdown's grace period.
    pub(crate) fn stopped() -> Over {
        io::Error::new(io::ErrorKind::Interrupted, "the daemon shuts down").into()
    }

    /// Returns the error for an end that has sent no acknowledgement for too long.
    pub(crate) fn given_up() -> Over {
        io::Error::new(io::ErrorKind::TimedOut, "an end acknowledges nothing").into()
    }

    /// Returns the error for a reset of an end or a socket; `what` says of which.
    pub(crate) fn reset(what: &'static str) -> Over {
        io::Error::new(io::ErrorKind::ConnectionReset, what).into()
    }

    /// Returns the error for a flow that was ended on request.
    pub(crate) fn asked() -> Over {
        io::Error::new(io::ErrorKind::ConnectionAborted, "its end was asked for").into()
    }
}

impl From<Broken> for Over {
    fn from(b: Broken) -> Self {
        Over::Broken(b.error)
    }
}

impl From<io::Error> for Over {
    fn from(e: io::Error) -> Self {
        Over::Broken(e)
    }
}
