//! Tells when the two sockets of a returned pair are independent, for the one toward the server.
//!
//! While bytes that bypassed the sockets are unacknowledged, their sender must keep them, and retransmits them before
//! anything else: later data of the server's socket waits behind a far end that may never answer. A reset of one socket
//! is a reset of both. So give only a settled connection to another client.

use longsplice_dataplane::Leg;

use crate::{api::Returned, legs, splicer::Splicer};

/// Ties a server's socket to the client that had it last.
#[derive(Debug, Clone)]
pub struct Tie {
    splicer: Splicer,
    leg: Leg,
}

impl Splicer {
    /// Returns the tie of the server's socket of a pair to the client's; `None`: there is none, the socket may be pooled.
    ///
    /// Ask again with [`Tie::is_gone`]. If an end never acknowledges what passed, the tie stays until both sockets are
    /// closed and the flow was given up: wait for it for a limited time.
    pub fn tie(&self, returned: &Returned) -> Option<Tie> {
        let [_, leg] = legs::both(&returned.before.legs).ok()?;
        let splicer = self.clone();
        let tie = Tie { splicer, leg };
        (!tie.part()).then_some(tie)
    }
}

impl Tie {
    /// Parts the two sockets if both ends have acknowledged all that bypassed them. Returns true if they are parted: from
    /// then on neither end of the one affects the other. For a flow that was given up, with both its ends reset, it stays
    /// false.
    pub fn is_gone(&self) -> bool {
        self.part() && self.splicer.inner.mapped.is_alone(self.leg)
    }

    fn part(&self) -> bool {
        let inner = &self.splicer.inner;
        let mut left = Vec::new();
        let parted = inner.mapped.part_leg(self.leg, &mut left);
        left.into_iter().for_each(|one| inner.settle_later(one));
        parted
    }
}
