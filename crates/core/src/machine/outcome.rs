//! What becomes of a segment.

use super::segment::Segment;

/// Counterpart of `enum ls_verdict`, as far as it does not speak of packets that cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// None of ours: up the stack, or out of it, untouched.
    Next,
    /// To the local socket, as it came or in the socket's own numbers.
    Delivered,
    /// Translated and sent on.
    Forwarded,
    /// Drain: forwarded, and a copy to the local socket.
    Shared,
    /// Drain: to the local socket only.
    LocalOnly,
    /// Nothing new for anybody.
    Absorbed,
    /// A local socket's segment, as it was.
    Emitted,
    /// A local socket's segment with another window, acknowledgement or TSval.
    Clamped,
    /// A new connection took over the tuple of a closing flow.
    SynReplaced,
    /// A local SYN onto a live tuple is answered with a reset.
    SynRefused,
    /// A local socket was reset while the flow needed it.
    Aborted,
    /// User space keeps it until there is a socket for it.
    Held,
    /// The flow changed under it: it must come in once more.
    Again,
    /// Sequence numbers that the far end neither offers nor had lately.
    DropWindow,
    /// It acknowledges nothing, or what its sender cannot mean.
    DropAck,
    /// Payload behind a gap, that echoes no timestamp its sender was sent.
    DropEcho,
    /// A SYN on a live flow, of which too many come.
    DropSyn,
    /// The emission of a parked or closed socket.
    DropParked,
}

/// Where a segment, or a copy of it, goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// What is counted.
    pub verdict: Verdict,
    /// Ingress: to the far end.
    pub far: Option<Segment>,
    /// Ingress: to the local socket of the peer's leg. Egress, of a refused SYN: the answer to the local socket.
    pub local: Option<Segment>,
    /// Egress: to the peer.
    pub wire: Option<Segment>,
    /// Ingress: to user space, which has to inject it later.
    pub held: Option<Segment>,
    /// Ingress: to user space, which may look at it.
    pub copy: Option<Segment>,
    /// Ingress: comes in once more, for [`Passage::acknowledgement`](super::Passage::acknowledgement).
    pub acknowledge: Option<Segment>,
    /// It woke the pair.
    pub woken: bool,
}

impl Outcome {
    /// Nothing goes anywhere.
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
