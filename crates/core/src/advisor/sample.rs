//! Defines the sample of a leg on which the advisor decides.

use std::time::Duration;

use super::{StandingQueue, bytes_in};

/// Congestion control, as far as the advisor treats them differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    Cubic,
    /// Reno (RFC 5681).
    Reno,
    /// BBR of any version: its window follows the lowest RTT that it has measured.
    Bbr,
    /// Another one.
    Other,
}

impl CongestionControl {
    /// Returns the share of its window, in percent, that a sender keeps at a loss; `None` if losses do not guide it.
    pub(super) fn kept_at_loss(self) -> Option<u64> {
        match self {
            CongestionControl::Cubic => Some(70),
            CongestionControl::Reno | CongestionControl::Other => Some(50),
            CongestionControl::Bbr => None,
        }
    }
}

impl From<&str> for CongestionControl {
    /// Reads the name that `TCP_CONGESTION` has for it.
    fn from(name: &str) -> Self {
        match name {
            "cubic" => CongestionControl::Cubic,
            "reno" => CongestionControl::Reno,
            _ if name.starts_with("bbr") => CongestionControl::Bbr,
            _ => CongestionControl::Other,
        }
    }
}

/// State of one of the forwarder's sockets. "The peer" is the client or server at the end of its leg.
///
/// All fields but the rates stand in `TCP_INFO` (the field's name is given); the rates are differences of its
/// `bytes_received` over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegSample {
    /// Smoothed round-trip time (`rtt`); zero before the first sample.
    pub rtt: Duration,
    /// Lowest recent round-trip time (`min_rtt`), without queues and delayed ACKs.
    pub min_rtt: Option<Duration>,
    /// Congestion window of our socket, in segments (`snd_cwnd`).
    pub cwnd: u32,
    /// Slow start threshold of our socket, in segments (`snd_ssthresh`); `None` while it is infinite.
    pub ssthresh: Option<u32>,
    /// Payload bytes of a full segment (`snd_mss`).
    pub mss: u32,
    /// True if our socket is repairing losses (`ca_state`).
    pub recovering: bool,
    /// Congestion control of our socket.
    pub congestion_control: CongestionControl,
    /// Payload bytes that our socket sent, with retransmissions (`bytes_sent`).
    pub bytes_sent: u64,
    /// Bytes in the relay that this leg has not taken yet: in our socket (`notsent_bytes`), read and not written, or
    /// not even read from the other leg's socket. If there are any, this leg limits the stream.
    pub waiting: u64,
    /// Segments of our socket that the peer acknowledged (`delivered`).
    pub delivered: u32,
    /// Payload bytes that our socket retransmitted (`bytes_retrans`).
    pub bytes_retransmitted: u64,
    /// Segments with payload that came from the peer (`data_segs_in`).
    pub segments_received: u32,
    /// Segments that came out of order (`rcv_ooopack`); 0 if the kernel does not tell.
    pub out_of_order: u32,
    /// Payload bytes per second that came from the peer since the previous sample; 0 for the first.
    pub received_rate: u64,
    /// `received_rate` of the samples before, the latest first; 0 where there was none.
    pub received_earlier: [u64; EARLIER_SPANS],
    /// Highest `received_rate` so far, over times of at least an RTT; `received_rate` if it was not kept.
    pub received_peak: u64,
    /// Window that we offer to the peer, in bytes (`rcv_wnd`); `u32::MAX` if the kernel does not tell.
    pub receive_window: u32,
    /// Receive buffer, in bytes of memory: payload takes about half of it (`SO_RCVBUF`). 0 if it was not asked for.
    pub receive_buffer: u32,
    /// Window that the peer offers to us, in bytes (`snd_wnd`); `u32::MAX` if the kernel does not tell.
    pub peer_window: u32,
    /// Share of the last samples in which our send buffer was the limit, in percent, the latest ones with the most weight.
    pub send_buffer_limited: u32,
    /// True if the peer has sent later than our socket: the stream has come through this leg's queue.
    pub receives: bool,
    /// Queue that stands on this leg, if one does ([`QueueWatch`](super::QueueWatch)).
    pub standing_queue: Option<StandingQueue>,
}

/// Rate of losses that makes a leg lossy: one byte or segment in this many. CUBIC loses far less by its own probing,
/// unless the path holds only a few segments.
pub const LOSSY: u64 = 500;

/// Spans before the last one whose rates are known. A stream that begins or ends fills its span in part; of three in a row
/// that it touches, one is whole.
pub const EARLIER_SPANS: usize = 2;

/// Number of segments below which losses are not judged.
pub const LOSS_SEGMENTS: u32 = 200;

/// Segments that a connection may send in its first round trip (RFC 6928). A sender that needs no more in each round
/// trip loses nothing by a splice.
const INITIAL_WINDOW: u64 = 10;

impl LegSample {
    /// Returns whether the peer needs more than an initial window in each round trip of the whole path.
    pub(super) fn sends_bulk(&self, path: Duration) -> bool {
        self.is_bulk(self.received_rate, path)
    }

    /// Returns whether the peer needed more than that in each of the last spans.
    pub(super) fn sent_bulk_lately(&self, path: Duration) -> bool {
        let mut earlier = self.received_earlier.into_iter();
        self.sends_bulk(path) && earlier.all(|rate| self.is_bulk(rate, path))
    }

    fn is_bulk(&self, rate: u64, path: Duration) -> bool {
        bytes_in(rate, path) > INITIAL_WINDOW * u64::from(self.mss)
    }

    /// Returns the highest rate at which bytes came from the peer in the last spans.
    pub(super) fn received_lately(&self) -> u64 {
        let earlier = self.received_earlier.into_iter();
        earlier.fold(self.received_rate, u64::max)
    }

    /// Returns the round-trip time without queues, as far as known: queues behind a relay are its own, and end with it.
    pub(super) fn base_rtt(&self) -> Duration {
        self.min_rtt.unwrap_or(self.rtt).min(self.rtt)
    }

    /// Returns an estimate of the bytes that the peer can have in flight: a lower bound of its congestion window.
    pub(super) fn in_flight_estimate(&self) -> u64 {
        bytes_in(self.received_peak.max(self.received_rate), self.rtt).min(u64::from(self.receive_window))
    }

    /// Returns whether a window, ours or the peer's, and not the network, limits what is in flight on this leg.
    pub(super) fn is_window_limited(&self) -> bool {
        let may_send = u64::from(self.cwnd) * u64::from(self.mss);
        match self.bytes_sent > 0 && self.waiting > 0 {
            true => nearly_fills(may_send, self.peer_window),
            false => nearly_fills(self.in_flight_estimate(), self.receive_window),
        }
    }

    /// Returns whether the peer uses up the window that our receive buffer allows. The kernel closes the window for a moment when
    /// a buffer was made smaller than what comes: such a window tells nothing.
    pub(super) fn uses_up_buffer(&self) -> bool {
        let is_open = 4 * u64::from(self.receive_window) >= u64::from(self.receive_buffer);
        is_open && nearly_fills(bytes_in(self.received_rate, self.rtt), self.receive_window)
    }

    /// Returns whether segments were lost on this leg, or its sender left slow start because its round trip grew.
    pub(super) fn was_congested(&self) -> bool {
        self.ssthresh.is_some() || self.bytes_retransmitted > 0 || self.out_of_order > 0
    }

    /// Returns whether this leg loses so much, in either direction, that the distance of repair matters.
    pub(super) fn is_lossy(&self) -> bool {
        // Multiply: a quotient of 0 would make every number of losses enough, even none.
        let is_rate = |lost: u64, of: u64| lost > 0 && lost.saturating_mul(LOSSY) >= of;
        let enough_sent = self.bytes_sent >= u64::from(LOSS_SEGMENTS) * u64::from(self.mss);
        let loses_ours = enough_sent && is_rate(self.bytes_retransmitted, self.bytes_sent);
        let enough_received = self.segments_received >= LOSS_SEGMENTS;
        let loses_theirs = enough_received && is_rate(self.holes(), self.segments_received.into());
        loses_ours || loses_theirs
    }

    /// Estimates how many losses of the peer's segments caused the segments out of order: each loss lets about a round
    /// trip's worth of segments arrive before the repair.
    fn holes(&self) -> u64 {
        let in_flight = self.in_flight_estimate() / u64::from(self.mss.max(1));
        u64::from(self.out_of_order) / in_flight.max(1)
    }
}

/// Returns whether so many bytes take nine tenths of a window, or more.
fn nearly_fills(bytes: u64, window: u32) -> bool {
    bytes.saturating_mul(10) >= 9 * u64::from(window)
}
