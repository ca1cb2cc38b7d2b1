//! Models a TCP end, like Linux's as far as it matters to a splice. Streams are counted by 64-bit indexes: 0 is the
//! first byte after the SYN.

mod recv;
mod send;

use std::collections::{BTreeMap, VecDeque};

use longsplice_core::seq::Seq;
use longsplice_model::{Segment, SocketState, Timestamps, flag, window_field};

/// Time in microseconds.
pub type Time = u64;

pub const MS: Time = 1000;
/// Position of forged payload: no end ever sends payload there.
pub const FORGED: u64 = 1 << 60;

/// Options negotiated in the handshake, and properties of the socket.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub mss: i64,
    /// Scale of the window field that it sends.
    pub our_scale: u8,
    /// Scale of the window field that its peer sends.
    pub peer_scale: u8,
    pub sack: bool,
    pub timestamps: bool,
    /// Size of its receive buffer.
    pub room: i64,
    /// Size of its send buffer.
    pub send_room: i64,
    /// Offset of its clock for timestamps.
    pub ts_offset: u32,
    pub rto: Time,
    /// True for an end, whose stream has the bytes of the same positions; false for one of the forwarder's sockets.
    pub is_end: bool,
}

/// Bytes of an end's stream, by their position there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub at: u64,
    pub len: i64,
}

#[derive(Debug, Clone)]
pub struct Tcp {
    pub config: Config,
    // Sending.
    pub snd_isn: Seq,
    pub una: i64,
    pub nxt: i64,
    /// End of the written bytes.
    pub write: i64,
    pub fin: bool,
    out: VecDeque<Run>,
    out_from: i64,
    pub snd_edge: i64,
    wl1: i64,
    max_window: i64,
    pub bytes_acked: i64,
    sacked: Vec<(i64, i64)>,
    cwnd: i64,
    ssthresh: i64,
    dupacks: u32,
    recover: Option<i64>,
    /// Begin of the bytes that are to be retransmitted, up to `lost_to`.
    again: i64,
    lost_to: i64,
    rto_at: Option<Time>,
    backoff: u32,
    probe_at: Option<Time>,
    // Receiving.
    pub rcv_isn: Seq,
    pub rcv_nxt: i64,
    early: BTreeMap<i64, Run>,
    pub queue: VecDeque<Run>,
    pub unread: i64,
    /// End of the taken bytes, as a position of the stream.
    pub taken_to: u64,
    fin_at: Option<i64>,
    pub eof: bool,
    pub rcv_wup: i64,
    pub rcv_edge: i64,
    pub ts_recent: Option<Seq>,
    unacked: i64,
    delack_at: Option<Time>,
    last_early: i64,
    oow_at: Time,
    // State.
    /// True if a reset came, or was sent.
    pub dead: bool,
    /// Kind of the forged or misplaced segment that it accepted.
    pub forged: Option<&'static str>,
    pub timeouts: u32,
    pub beyond_window: u32,
    pub too_old: u32,
    pub sack_refused: u32,
    pub shrunk: i64,
}

impl Tcp {
    pub fn new(config: Config, snd_isn: Seq, rcv_isn: Seq, peer_window: i64, now: Time) -> Tcp {
        let mut tcp = Tcp {
            config,
            snd_isn,
            una: 0,
            nxt: 0,
            write: 0,
            fin: false,
            out: VecDeque::new(),
            out_from: 0,
            snd_edge: peer_window,
            wl1: 0,
            max_window: peer_window,
            // The SYN counts.
            bytes_acked: 1,
            sacked: Vec::new(),
            cwnd: 10,
            ssthresh: i64::MAX,
            dupacks: 0,
            recover: None,
            again: 0,
            lost_to: 0,
            rto_at: None,
            backoff: 0,
            probe_at: None,
            rcv_isn,
            rcv_nxt: 0,
            early: BTreeMap::new(),
            queue: VecDeque::new(),
            unread: 0,
            taken_to: 0,
            fin_at: None,
            eof: false,
            rcv_wup: 0,
            rcv_edge: 0,
            ts_recent: None,
            unacked: 0,
            delack_at: None,
            last_early: 0,
            oow_at: 0,
            dead: false,
            forged: None,
            timeouts: 0,
            beyond_window: 0,
            too_old: 0,
            sack_refused: 0,
            shrunk: 0,
        };
        tcp.rcv_edge = tcp.room_in_units(tcp.config.room.min(65_535 << tcp.config.our_scale));
        let _ = now;
        tcp
    }

    /// Makes a socket as TCP_REPAIR does: it continues where the segments stopped.
    pub fn rebuilt(config: Config, snd: Seq, rcv: Seq, snd_wnd: i64, rcv_wnd: i64, now: Time) -> Tcp {
        let mut tcp = Tcp::new(config, snd, rcv, snd_wnd, now);
        tcp.bytes_acked = 0;
        tcp.rcv_edge = rcv_wnd;
        tcp
    }

    fn room_in_units(&self, room: i64) -> i64 {
        room.max(0) >> self.config.our_scale << self.config.our_scale
    }

    pub fn snd_seq(&self, index: i64) -> Seq {
        self.snd_isn + index as u32
    }

    pub fn rcv_seq(&self, index: i64) -> Seq {
        self.rcv_isn + index as u32
    }

    fn snd_index(&self, seq: Seq) -> i64 {
        self.una + i64::from(seq - self.snd_seq(self.una))
    }

    fn rcv_index(&self, seq: Seq) -> i64 {
        self.rcv_nxt + i64::from(seq - self.rcv_seq(self.rcv_nxt))
    }

    /// Returns the state that `inspect` would read.
    pub fn state(&self) -> SocketState {
        SocketState {
            rcv_nxt: self.rcv_seq(self.rcv_nxt),
            rcv_wup: self.rcv_seq(self.rcv_wup),
            rcv_edge: self.rcv_seq(self.rcv_edge),
            snd_nxt: self.snd_seq(self.nxt),
            snd_una: self.snd_seq(self.una),
            snd_edge: self.snd_seq(self.snd_edge),
            ts_recent: self.ts_recent.unwrap_or_default(),
            ended: self.got_fin(),
        }
    }

    /// Returns the next number that user space will read.
    pub fn copied(&self) -> Seq {
        self.rcv_seq(
            self.rcv_nxt
                - self.unread
                - i64::from(self.fin_at.is_some_and(|f| self.rcv_nxt > f) && !self.eof),
        )
    }

    pub fn clock(&self, now: Time) -> Seq {
        Seq::new(self.config.ts_offset.wrapping_add((now / MS) as u32))
    }

    /// Returns whether all that it sent is acknowledged, with the FIN.
    pub fn is_through(&self) -> bool {
        self.fin && self.una > self.write
    }

    /// Returns whether the peer's stream has ended here.
    pub fn got_fin(&self) -> bool {
        self.fin_at.is_some_and(|f| self.rcv_nxt > f)
    }

    /// Returns the end of the payload that can be delivered.
    pub fn received(&self) -> i64 {
        self.rcv_nxt - i64::from(self.got_fin())
    }

    fn header(&mut self, now: Time, flags: u8, seq: i64) -> Segment {
        let edge = self.select_window();
        let mut segment = Segment {
            seq: self.snd_seq(seq),
            ack: self.rcv_seq(self.rcv_nxt),
            window: window_field(
                self.rcv_seq(edge),
                self.rcv_seq(self.rcv_nxt),
                self.config.our_scale,
            ),
            flags: flags | flag::ACK,
            ..Segment::default()
        };
        self.rcv_wup = self.rcv_nxt;
        self.unacked = 0;
        self.delack_at = None;
        if self.config.timestamps {
            segment.ts = Some(Timestamps {
                val: self.clock(now),
                ecr: self.ts_recent.unwrap_or_default(),
            });
        }
        if self.config.sack {
            self.put_sack(&mut segment);
        }
        segment
    }

    fn pure_ack(&mut self, now: Time, out: &mut Vec<Segment>) {
        let segment = self.header(now, 0, self.nxt);
        out.push(segment);
    }

    /// Resets the connection.
    pub fn abort(&mut self, now: Time, out: &mut Vec<Segment>) {
        if self.dead {
            return;
        }
        let segment = self.header(now, flag::RST, self.nxt);
        out.push(segment);
        self.dead = true;
    }

    /// Returns the time at which it wants to be called again.
    pub fn next_timer(&self) -> Option<Time> {
        if self.dead {
            return None;
        }
        [self.rto_at, self.probe_at, self.delack_at]
            .into_iter()
            .flatten()
            .min()
    }

    pub fn on_timer(&mut self, now: Time, out: &mut Vec<Segment>) {
        if self.dead {
            return;
        }
        if self.delack_at.is_some_and(|at| at <= now) {
            self.pure_ack(now, out);
        }
        if self.rto_at.is_some_and(|at| at <= now) {
            self.on_rto(now, out);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.on_probe(now, out);
        }
    }
}

/// Returns the kernel's answer for a connection without a socket (RFC 9293 section 3.5.2).
pub fn no_socket(s: &Segment) -> Option<Segment> {
    if s.has(flag::RST) {
        return None;
    }
    Some(if s.has(flag::ACK) {
        Segment {
            seq: s.ack,
            flags: flag::RST,
            ..Segment::default()
        }
    } else {
        Segment {
            ack: s.end(),
            flags: flag::RST | flag::ACK,
            ..Segment::default()
        }
    })
}
