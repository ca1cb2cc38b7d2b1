//! What the advisor is told of a leg.

use std::time::Duration;

use super::bytes_in;

/// A congestion control, as far as the advisor treats them differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    Cubic,
    /// Reno (RFC 5681).
    Reno,
    /// BBR of any version: its window follows the lowest RTT it knows.
    Bbr,
    /// Any other.
    Other,
}

impl From<&str> for CongestionControl {
    /// From the name that `TCP_CONGESTION` has for it.
    fn from(name: &str) -> Self {
        match name {
            "cubic" => CongestionControl::Cubic,
            "reno" => CongestionControl::Reno,
            _ if name.starts_with("bbr") => CongestionControl::Bbr,
            _ => CongestionControl::Other,
        }
    }
}

/// What one of the forwarder's sockets knows of its leg. "The peer" is the client or server at its end.
///
/// All but the rates stands in `TCP_INFO` (the field's name is given); the rates are differences of its
/// `bytes_received` over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegSample {
    /// The smoothed round-trip time (`rtt`); zero before the first sample.
    pub rtt: Duration,
    /// The lowest round-trip time of late (`min_rtt`), without queues and delayed ACKs.
    pub min_rtt: Option<Duration>,
    /// The congestion window of our socket, in segments (`snd_cwnd`).
    pub cwnd: u32,
    /// The slow start threshold of our socket, in segments (`snd_ssthresh`); `None` while it is infinite.
    pub ssthresh: Option<u32>,
    /// Payload bytes of a full segment (`snd_mss`).
    pub mss: u32,
    /// Whether our socket is repairing losses (`ca_state`).
    pub recovering: bool,
    /// The congestion control of our socket.
    pub congestion_control: CongestionControl,
    /// Payload bytes that our socket sent, with retransmissions (`bytes_sent`).
    pub bytes_sent: u64,
    /// Bytes in the relay that this leg has not taken yet: in our socket (`notsent_bytes`), read and not written, or not
    /// even read from the other leg's socket. If there are any, this leg is what limits the stream.
    pub waiting: u64,
    /// Payload bytes that our socket retransmitted (`bytes_retrans`).
    pub bytes_retransmitted: u64,
    /// Segments with payload that came from the peer (`data_segs_in`).
    pub segments_received: u32,
    /// Segments that came out of order (`rcv_ooopack`); 0 where the kernel does not tell.
    pub out_of_order: u32,
    /// Payload bytes per second that came from the peer since the sample before; 0 for the first.
    pub received_rate: u64,
    /// The highest `received_rate` so far, over times of at least an RTT; `received_rate` where it was not kept.
    pub received_peak: u64,
    /// The window that we offer to the peer, in bytes (`rcv_wnd`); `u32::MAX` where the kernel does not tell.
    pub receive_window: u32,
}

/// One byte or segment in so many lost makes a leg lossy. What CUBIC loses by its own probing is far less, unless the
/// path holds only a few segments.
const LOSSY: u64 = 500;

/// Fewer bytes or segments tell nothing of losses.
const LOSS_SEGMENTS: u32 = 200;

impl LegSample {
    /// The round-trip time without queues, as far as known: those behind a relay are its own, and end with it.
    pub(super) fn base_rtt(&self) -> Duration {
        self.min_rtt.unwrap_or(self.rtt).min(self.rtt)
    }

    /// How much the peer can have in flight, in bytes: a lower bound of its congestion window, estimated.
    pub(super) fn in_flight_estimate(&self) -> u64 {
        bytes_in(self.received_peak.max(self.received_rate), self.rtt).min(u64::from(self.receive_window))
    }

    /// Whether this leg loses so much, in either direction, that the distance of repair matters.
    pub(super) fn is_lossy(&self) -> bool {
        let enough_sent = self.bytes_sent >= u64::from(LOSS_SEGMENTS) * u64::from(self.mss);
        let loses_ours = enough_sent && self.bytes_retransmitted >= self.bytes_sent / LOSSY;
        let enough_received = self.segments_received >= LOSS_SEGMENTS;
        let loses_theirs = enough_received && self.holes() >= u64::from(self.segments_received) / LOSSY;
        loses_ours || loses_theirs
    }

    /// How many losses of the peer's segments lie behind what came out of order, estimated: each lets about a round
    /// trip's worth of segments arrive before the repair.
    fn holes(&self) -> u64 {
        let in_flight = self.in_flight_estimate() / u64::from(self.mss.max(1));
        u64::from(self.out_of_order) / in_flight.max(1)
    }
}
