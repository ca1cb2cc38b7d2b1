//! Tells when the two sockets of a returned pair are independent, for the one toward the server.
//!
//! While bytes that bypassed the sockets are unacknowledged, their sender must keep them, and retransmits them before
//! anything else: later data of the server's socket waits behind a far end that may never answer. A reset of one socket
//! is a reset of both. So give only a settled connection to another client.

use std::sync::Arc;

use longsplice_dataplane::Leg;

use crate::{api::Returned, context::Context, flow::assess};

/// Ties a server's socket to the client that had it last.
#[derive(Debug, Clone)]
pub struct Tie {
    context: Arc<Context>,
    leg: Leg,
}

impl Tie {
    /// Returns `None` if the two sockets are parted.
    pub(crate) fn of(context: &Arc<Context>, returned: &Returned) -> Option<Tie> {
        let leg = assess::both(&returned.before.legs).ok()?.server;
        let context = Arc::clone(context);
        let is_parted = context.unpaired.part_leg(leg);
        (!is_parted).then_some(Tie { context, leg })
    }

    /// Parts the two sockets if both ends have acknowledged all that bypassed them. Returns true if they are parted: from
    /// then on neither end of the one affects the other. For a flow that was given up, with both its ends reset, it stays
    /// false.
    pub fn is_gone(&self) -> bool {
        let unpaired = &self.context.unpaired;
        unpaired.part_leg(self.leg) && unpaired.is_alone(self.leg)
    }
}
