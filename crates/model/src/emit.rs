//! Models the segments of the local sockets: `emit.h`, and `egress` of `forward.bpf.c`.

use longsplice_core::seq::Seq;

use super::{
    forward::is_first,
    local::{Mapping, never_back, to_wire},
    outcome::{Outcome, Verdict},
    segment::{SackBlocks, Segment, flag},
    state::{Flow, Leg, Mode, Placement, Side, bypassed, raise, slot_flag, traits},
    track::{is_closed_by, is_through},
    undrain::{first_own, reachable, settled},
    window::{coupled_edge, kept_edge, modest_edge, window_field},
};

/// Acknowledgement and window that a socket's segment carries toward x.
struct Answer {
    ack: Seq,
    edge: Seq,
    /// True if the acknowledgement was lowered, because the far end does not have those bytes yet.
    lowered: bool,
}

/// Returns true if the local socket of x's leg has closed in order: it has acknowledged x's end, and x has acknowledged
/// the end of o's stream. x may not know it yet, because it is told less while o lacks bytes.
fn has_closed(x: &Leg, o: &Leg) -> bool {
    is_closed_by(x, o, x.loc_ack)
}

impl Flow {
    /// Processes a segment of the local socket of a side's leg.
    pub fn egress(&mut self, side: Side, s: &Segment) -> Outcome {
        let mode = match self.placement(side) {
            None => return Outcome::wire(Verdict::Next, *s),
            Some(Placement::Alone) => return self.emit_alone(side, s),
            Some(Placement::Detached) => Mode::Final,
            Some(Placement::Slotted) => self.slot.mode,
        };
        match mode {
            Mode::Free | Mode::Replaced => Outcome::wire(Verdict::Next, *s),
            Mode::Final | Mode::Freeze | Mode::Moved | Mode::Waking => {
                if self.placement(side) == Some(Placement::Slotted) {
                    self.note_parked(side, s);
                }
                if is_first(s) {
                    refuse_syn(s)
                } else {
                    Outcome::of(Verdict::DropParked)
                }
            }
            Mode::Track | Mode::Drain | Mode::Undrain | Mode::Aborted => self.speak(side, s, mode),
        }
    }

    /// Notes a parked socket's segment, which is dropped: the window that it offers stays promised. A socket that
    /// resets is gone, with its process: a trap must not wake it.
    fn note_parked(&mut self, side: Side, s: &Segment) {
        if s.has(flag::RST) {
            self.slot.flags &= !slot_flag::WAKEABLE;
        } else if s.has(flag::ACK) && self.slot.mode == Mode::Final {
            let (x, o) = self.legs(side);
            raise(&mut x.loc_edge, s.edge(o.rec.wscale_out) - x.adj_seq);
        }
    }

    /// Processes a segment of a socket that is in the path.
    fn speak(&mut self, side: Side, raw: &Segment, mode: Mode) -> Outcome {
        let s = to_wire(raw, Mapping::of_leg(self.leg(side)));
        if mode != Mode::Track && s.has(flag::RST) {
            return self.abort(side, raw, s, mode);
        }
        // A segment that cannot be mapped any more is dropped.
        if mode == Mode::Aborted {
            return if Mapping::of_leg(self.leg(side)).is_identity() {
                Outcome::wire(Verdict::Next, *raw)
            } else {
                Outcome::of(Verdict::DropParked)
            };
        }
        let o = self.leg(side.other());
        // Drop a retransmission from before the socket's own stream: its peer has acknowledged those bytes, but the
        // socket has not received that. The next acknowledgement repeats it.
        if mode == Mode::Undrain
            && o.bypassed & bypassed::SOME != 0
            && s.occupies()
            && s.seq.before(first_own(o))
        {
            return Outcome::of(Verdict::DropParked);
        }
        self.emit(side, s, mode)
    }

    /// Forwards the reset of a socket that held bytes, in a form that the peer accepts although payload was forwarded
    /// past the socket (`abort_flow`).
    fn abort(&mut self, side: Side, raw: &Segment, s: Segment, mode: Mode) -> Outcome {
        // This is the kernel's answer, for a socket that is gone, to a segment that came in unchanged.
        if mode == Mode::Aborted && !s.has(flag::ACK) {
            return Outcome::wire(Verdict::Aborted, *raw);
        }
        let (x, o) = self.legs(side);
        // The pair is awake and nothing is on its way past the sockets: the other leg goes on.
        if mode == Mode::Undrain && settled(x, o) && settled(o, x) {
            return Outcome::wire(Verdict::Emitted, s);
        }
        // x is through: it waits for no bytes of the socket.
        if mode != Mode::Aborted && is_through(x, o) {
            return Outcome::of(Verdict::DropParked);
        }
        // The kernel answers for a socket that is gone to what x repeats: o's acknowledgement will stop x.
        if mode == Mode::Undrain && !s.has(flag::ACK) && has_closed(x, o) {
            return Outcome::of(Verdict::DropParked);
        }
        let mut new = s;
        if s.has(flag::ACK) {
            let end = if o.rec.end().after(o.cut) {
                o.rec.end() + o.rec.seq_off
            } else {
                x.loc_end
            };
            new.seq = reachable(x, end);
        }
        self.slot.mode = Mode::Aborted;
        Outcome::wire(Verdict::Aborted, new)
    }

    fn answer_of(&self, side: Side, s: &Segment, mode: Mode) -> Answer {
        let (x, o) = (self.leg(side), self.leg(side.other()));
        let far = o.rec.rx_ack + o.rec.ack_off;
        let mut a = Answer {
            ack: s.ack,
            edge: s.edge(o.rec.wscale_out),
            lowered: false,
        };
        if self.slot.flags & slot_flag::COUPLE != 0 {
            a.edge = a.edge.min(coupled_edge(x, o));
        }
        if mode == Mode::Drain {
            a.edge = kept_edge(&self.slot, x, o.rec.rx_edge + o.rec.ack_off);
            a.ack = a.ack.max(x.tx_ack);
            // The far end may have acknowledged forwarded bytes in segments that x never received.
            if !far.before(x.cut) {
                a.ack = a.ack.max(far);
            }
        } else if mode == Mode::Undrain {
            if !settled(x, o) && far.before(a.ack) {
                a.ack = far.max(x.tx_ack);
                a.lowered = true;
            }
            a.edge = modest_edge(o, s.ack, a.edge).max(x.tx_edge);
        }
        a
    }

    /// Processes a segment of the local socket of x's leg, in the wire's numbers already.
    fn emit(&mut self, side: Side, mut s: Segment, mode: Mode) -> Outcome {
        let (x, o) = self.legs(side);
        let scale = o.rec.wscale_out;
        raise(&mut x.loc_end, s.end());
        never_back(&mut o.rec.ts_high, &mut s);
        if !s.has(flag::ACK) {
            return Outcome::wire(Verdict::Clamped, s);
        }
        // The socket has the bytes from before the flow was registered.
        if mode != Mode::Undrain {
            raise(&mut x.cut, s.ack);
        }
        raise(&mut x.loc_ack, s.ack);
        raise(&mut x.loc_edge, s.edge(scale));
        if !s.ack.before(x.loc_ack) {
            x.loc_shrunk = (x.loc_edge - s.edge(scale)) as u32;
        }
        let a = self.answer_of(side, &s, mode);
        let (x, o) = self.legs(side);
        let window = if a.ack != s.ack || a.edge != s.edge(scale) {
            window_field(a.edge, a.ack, scale)
        } else {
            s.window
        };
        // A peer without SACK would take the third repetition for a loss.
        let repeats = !s.occupies() && !a.ack.after(x.tx_ack) && !a.edge.after(x.tx_edge);
        if a.lowered && x.rec.traits & traits::SACK == 0 && repeats {
            return Outcome::of(Verdict::Absorbed);
        }
        raise(&mut x.tx_ack, a.ack);
        let edge = a.ack + (window << (scale & 15));
        if mode == Mode::Track {
            x.tx_edge = edge;
        } else {
            raise(&mut x.tx_edge, edge);
        }
        // A probe has a number below the sent data on purpose: the peer answers because the number is old.
        let bare = !s.occupies() && !s.has(flag::RST) && s.seq == x.loc_end;
        // The peer ignores a number below the payload that was forwarded meanwhile.
        if bare && mode == Mode::Drain {
            s.seq = s.seq.max(o.rec.end() + o.rec.seq_off);
        }
        // The peer has the FIN that the local socket has not sent yet: the number stands behind it.
        if bare && mode == Mode::Undrain && o.bypassed & bypassed::FIN != 0 && s.seq == first_own(o) {
            s.seq = s.seq + 1;
        }
        // The peer ignores a number beyond a window that it has taken back.
        if bare {
            s.seq = reachable(x, s.seq);
        }
        let same = a.ack == s.ack && window == s.window && Mapping::of_leg(x).is_identity();
        if a.ack != s.ack {
            s.sack = SackBlocks::default();
        }
        s.ack = a.ack;
        s.window = window;
        Outcome::wire(if same { Verdict::Emitted } else { Verdict::Clamped }, s)
    }
}

/// Answers a local SYN to a live tuple with a reset: the connecting program learns of it at once, and the live flow
/// does not notice.
fn refuse_syn(s: &Segment) -> Outcome {
    let answer = Segment {
        ack: s.end(),
        flags: flag::RST | flag::ACK,
        ..Segment::default()
    };
    Outcome::local(Verdict::SynRefused, answer)
}
