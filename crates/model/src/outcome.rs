//! Defines the outcomes of a segment.

use super::segment::Segment;

/// Counterpart of `enum ls_verdict`, without the verdicts on packets that cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The segment is not ours: up the stack, or out of it, unchanged.
    Next,
    /// To the local socket, unchanged or in the socket's own numbers.
    Delivered,
    /// Translated and sent on.
    Forwarded,
    /// Drain: forwarded, and a copy to the local socket.
    Shared,
    /// Drain: to the local socket only.
    LocalOnly,
    /// Nothing new for either receiver.
    Absorbed,
    /// A local socket's segment, unchanged.
    Emitted,
    /// A local socket's segment with another window, acknowledgement or TSval.
    Clamped,
    /// A new connection took over the tuple of a closing flow.
    SynReplaced,
    /// A local SYN to a live tuple is answered with a reset.
    SynRefused,
    /// A local socket was reset while the flow needed it.
    Aborted,
    /// User space keeps the segment until there is a socket for it.
    Held,
    /// The flow's mode or place changed: the segment must come in once more.
    Again,
    /// Sequence numbers that the far end neither offers nor offered lately.
    DropWindow,
    /// No acknowledgement, or one that its sender cannot mean.
    DropAck,
    /// Payload behind a gap, with a TSecr that was not sent to its sender.
    DropEcho,
    /// A SYN on a live flow, beyond the limit of such SYNs.
    DropSyn,
    /// Segment of a parked or closed socket.
    DropParked,
}

/// Destinations of a segment and its copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Verdict that is counted.
    pub verdict: Verdict,
    /// Ingress: segment to the far end.
    pub far: Option<Segment>,
    /// Ingress: segment to the local socket of the peer's leg. Egress, of a refused SYN: the answer to the local
    /// socket.
    pub local: Option<Segment>,
    /// Egress: segment to the peer.
    pub wire: Option<Segment>,
    /// Ingress: segment to user space, which has to inject it later.
    pub held: Option<Segment>,
    /// Ingress: copy to user space, which may read it.
    pub copy: Option<Segment>,
    /// Ingress: segment that comes in once more, for [`Passage::acknowledgement`](super::Passage::acknowledgement).
    pub acknowledge: Option<Segment>,
    /// True if the segment woke the pair.
    pub woken: bool,
}

impl Outcome {
    /// Makes the outcome of a segment that goes nowhere.
    pub(super) fn of(verdict: Verdict) -> Outcome {
        Outcome {
            verdict,
            far: None,
            local: None,
            wire: None,
            held: None,
            copy: None,
            acknowledge: None,
            woken: false,
        }
    }

    pub(super) fn far(verdict: Verdict, segment: Segment) -> Outcome {
        Outcome {
            far: Some(segment),
            ..Outcome::of(verdict)
        }
    }

    pub(super) fn local(verdict: Verdict, segment: Segment) -> Outcome {
        Outcome {
            local: Some(segment),
            ..Outcome::of(verdict)
        }
    }

    pub(super) fn wire(verdict: Verdict, segment: Segment) -> Outcome {
        Outcome {
            wire: Some(segment),
            ..Outcome::of(verdict)
        }
    }

    pub(super) fn held(segment: Segment) -> Outcome {
        Outcome {
            held: Some(segment),
            ..Outcome::of(Verdict::Held)
        }
    }
}
