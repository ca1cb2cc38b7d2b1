//! Models the segments of the local sockets: `egress.h`, and `egress` of `forward.bpf.c`.

use longsplice_core::seq::Seq;

use super::{
    forward::is_first,
    local::{Mapping, never_back, to_wire},
    outcome::{Outcome, Verdict},
    segment::{SackBlocks, Segment, flag},
    state::{Flow, Leg, Mode, Placement, Side, bypassed, seq_advance, slot_flag, traits},
    track::{is_closed_by, is_through},
    undrain::{first_own, has_delivered, reachable},
    window::{coupled_edge, kept_edge_in_drain, modest_edge, window_field},
};

/// Acknowledgement and window that a socket's segment carries toward the peer.
struct Answer {
    ack: Seq,
    edge: Seq,
    /// True if the acknowledgement was lowered, because the far end does not have those bytes yet.
    lowered: bool,
}

/// Returns true if the local socket of the peer's leg has closed in order: it has acknowledged the peer's end, and the
/// peer has acknowledged the end of the far end's stream. The peer may not know it yet, because it is told less while
/// the far end lacks bytes.
fn has_closed(from: &Leg, to: &Leg) -> bool {
    is_closed_by(from, to, from.loc_ack)
}

impl Flow {
    /// Processes a segment of the local socket of a side's leg.
    pub fn egress(&mut self, side: Side, seg: &Segment) -> Outcome {
        let mode = match self.placement(side) {
            None => return Outcome::wire(Verdict::Next, *seg),
            Some(Placement::Alone) => return self.emit_alone(side, seg),
            Some(Placement::Detached) => Mode::Final,
            Some(Placement::Slotted) => self.slot.mode,
        };
        match mode {
            Mode::Free | Mode::Replaced => Outcome::wire(Verdict::Next, *seg),
            Mode::Final | Mode::Freeze | Mode::Moved | Mode::Waking => {
                if self.placement(side) == Some(Placement::Slotted) {
                    self.note_parked(side, seg);
                }
                if is_first(seg) {
                    refuse_syn(seg)
                } else {
                    Outcome::of(Verdict::DropParked)
                }
            }
            Mode::Track | Mode::Drain | Mode::Undrain | Mode::Aborted => self.speak(side, seg, mode),
        }
    }

    /// Notes a parked socket's segment, which is dropped: the window that it offers stays promised. A socket that
    /// resets is gone, with its process: a trap must not wake it.
    fn note_parked(&mut self, side: Side, seg: &Segment) {
        if seg.has(flag::RST) {
            self.slot.flags &= !slot_flag::WAKEABLE;
        } else if seg.has(flag::ACK) && self.slot.mode == Mode::Final {
            let (from, to) = self.legs(side);
            seq_advance(&mut from.loc_edge, seg.edge(to.rec.wscale_out) - from.adj_seq);
        }
    }

    /// Processes a segment of a socket that is in the path.
    fn speak(&mut self, side: Side, raw: &Segment, mode: Mode) -> Outcome {
        let seg = to_wire(raw, Mapping::of_leg(self.leg(side)));
        if mode != Mode::Track && seg.has(flag::RST) {
            return self.abort(side, raw, seg, mode);
        }
        // A segment that cannot be mapped any more is dropped.
        if mode == Mode::Aborted {
            return if Mapping::of_leg(self.leg(side)).is_identity() {
                Outcome::wire(Verdict::Next, *raw)
            } else {
                Outcome::of(Verdict::DropParked)
            };
        }
        let to = self.leg(side.other());
        // Drop a retransmission from before the socket's own stream: its peer has acknowledged those bytes, but the
        // socket has not received that. The next acknowledgement repeats it.
        if mode == Mode::Undrain
            && to.bypassed & bypassed::SOME != 0
            && seg.occupies()
            && seg.seq.before(first_own(to))
        {
            return Outcome::of(Verdict::DropParked);
        }
        self.emit(side, seg, mode)
    }

    /// Forwards the reset of a socket that held bytes, in a form that the peer accepts although payload was forwarded
    /// past the socket (`abort_flow`).
    fn abort(&mut self, side: Side, raw: &Segment, mut seg: Segment, mode: Mode) -> Outcome {
        // This is the kernel's answer, for a socket that is gone, to a segment that came in unchanged.
        if mode == Mode::Aborted && !seg.has(flag::ACK) {
            return Outcome::wire(Verdict::Aborted, *raw);
        }
        let (from, to) = self.legs(side);
        // The pair is awake and nothing is on its way past the sockets: the other leg goes on.
        if mode == Mode::Undrain && has_delivered(from, to) && has_delivered(to, from) {
            if lacks_own_fin(to, &seg) {
                seg.seq = seg.seq + 1;
                seq_advance(&mut from.loc_end, seg.seq);
            }
            return Outcome::wire(Verdict::Emitted, seg);
        }
        // The peer is through: it waits for no bytes of the socket.
        if mode != Mode::Aborted && is_through(from, to) {
            return Outcome::of(Verdict::DropParked);
        }
        // The kernel answers for a socket that is gone to what the peer repeats: the far end's acknowledgement will
        // stop the peer.
        if mode == Mode::Undrain && !seg.has(flag::ACK) && has_closed(from, to) {
            return Outcome::of(Verdict::DropParked);
        }
        let mut new = seg;
        if seg.has(flag::ACK) {
            let end = if to.rec.end().after(to.cut) {
                to.rec.end() + to.rec.seq_off
            } else {
                from.loc_end
            };
            new.seq = reachable(from, end);
        }
        self.slot.mode = Mode::Aborted;
        Outcome::wire(Verdict::Aborted, new)
    }

    fn answer_of(&self, side: Side, seg: &Segment, mode: Mode) -> Answer {
        let (from, to) = (self.leg(side), self.leg(side.other()));
        let far = to.rec.rx_ack + to.rec.ack_off;
        let mut a = Answer {
            ack: seg.ack,
            edge: seg.edge(to.rec.wscale_out),
            lowered: false,
        };
        if self.slot.flags & slot_flag::COUPLE != 0 {
            a.edge = a.edge.min(coupled_edge(from, to));
        }
        if mode == Mode::Drain {
            a.edge = kept_edge_in_drain(&self.slot, from, to.rec.rx_edge + to.rec.ack_off);
            a.ack = a.ack.max(from.tx_ack);
            // The far end may have acknowledged forwarded bytes in segments that the peer never received.
            if !far.before(from.cut) {
                a.ack = a.ack.max(far);
            }
        } else if mode == Mode::Undrain {
            if !has_delivered(from, to) && far.before(a.ack) {
                a.ack = far.max(from.tx_ack);
                a.lowered = true;
            }
            a.edge = modest_edge(to, seg.ack, a.edge).max(from.tx_edge);
        }
        a
    }

    /// Processes a segment of the local socket of the peer's leg, in the wire's numbers already.
    fn emit(&mut self, side: Side, mut seg: Segment, mode: Mode) -> Outcome {
        let (from, to) = self.legs(side);
        let scale = to.rec.wscale_out;
        seq_advance(&mut from.loc_end, seg.end());
        never_back(&mut to.rec.ts_high, &mut seg);
        if !seg.has(flag::ACK) {
            return Outcome::wire(Verdict::Clamped, seg);
        }
        // The socket has the bytes from before the flow was registered.
        if mode != Mode::Undrain {
            seq_advance(&mut from.cut, seg.ack);
        }
        seq_advance(&mut from.loc_ack, seg.ack);
        seq_advance(&mut from.loc_edge, seg.edge(scale));
        if !seg.ack.before(from.loc_ack) {
            from.loc_shrunk = (from.loc_edge - seg.edge(scale)) as u32;
        }
        let a = self.answer_of(side, &seg, mode);
        let (from, to) = self.legs(side);
        let window = if a.ack != seg.ack || a.edge != seg.edge(scale) {
            window_field(a.edge, a.ack, scale)
        } else {
            seg.window
        };
        // A peer without SACK would take the third repetition for a loss.
        let repeats = !seg.occupies() && !a.ack.after(from.tx_ack) && !a.edge.after(from.tx_edge);
        if a.lowered && from.rec.traits & traits::SACK == 0 && repeats {
            return Outcome::of(Verdict::Absorbed);
        }
        seq_advance(&mut from.tx_ack, a.ack);
        let edge = a.ack + (window << (scale & 15));
        if mode == Mode::Track {
            from.tx_edge = edge;
        } else {
            seq_advance(&mut from.tx_edge, edge);
        }
        // A probe has a number below the sent data on purpose: the peer answers because the number is old.
        let bare = !seg.occupies() && !seg.has(flag::RST) && seg.seq == from.loc_end;
        // The peer ignores a number below the payload that was forwarded meanwhile.
        if bare && mode == Mode::Drain {
            seg.seq = seg.seq.max(to.rec.end() + to.rec.seq_off);
        }
        if bare && mode == Mode::Undrain && lacks_own_fin(to, &seg) {
            seg.seq = seg.seq + 1;
        }
        // The peer ignores a number beyond a window that it has taken back.
        if bare {
            seg.seq = reachable(from, seg.seq);
        }
        let same = a.ack == seg.ack && window == seg.window && Mapping::of_leg(from).is_identity();
        if a.ack != seg.ack {
            seg.sack = SackBlocks::default();
        }
        seg.ack = a.ack;
        seg.window = window;
        Outcome::wire(if same { Verdict::Emitted } else { Verdict::Clamped }, seg)
    }
}

/// Answers a local SYN to a live tuple with a reset: the connecting program learns of it at once, and the live flow
/// does not notice.
fn refuse_syn(seg: &Segment) -> Outcome {
    let answer = Segment {
        ack: seg.end(),
        flags: flag::RST | flag::ACK,
        ..Segment::default()
    };
    Outcome::local(Verdict::SynRefused, answer)
}

/// Returns whether the peer has the FIN that the local socket has not sent yet: the number of a segment without payload stands
/// behind it.
fn lacks_own_fin(to: &Leg, seg: &Segment) -> bool {
    to.bypassed & bypassed::FIN != 0 && seg.seq == first_own(to)
}
