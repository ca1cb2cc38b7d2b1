//! Defines the states that `TCP_INFO` reports, as enums.

/// State of a connection (RFC 9293 section 3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Open in both directions.
    Established,
    /// Our SYN is on its way.
    SynSent,
    /// The peer's SYN was answered.
    SynReceived,
    /// We sent a FIN, unacknowledged so far.
    FinWait1,
    /// Our FIN was acknowledged.
    FinWait2,
    /// Both FINs were seen; the record waits for stray segments.
    TimeWait,
    /// Not connected, or no longer.
    Closed,
    /// The peer sent its FIN, we did not.
    CloseWait,
    /// The peer sent its FIN, then we ours, unacknowledged so far.
    LastAck,
    /// A listener.
    Listen,
    /// Both sent a FIN at the same time; ours is unacknowledged so far.
    Closing,
    /// Number that this version does not know.
    Other(u8),
}

/// State of the congestion control of the sending side (`enum tcp_ca_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CongestionState {
    /// Nothing unusual.
    Open,
    /// Duplicate ACKs or SACK blocks were seen: reordering, or the beginning of loss.
    Disorder,
    /// The window is being reduced, on an ECN mark or a full local queue.
    Reduced,
    /// Fast recovery: segments were lost and are retransmitted.
    Recovery,
    /// A retransmission timeout has passed.
    Loss,
    /// Number that this version does not know.
    Other(u8),
}

impl CongestionState {
    /// Returns whether losses are being repaired ([`Recovery`](Self::Recovery) or [`Loss`](Self::Loss)).
    pub fn is_recovering(self) -> bool {
        matches!(self, CongestionState::Recovery | CongestionState::Loss)
    }
}

impl From<u8> for State {
    fn from(number: u8) -> Self {
        match number {
            1 => State::Established,
            2 => State::SynSent,
            3 => State::SynReceived,
            4 => State::FinWait1,
            5 => State::FinWait2,
            6 => State::TimeWait,
            7 => State::Closed,
            8 => State::CloseWait,
            9 => State::LastAck,
            10 => State::Listen,
            11 => State::Closing,
            other => State::Other(other),
        }
    }
}

impl From<u8> for CongestionState {
    fn from(number: u8) -> Self {
        match number {
            0 => CongestionState::Open,
            1 => CongestionState::Disorder,
            2 => CongestionState::Reduced,
            3 => CongestionState::Recovery,
            4 => CongestionState::Loss,
            other => CongestionState::Other(other),
        }
    }
}
