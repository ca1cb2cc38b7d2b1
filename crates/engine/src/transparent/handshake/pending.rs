//! Remembers a handshake under way: its segments, to send them again, and how far it has come.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use longsplice_core::seq::Seq;
use longsplice_dataplane::Leg;

use super::{
    following::Following,
    opening::{self, Opening, RST},
    step::Step,
    unheard::Unheard,
};
use crate::{FlowHandle, services::rules::RulePacket};

/// Addresses of a connection's ends: the client, the server.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// Returns the way of the client's segments.
pub(super) fn leg_of((peer, local): Ends) -> Leg {
    Leg { peer, local }
}

/// State of a handshake under way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) syn: Opening,
    pub(super) interface: u32,
    pub(super) since: Instant,
    /// Time at which the SYN was sent on ([`monotonic`]).
    pub(super) sent_at: u64,
    /// True if the client sent its SYN again: the answer belongs to either.
    pub(super) repeated: bool,
    pub(super) stage: Stage,
}

impl Pending {
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self.stage, Stage::Asked)
    }
}

/// Stage of a handshake.
#[derive(Debug)]
pub(super) enum Stage {
    /// The SYN was sent on, to be answered.
    Asked,
    /// The segments of both ends go on untouched.
    Passed,
    /// Both legs have sockets; the server hears of it when the client has acknowledged the answer.
    Unconfirmed(Box<Unconfirmed>),
    /// Both legs have sockets, or the client's has.
    Answered(Answered),
}

/// Holds the segments to send again if they are lost, and the time of the answer.
#[derive(Debug)]
pub(super) struct Answered {
    /// Segment to the client.
    pub(super) onward: Vec<u8>,
    /// Segment to the server; `None` if the kernel's own socket connects to it.
    pub(super) acknowledgement: Option<Vec<u8>>,
    /// Time at which the answer was built.
    pub(super) built_at: Instant,
    /// Time at which the answer was sent to the client; `None` once it was acknowledged, or sent again.
    pub(super) sent_at: Option<u64>,
    pub(super) handle: FlowHandle,
}

impl Answered {
    /// Returns true if the client was answered before its server.
    pub(super) fn is_early(&self) -> bool {
        self.acknowledgement.is_none()
    }

    /// Returns the segment to the client once more, with the present TSval: its echo tells when this one was sent.
    pub(super) fn again(&mut self) -> Vec<u8> {
        self.sent_at = None;
        let mut packet = self.onward.clone();
        let passed = u32::try_from(self.built_at.elapsed().as_millis()).unwrap_or(u32::MAX);
        // Without timestamps it stays as it is.
        let _ = opening::advance_clock(&mut packet, passed);
        packet
    }
}

/// A connection whose client has not acknowledged the answer yet.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) answered: Answered,
    pub(super) sockets: Unheard,
    pub(super) step: Step,
    /// Answer of the server, as it came in.
    pub(super) packet: RulePacket,
    /// Time at which the rules saw the client's acknowledgement. Until then there is none.
    pub(super) acknowledged_at: Option<Instant>,
    /// Time in which the sockets were built, and the answer sent on.
    pub(super) built_in: Duration,
    /// Number of the client's first byte.
    pub(super) seq: Seq,
    /// Number by which it acknowledges the answer.
    pub(super) ack: Seq,
}

impl Unconfirmed {
    /// Returns true if a segment acknowledges the answer, and nothing beyond.
    pub(super) fn is_confirmed_by(&self, segment: &Following) -> bool {
        segment.is_acknowledgement() && segment.ack == self.ack
    }

    /// Returns true if a segment has reset the client's socket.
    pub(super) fn is_reset_by(&self, segment: &Following) -> bool {
        segment.flags & RST != 0 && segment.seq == self.seq
    }
}
