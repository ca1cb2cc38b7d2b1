//! Reads `TCP_INFO`, the kernel's state of a connection.
//!
//! Sources: `<linux/tcp.h>` and `tcp_get_info` of Linux 6.18. The structure grew over the years and is returned as far
//! as the kernel knows it; fields added after Linux 4.19 are an `Option` here. Times are microseconds unless the name
//! ends in `_ms`, windows and queues of the sender segments or bytes as stated.

use std::{io, mem::offset_of, os::fd::AsFd};

use crate::{
    state::{CongestionState, State},
    sys::{self, Error, Opt, Plain, opt},
};

const INFO: Opt = opt!(IPPROTO_TCP, TCP_INFO);

/// `struct tcp_info` of the kernel's interface, as of Linux 6.2; later fields are not read.
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

// The layout is the kernel's promise: a field too many or too few above would shift all that follow.
const _: () = assert!(size_of::<Raw>() == 240 && offset_of!(Raw, rcv_ooopack) == 224);

// SAFETY: `repr(C)`, integers only, without padding: the 8 bytes, 24 words, 4 doublewords, 6 words, 4 doublewords,
// 2 words, 2 doublewords and 6 words that make up its 240 bytes are each aligned where the former ends.
unsafe impl Plain for Raw {}

/// State of a connection at one moment. It is a copy; [`tcp_info`] reads a new one.
#[derive(Debug, Clone, Copy)]
pub struct TcpInfo {
    raw: Raw,
    /// Number of bytes of `raw` that the kernel wrote.
    len: usize,
}

/// Reads the state of a connection.
///
/// # Errors
/// `Unsupported` on kernels before Linux 4.19; else the system's, for a descriptor that is not a TCP socket.
pub fn tcp_info(fd: impl AsFd) -> Result<TcpInfo, Error> {
    let (raw, len) = sys::get::<Raw>(fd, INFO)?;
    if len < offset_of!(Raw, rcv_ooopack) {
        return Err(Error::new(INFO.get, io::ErrorKind::Unsupported.into()));
    }
    Ok(TcpInfo { raw, len })
}

/// Defines accessors of plain fields.
macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $name:ident: $field:ident -> $t:ty),+ $(,)?) => {
        impl TcpInfo { $(
            $(#[doc = $doc])+
            pub fn $name(&self) -> $t { self.raw.$field }
        )+ }
    };
}

/// Defines accessors of fields that some kernels lack.
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
    /// Returns the state of the connection.
    pub fn state(&self) -> State {
        self.raw.state.into()
    }

    /// Returns the state of the congestion control.
    pub fn ca_state(&self) -> CongestionState {
        self.raw.ca_state.into()
    }

    fn option(&self, bit: u8) -> bool {
        self.raw.options & bit != 0
    }

    /// Returns whether timestamps were negotiated (RFC 7323 section 3).
    pub fn timestamps(&self) -> bool {
        self.option(1)
    }

    /// Returns whether selective acknowledgement was negotiated (RFC 2018).
    pub fn sack(&self) -> bool {
        self.option(2)
    }

    /// Returns whether window scaling was negotiated (RFC 7323 section 2).
    pub fn window_scaling(&self) -> bool {
        self.option(4)
    }

    /// Returns whether ECN was negotiated (RFC 3168).
    pub fn ecn(&self) -> bool {
        self.option(8)
    }

    /// Returns whether our timestamp clock counts microseconds rather than milliseconds (since Linux 6.7).
    pub fn usec_timestamps(&self) -> bool {
        self.option(64)
    }

    /// Returns the shift of the windows that the peer announces, 0 to 14; 0 if scaling was not negotiated.
    pub fn snd_wscale(&self) -> u8 {
        self.wscale(self.raw.wscales & 0xf)
    }

    /// Returns the shift of the windows that we announce, 0 to 14; 0 if scaling was not negotiated.
    pub fn rcv_wscale(&self) -> u8 {
        self.wscale(self.raw.wscales >> 4)
    }

    fn wscale(&self, bits: u8) -> u8 {
        if self.window_scaling() { bits } else { 0 }
    }

    /// Returns the number of retransmitted segments that the peer had not received, as far as the peer has reported: a
    /// sender that was stopped retransmits some needlessly, which DSACKs report a moment later (RFC 2883).
    pub fn total_lost(&self) -> u32 {
        self.raw.total_retrans.saturating_sub(self.raw.dsack_dups)
    }

    /// Returns the slow start threshold, in segments; `None` while there was no loss yet and it is infinite.
    pub fn snd_ssthresh(&self) -> Option<u32> {
        Some(self.raw.snd_ssthresh).filter(|&s| s < 0x7fff_ffff)
    }

    /// Returns the lowest round-trip time of the last minutes (`net.ipv4.tcp_min_rtt_wlen`); `None` before the first
    /// sample.
    pub fn min_rtt_us(&self) -> Option<u32> {
        Some(self.raw.min_rtt).filter(|&us| us != u32::MAX)
    }
}

fields! {
    /// Returns the current retransmission timeout, with its back-off.
    rto_us: rto -> u32,
    /// Returns the payload bytes of a full segment sent, without options; grows with path MTU discovery.
    snd_mss: snd_mss -> u32,
    /// Returns the MSS that we announced, without options (RFC 9293 section 3.7.1).
    advmss: advmss -> u32,
    /// Returns the known path MTU, in bytes with all headers.
    pmtu: pmtu -> u32,
    /// Returns the number of segments sent and not yet acknowledged cumulatively.
    unacked: unacked -> u32,
    /// Returns the number of unacknowledged segments that are considered lost.
    lost: lost -> u32,
    /// Returns the milliseconds since data was last sent.
    last_data_sent_ms: last_data_sent -> u32,
    /// Returns the milliseconds since data was last received.
    last_data_recv_ms: last_data_recv -> u32,
    /// Returns the smoothed round-trip time; 0 before the first sample (RFC 6298).
    rtt_us: rtt -> u32,
    /// Returns the receiver's estimate of the round-trip time; 0 if unknown. It is an upper bound for a sender that
    /// pauses.
    rcv_rtt_us: rcv_rtt -> u32,
    /// Returns the congestion window, in segments.
    snd_cwnd: snd_cwnd -> u32,
    /// Returns the number of segments ever retransmitted.
    total_retrans: total_retrans -> u32,
    /// Returns the sequence numbers that the peer acknowledged: payload, the FIN, and for the side that connected the
    /// SYN.
    bytes_acked: bytes_acked -> u64,
    /// Returns the sequence numbers received in order: payload and the FIN, not the SYN. RCV.NXT is the peer's initial
    /// sequence number + 1 + this.
    bytes_received: bytes_received -> u64,
    /// Returns the number of segments sent, with retransmissions and pure ACKs.
    segs_out: segs_out -> u32,
    /// Returns the number of segments received.
    segs_in: segs_in -> u32,
    /// Returns the number of segments with payload sent, with retransmissions.
    data_segs_out: data_segs_out -> u32,
    /// Returns the number of segments with payload received.
    data_segs_in: data_segs_in -> u32,
    /// Returns the payload bytes written and not yet sent for the first time.
    notsent_bytes: notsent_bytes -> u32,
    /// Returns the number of segments that were delivered to the peer.
    delivered: delivered -> u32,
    /// Returns the payload bytes sent, with retransmissions.
    bytes_sent: bytes_sent -> u64,
    /// Returns the payload bytes retransmitted.
    bytes_retrans: bytes_retrans -> u64,
}

late_fields! {
    /// Returns the number of segments that arrived out of order (since Linux 5.4).
    rcv_ooopack -> u32,
    /// Returns the window that the peer announces, in bytes (since Linux 5.4).
    snd_wnd -> u32,
    /// Returns the window that we announce, in bytes (since Linux 6.2).
    rcv_wnd -> u32,
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
