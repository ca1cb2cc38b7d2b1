//! `TCP_INFO`: what the kernel tells of a connection.
//!
//! Sources: `<linux/tcp.h>` and `tcp_get_info` of Linux 6.18. The structure grew over the years and is returned as far
//! as the kernel knows it; what came after Linux 4.19 is an `Option` here. Rates are bytes per second, times
//! microseconds unless the name ends in `_ms`, windows and queues of the sender segments or bytes as stated.

use std::{io, mem::offset_of, os::fd::AsFd};

use crate::{
    state::{CongestionState, State},
    sys::{self, Error, Opt, Plain, opt},
};

const INFO: Opt = opt!(IPPROTO_TCP, TCP_INFO);

/// `struct tcp_info` of the kernel's interface, as of Linux 6.2; later fields are not asked for.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Raw {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    /// Bit fields: the low nibble is the peer's scale, the high one ours.
    wscales: u8,
    /// Bit fields: bit 0, the delivery rate was limited by the application.
    flags: u8,
    rto: u32,
    ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    last_data_sent: u32,
    last_ack_sent: u32,
    last_data_recv: u32,
    last_ack_recv: u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
    rcv_ooopack: u32,
    snd_wnd: u32,
    rcv_wnd: u32,
    rehash: u32,
}

// The layout is the kernel's promise; a field too many or too few above would shift all that follow.
const _: () = assert!(size_of::<Raw>() == 240 && offset_of!(Raw, rcv_ooopack) == 224);

// SAFETY: `repr(C)`, integers only, without padding: the 8 bytes, 24 words, 4 doublewords, 6 words, 4 doublewords,
// 2 words, 2 doublewords and 6 words that make up its 240 bytes are each aligned where the former ends.
unsafe impl Plain for Raw {}

/// What a connection was at one moment. A copy; asking again is a new [`tcp_info`].
#[derive(Debug, Clone, Copy)]
pub struct TcpInfo {
    raw: Raw,
    /// How many bytes of `raw` the kernel wrote.
    len: usize,
}

/// Asks the kernel for the state of a connection.
///
/// # Errors
/// `Unsupported` on kernels before Linux 4.19; else the system's, for a descriptor that is not a TCP socket.
pub fn tcp_info(fd: impl AsFd) -> Result<TcpInfo, Error> {
    let (raw, len) = sys::get::<Raw>(fd, INFO)?;
    if len < offset_of!(Raw, rcv_ooopack) {
        return Err(Error::new(INFO.get_name(), io::ErrorKind::Unsupported.into()));
    }
    Ok(TcpInfo { raw, len })
}

/// Accessors of plain fields.
macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $name:ident: $field:ident -> $t:ty),+ $(,)?) => {
        impl TcpInfo { $(
            $(#[doc = $doc])+
            pub fn $name(&self) -> $t { self.raw.$field }
        )+ }
    };
}

/// Accessors of fields that not every kernel knows.
macro_rules! late_fields {
    ($($(#[doc = $doc:literal])+ $name:ident -> $t:ty),+ $(,)?) => {
        impl TcpInfo { $(
            $(#[doc = $doc])+
            pub fn $name(&self) -> Option<$t> {
                (self.len >= offset_of!(Raw, $name) + size_of::<$t>()).then_some(self.raw.$name)
            }
        )+ }
    };
}

impl TcpInfo {
    /// The state of the connection.
    pub fn state(&self) -> State {
        self.raw.state.into()
    }

    /// What the congestion control is doing.
    pub fn ca_state(&self) -> CongestionState {
        self.raw.ca_state.into()
    }

    fn option(&self, bit: u8) -> bool {
        self.raw.options & bit != 0
    }

    /// Whether timestamps were negotiated (RFC 7323 section 3).
    pub fn timestamps(&self) -> bool {
        self.option(1)
    }

    /// Whether selective acknowledgement was negotiated (RFC 2018).
    pub fn sack(&self) -> bool {
        self.option(2)
    }

    /// Whether window scaling was negotiated (RFC 7323 section 2).
    pub fn window_scaling(&self) -> bool {
        self.option(4)
    }

    /// Whether ECN was negotiated (RFC 3168).
    pub fn ecn(&self) -> bool {
        self.option(8)
    }

    /// Whether a segment with an ECN mark was ever received.
    pub fn ecn_seen(&self) -> bool {
        self.option(16)
    }

    /// Whether the peer acknowledged data that came with our SYN (RFC 7413).
    pub fn syn_data(&self) -> bool {
        self.option(32)
    }

    /// Whether our timestamp clock counts microseconds rather than milliseconds (since Linux 6.7).
    pub fn usec_timestamps(&self) -> bool {
        self.option(64)
    }

    /// The shift of the windows that the peer announces, 0 to 14; 0 if scaling was not negotiated.
    pub fn snd_wscale(&self) -> u8 {
        self.wscale(self.raw.wscales & 0xf)
    }

    /// The shift of the windows that we announce, 0 to 14; 0 if scaling was not negotiated.
    pub fn rcv_wscale(&self) -> u8 {
        self.wscale(self.raw.wscales >> 4)
    }

    fn wscale(&self, bits: u8) -> u8 {
        if self.window_scaling() { bits } else { 0 }
    }

    /// Whether [`delivery_rate`](Self::delivery_rate) was limited by too little data to send rather than by the path.
    pub fn delivery_rate_app_limited(&self) -> bool {
        self.raw.flags & 1 != 0
    }

    /// Segments retransmitted that the peer was lacking, as far as it has said by now: a sender that was stopped repeats some in
    /// vain, which DSACKs tell a moment later (RFC 2883).
    pub fn total_lost(&self) -> u32 {
        self.raw.total_retrans.saturating_sub(self.raw.dsack_dups)
    }

    /// The slow start threshold, in segments; `None` while there was no loss yet and it is infinite.
    pub fn snd_ssthresh(&self) -> Option<u32> {
        Some(self.raw.snd_ssthresh).filter(|&s| s < 0x7fff_ffff)
    }

    /// The lowest round-trip time of the last minutes (`net.ipv4.tcp_min_rtt_wlen`); `None` before the first sample.
    pub fn min_rtt_us(&self) -> Option<u32> {
        Some(self.raw.min_rtt).filter(|&us| us != u32::MAX)
    }
}

fields! {
    /// The retransmission timeout now, with its back-off.
    rto_us: rto -> u32,
    /// Payload bytes of a full segment sent, without options; grows with path MTU discovery.
    snd_mss: snd_mss -> u32,
    /// The kernel's estimate of the peer's segment size, from what was received.
    rcv_mss: rcv_mss -> u32,
    /// The MSS that we announced (RFC 9293 section 3.7.1), without options.
    advmss: advmss -> u32,
    /// The path MTU as known, in bytes with all headers.
    pmtu: pmtu -> u32,
    /// Segments sent and not yet acknowledged cumulatively.
    unacked: unacked -> u32,
    /// Of them, segments that SACK blocks have covered. (For a listener: its backlog.)
    sacked: sacked -> u32,
    /// Of them, segments held for lost.
    lost: lost -> u32,
    /// Of them, segments that were retransmitted and are on their way.
    retrans: retrans -> u32,
    /// How often in a row the retransmission timer has fired for the same segment.
    backoff: backoff -> u8,
    /// Milliseconds since data was last sent.
    last_data_sent_ms: last_data_sent -> u32,
    /// Milliseconds since data was last received.
    last_data_recv_ms: last_data_recv -> u32,
    /// Milliseconds since an ACK was last received.
    last_ack_recv_ms: last_ack_recv -> u32,
    /// The smoothed round-trip time (RFC 6298); 0 before the first sample.
    rtt_us: rtt -> u32,
    /// Its mean deviation.
    rttvar_us: rttvar -> u32,
    /// The receiver's estimate of the round-trip time; 0 if unknown. An upper bound for a sender that pauses.
    rcv_rtt_us: rcv_rtt -> u32,
    /// The congestion window, in segments.
    snd_cwnd: snd_cwnd -> u32,
    /// Segments ever retransmitted.
    total_retrans: total_retrans -> u32,
    /// The pacing rate in bytes per second; `u64::MAX` for none.
    pacing_rate: pacing_rate -> u64,
    /// Sequence numbers that the peer acknowledged: payload, the FIN, and for the side that connected the SYN.
    bytes_acked: bytes_acked -> u64,
    /// Sequence numbers received in order: payload and the FIN, not the SYN. RCV.NXT is the peer's initial sequence
    /// number + 1 + this.
    bytes_received: bytes_received -> u64,
    /// Segments sent, with retransmissions and pure ACKs.
    segs_out: segs_out -> u32,
    /// Segments received.
    segs_in: segs_in -> u32,
    /// Segments with payload sent, with retransmissions.
    data_segs_out: data_segs_out -> u32,
    /// Segments with payload received.
    data_segs_in: data_segs_in -> u32,
    /// Payload bytes written and not yet sent for the first time.
    notsent_bytes: notsent_bytes -> u32,
    /// The latest delivery rate, in bytes per second; 0 before the first sample.
    delivery_rate: delivery_rate -> u64,
    /// How long data was outstanding or waiting to be sent, in microseconds.
    busy_us: busy_time -> u64,
    /// How much of it the peer's window was the limit.
    rwnd_limited_us: rwnd_limited -> u64,
    /// How much of it our send buffer was the limit.
    sndbuf_limited_us: sndbuf_limited -> u64,
    /// Segments that were delivered to the peer.
    delivered: delivered -> u32,
    /// Payload bytes sent, with retransmissions.
    bytes_sent: bytes_sent -> u64,
    /// Payload bytes retransmitted.
    bytes_retrans: bytes_retrans -> u64,
    /// How often reordering was seen.
    reord_seen: reord_seen -> u32,
}

late_fields! {
    /// Segments that arrived out of order (since Linux 5.4).
    rcv_ooopack -> u32,
    /// The window that the peer announces, in bytes (since Linux 5.4).
    snd_wnd -> u32,
    /// The window that we announce, in bytes (since Linux 6.2).
    rcv_wnd -> u32,
    /// How often the flow's hash was changed after timeouts (since Linux 6.2).
    rehash -> u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_the_kernel_did_not_write_are_none() {
        let raw = Raw {
            snd_wnd: 7,
            rcv_wnd: 9,
            min_rtt: u32::MAX,
            snd_ssthresh: 0x7fff_ffff,
            ..Raw::default()
        };
        let info = TcpInfo {
            raw,
            len: offset_of!(Raw, rcv_wnd),
        };
        assert_eq!((info.snd_wnd(), info.rcv_wnd()), (Some(7), None));
        assert_eq!((info.min_rtt_us(), info.snd_ssthresh()), (None, None));
    }

    #[test]
    fn scales_are_two_nibbles_and_void_without_the_option() {
        let raw = Raw {
            options: 4,
            wscales: 0xa7,
            ..Raw::default()
        };
        let info = TcpInfo {
            raw,
            len: size_of::<Raw>(),
        };
        assert_eq!((info.snd_wscale(), info.rcv_wscale()), (7, 10));
        let info = TcpInfo {
            raw: Raw { options: 0, ..raw },
            ..info
        };
        assert_eq!((info.snd_wscale(), info.rcv_wscale()), (0, 0));
    }
}
