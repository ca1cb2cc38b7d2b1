//! State of a leg at the start of a splice, and its later state in the kernel half.

use longsplice_core::{
    limit::Rate,
    seq::{Offset, Seq},
};

use crate::{
    abi::{LS_RULED, Leg, Mapping, Side, ls_leg, ls_record},
    inspect::Inspection,
    skel::types::{ls_bypassed, ls_placement, ls_seen, ls_trait},
    successor::SuccessorPlan,
};

/// Interface index of the loopback, in every namespace: routes to our own addresses lead there.
const LOOPBACK: u32 = 1;

/// State of one leg when its flow is registered (see `ls_leg` in bpf/abi.h for the meaning of each field).
#[derive(Debug, Clone, Copy)]
pub struct LegStart {
    /// Addresses of the leg.
    pub leg: Leg,
    /// Offset from the peer's sequence numbers to those toward the far end.
    pub seq_off: Offset,
    /// Offset from the peer's TSvals to those toward the far end.
    pub tsval_off: u32,
    /// Scale of the peer's window field.
    pub wscale_in: u8,
    /// Scale that the far end applies.
    pub wscale_out: u8,
    /// True if the far end did not permit SACK.
    pub blank_sack: bool,
    /// True if the peer has sent its FIN, and it was passed on.
    pub ended: bool,
    /// State of the socket, in the numbers of the wire.
    pub inspection: Inspection,
    /// Offset of the socket's own numbers.
    pub mapping: Mapping,
    /// True if the leg stands alone in the kernel half's table.
    pub alone: bool,
    /// MSS that the peer offered, or less if the socket was told so; bytes.
    pub mss: u16,
    /// True if the peer permitted SACK (RFC 2018).
    pub sack: bool,
    /// True if the leg uses ECN (RFC 3168).
    pub ecn: bool,
    /// Highest TSval sent to the far end.
    pub ts_high: u32,
}

/// State of a leg in the kernel half: sequence numbers of the peer's stream (`rx_end`, `cut`, `tx_edge`) and of the
/// stream toward it (`rx_ack`, `rx_edge`, `loc_end`).
#[derive(Debug, Clone, Copy, Default)]
pub struct LegState {
    /// End of the data that was shown to the local socket.
    pub cut: Seq,
    /// Highest TSval of the peer.
    pub peer_ts: u32,
    /// Highest TSecr of the peer: it has received what was sent to it with a TSval up to this.
    pub peer_echo: u32,
    /// End of the payload that the peer sent: its FIN ([`LegState::fin`]) is not counted.
    pub rx_end: Seq,
    /// Highest acknowledgement of the peer.
    pub rx_ack: Seq,
    /// Right edge of the window that the peer offers.
    pub rx_edge: Seq,
    /// Time of its last segment in place, in ticks of 2^30 ns: while the flow is spliced, in a drain or after a return.
    pub last_seen: u32,
    /// Right edge of the window that was offered to the peer.
    pub tx_edge: Seq,
    /// End of the data that the local socket sent.
    pub loc_end: Seq,
    /// Highest right edge of a window that the local socket itself has offered to the peer.
    pub loc_edge: Seq,
    /// Right edge of the window that it offered last: before `loc_edge` if it lacks memory.
    pub loc_latest: Seq,
    /// Highest acknowledgement sent to the peer.
    pub tx_ack: Seq,
    /// Highest TSval sent to the peer.
    pub ts_sent: u32,
    /// Scale of the window field in segments to the peer.
    pub scale_out: u8,
    /// Translation of the peer's sequence numbers.
    pub seq_off: Offset,
    /// Translation of its acknowledgements.
    pub ack_off: Offset,
    /// Highest acknowledgement of the peer for the local socket itself.
    pub acked: Seq,
    /// Highest acknowledgement of the local socket itself.
    pub loc_ack: Seq,
    /// Number at which the local socket went on after a wake, if bytes `bypassed` it.
    pub base: Seq,
    /// True if bytes below `base` were forwarded.
    pub bypassed: bool,
    /// True if a FIN at `base` was forwarded that the local socket has not seen.
    pub bypassed_fin: bool,
    /// Offset of the local socket's numbers from those on the wire.
    pub mapping: Mapping,
    /// Scale of the window field that the peer sends.
    pub scale_in: u8,
    /// MSS that the peer offered.
    pub mss: u16,
    /// True if the peer permitted SACK.
    pub sack: bool,
    /// True if both legs use timestamps.
    pub timestamps: bool,
    /// True if the leg uses ECN.
    pub ecn: bool,
    /// True if a valid FIN of the peer was seen.
    pub fin: bool,
    /// True if a valid RST of the peer was seen.
    pub reset: bool,
    /// Trap of the peer's stream, if there is one: see [`crate::Slot::set_trap`].
    pub trap: Option<Seq>,
    /// Action of a later process at the trap.
    pub successor: SuccessorPlan,
    /// Rate limit of the peer's payload.
    pub rate: Option<Rate>,
    /// Time at which the limit has allowed all that passed, by [`crate::monotonic`].
    pub paid: u64,
}

impl LegState {
    /// Returns the end of the peer's stream as far as it passed: behind its FIN, if that did.
    pub fn end(&self) -> Seq {
        self.rx_end + u32::from(self.fin)
    }

    pub(crate) fn of(l: &ls_leg, back: &ls_record) -> LegState {
        let has = |flag: ls_trait| u32::from(l.rec.traits) & flag.0 != 0;
        let seen = |flag: ls_seen| u32::from(l.rec.seen) & flag.0 != 0;
        LegState {
            cut: Seq::new(l.cut),
            peer_ts: l.rx_ts,
            peer_echo: l.rx_echo,
            rx_end: Seq::new(l.rec.rx_end),
            rx_ack: Seq::new(l.rec.rx_ack),
            rx_edge: Seq::new(l.rec.rx_edge),
            last_seen: l.rec.last_seen,
            tx_edge: Seq::new(l.tx_edge),
            loc_end: Seq::new(l.loc_end),
            loc_edge: Seq::new(l.loc_edge),
            loc_latest: Seq::new(l.loc_edge) - l.loc_shrunk,
            tx_ack: Seq::new(l.tx_ack),
            ts_sent: back.ts_high,
            scale_out: back.scales >> 4,
            seq_off: Offset::new(l.rec.seq_off),
            ack_off: Offset::new(l.rec.ack_off),
            acked: Seq::new(l.loc_acked),
            loc_ack: Seq::new(l.loc_ack),
            base: Seq::new(l.base),
            bypassed: l.bypassed & ls_bypassed::LS_BYPASSED.0 != 0,
            bypassed_fin: l.bypassed & ls_bypassed::LS_BYPASSED_FIN.0 != 0,
            mapping: Mapping {
                seq: Offset::new(l.adj_seq),
                ack: Offset::new(l.adj_ack),
            },
            scale_in: l.rec.scales & 15,
            mss: l.rec.mss as _,
            sack: has(ls_trait::LS_SACK),
            timestamps: has(ls_trait::LS_TIMESTAMPS),
            ecn: has(ls_trait::LS_ECN),
            fin: seen(ls_seen::LS_SEEN_FIN),
            reset: seen(ls_seen::LS_SEEN_RST),
            trap: (u32::from(l.rec.placement) & ls_placement::LS_ARMED.0 != 0)
                .then_some(Seq::new(l.rec.trap)),
            successor: SuccessorPlan::from_raw(l.rec.successor),
            rate: own_rate(&l.rec),
            paid: l.rec.tat,
        }
    }
}

/// Returns the limit of the flow itself, beside which a rule may have set another one.
fn own_rate(rec: &ls_record) -> Option<Rate> {
    let burst = rec.burst & !LS_RULED;
    Rate::new(rec.rate.into())
        .filter(|_| burst != 0)
        .map(|rate| rate.with_burst(burst))
}

pub(crate) fn start_leg(
    side: Side,
    x: &LegStart,
    o: &LegStart,
    slot: u32,
    serial: u32,
    ts: bool,
    now: u32,
) -> ls_leg {
    let mut traits = 0;
    for (on, flag) in [
        (side == Side::Server, ls_trait::LS_SIDE_SERVER),
        (ts, ls_trait::LS_TIMESTAMPS),
        (x.blank_sack, ls_trait::LS_BLANK_SACK),
        (o.inspection.ifindex == LOOPBACK, ls_trait::LS_FAR_LOCAL),
        (x.sack, ls_trait::LS_SACK),
        (x.ecn, ls_trait::LS_ECN),
        (x.leg.family() != o.leg.family(), ls_trait::LS_FAMILIES),
    ] {
        traits |= if on { flag.0 as u8 } else { 0 };
    }
    let p = &x.inspection;
    ls_leg {
        rec: ls_record {
            seq_off: x.seq_off.raw(),
            ack_off: (-o.seq_off).raw(),
            tsval_off: x.tsval_off,
            tsecr_off: o.tsval_off.wrapping_neg(),
            scales: x.wscale_in | x.wscale_out << 4,
            traits,
            placement: ls_placement::LS_SLOTTED.0 as u8,
            r#where: slot,
            last_seen: now,
            serial,
            seen: if x.ended { ls_seen::LS_SEEN_FIN.0 as u8 } else { 0 },
            rx_end: (p.rcv_nxt - u32::from(x.ended)).raw(),
            rx_ack: p.snd_una.raw(),
            rx_edge: p.peer_edge.raw(),
            ts_high: x.ts_high,
            mss: x.mss as _,
            ..Default::default()
        },
        key: x.leg.tuple(),
        cut: p.rcv_nxt.raw(),
        rx_ts: p.ts_recent,
        rx_echo: o.ts_high,
        loc_acked: p.snd_una.raw(),
        loc_end: p.snd_nxt.raw(),
        loc_ack: p.rcv_nxt.raw(),
        loc_edge: p.offered_edge.raw(),
        tx_ack: p.rcv_nxt.raw(),
        tx_edge: p.offered_edge.raw(),
        adj_seq: x.mapping.seq.raw(),
        adj_ack: x.mapping.ack.raw(),
        delivered: (p.rcv_nxt - 1).raw(),
        ..Default::default()
    }
}
