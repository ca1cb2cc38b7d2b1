//! Models the mapping between the wire and a local socket with other sequence numbers: `local.h`, and the edits of
//! `rewrite.h`.

use longsplice_core::seq::{Offset, Seq};

use super::{
    outcome::{Outcome, Verdict},
    segment::{SackBlocks, Segment, flag},
    state::{Flow, Leg, Record, Side},
};

/// Amounts by which a socket's numbers exceed those of the wire: in the peer's stream, and in the stream toward the
/// peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) seq: Offset,
    pub(super) ack: Offset,
}

impl Mapping {
    pub(super) fn of_leg(from: &Leg) -> Mapping {
        Mapping {
            seq: from.adj_seq,
            ack: from.adj_ack,
        }
    }

    /// Returns the mapping of a leg that belongs to no flow.
    pub(super) fn of_record(rec: &Record) -> Mapping {
        Mapping {
            seq: rec.seq_off,
            ack: rec.ack_off,
        }
    }

    pub(super) fn is_identity(self) -> bool {
        self.seq.raw() | self.ack.raw() == 0
    }
}

/// Edit of SACK blocks (`enum sack_edit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SackEdit {
    Shift,
    /// Keeps the edges within these: the kernel discards a block that ends beyond snd_nxt.
    Clip(Seq, Seq),
    Blank,
}

impl SackEdit {
    /// Applies the edit. Edges are shifted by `offset` first; the bounds of a clip are those of the result.
    pub(super) fn apply(self, sack: SackBlocks, offset: Offset) -> SackBlocks {
        match self {
            SackEdit::Shift => sack.map(|e| e + offset),
            SackEdit::Clip(lo, hi) => sack.map(|e| (e + offset).max(lo).min(hi)),
            SackEdit::Blank => SackBlocks::default(),
        }
    }
}

/// Returns the segment for the socket, with its numbers mapped (`write_for_socket`).
pub(super) fn for_socket(mut seg: Segment, sack: SackEdit, map: Mapping) -> Segment {
    let sack = match sack {
        SackEdit::Clip(lo, hi) => SackEdit::Clip(lo + map.ack, hi + map.ack),
        other => other,
    };
    seg.sack = sack.apply(seg.sack, map.ack);
    seg.seq = seg.seq + map.seq;
    seg.ack = seg.ack + map.ack;
    seg
}

/// Lowers the number of a segment without payload to the edge of the socket's window. The acknowledgement must reach
/// the socket even if the sender has sent beyond the window, because the far end promised more or because the socket
/// takes its window back.
pub(super) fn within_window(from: &Leg, seg: &Segment) -> Segment {
    let mut seg = *seg;
    if !seg.occupies() && !seg.has(flag::RST) {
        seg.seq = seg.seq.min(from.loc_edge - from.loc_shrunk);
    }
    seg
}

/// Delivers a segment to the local socket, with nothing but its numbers mapped.
pub(super) fn deliver(seg: &Segment, map: Mapping) -> Outcome {
    Outcome::local(Verdict::Delivered, for_socket(*seg, SackEdit::Shift, map))
}

/// Converts a socket's segment to the numbers of the wire.
pub(super) fn to_wire(seg: &Segment, map: Mapping) -> Segment {
    let mut seg = *seg;
    seg.seq = seg.seq - map.ack;
    seg.sack = SackEdit::Shift.apply(seg.sack, -map.seq);
    if seg.has(flag::ACK) {
        seg.ack = seg.ack - map.seq;
    }
    seg
}

/// Raises TSval so that it never goes back toward a peer, over all senders (RFC 7323 section 5).
pub(super) fn never_back(ts_high: &mut Seq, seg: &mut Segment) {
    if let Some(ts) = &mut seg.ts {
        ts.val = ts.val.max(*ts_high);
        *ts_high = ts.val;
    }
}

impl Flow {
    /// Sends a segment of the socket of a leg that belongs to no flow (`emit_alone`).
    pub(super) fn emit_alone(&mut self, side: Side, seg: &Segment) -> Outcome {
        let Some(rec) = &mut self.records[side] else {
            return Outcome::wire(Verdict::Next, *seg);
        };
        let mut seg = to_wire(seg, Mapping::of_record(rec));
        never_back(&mut rec.ts_high, &mut seg);
        Outcome::wire(Verdict::Emitted, seg)
    }
}
