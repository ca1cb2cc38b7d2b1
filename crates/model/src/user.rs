//! Models the transitions that user space makes.

use longsplice_core::seq::{Offset, Seq};

use super::{
    state::{Flow, Leg, Mode, Placement, Record, Side, bypassed, seen, seq_advance, slot_flag, traits},
    undrain::has_delivered,
};

/// State of a local socket's connection, in its own numbers (`struct ls_inspection`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketState {
    /// Next number that it expects.
    pub rcv_nxt: Seq,
    /// Highest acknowledgement that it sent.
    pub rcv_wup: Seq,
    /// Right edge of the window that it offers.
    pub rcv_edge: Seq,
    /// Next number that it will send.
    pub snd_nxt: Seq,
    /// Lowest number that is not acknowledged.
    pub snd_una: Seq,
    /// Right edge of the window that the peer offers.
    pub snd_edge: Seq,
    /// Timestamp of the peer.
    pub ts_recent: Seq,
    /// True if the peer's FIN has come: `rcv_nxt` counts it.
    pub ended: bool,
}

/// Direction of a pair that is to be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// First, constant half of its record.
    pub record: Record,
    /// Local socket of its leg.
    pub socket: SocketState,
    /// Amount by which the socket's numbers exceed the wire's (see [`Leg::adj_seq`]).
    pub adj_seq: Offset,
    /// Amount by which the socket's numbers exceed the wire's in the stream toward the peer.
    pub adj_ack: Offset,
    /// Highest TSval that the socket may have sent.
    pub ts_high: Seq,
}

/// Socket that is built anew for a leg: its numbers are the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    /// Next number that it expects: all bytes below were forwarded.
    pub rcv_nxt: Seq,
    /// Right edge of the window that it offers.
    pub rcv_edge: Seq,
    /// Next number that it will send, and lowest not acknowledged.
    pub snd_nxt: Seq,
}

impl Leg {
    fn start(start: &Start) -> Leg {
        let socket = &start.socket;
        let (seq, ack) = (start.adj_seq, start.adj_ack);
        let rcv_nxt = socket.rcv_nxt - seq;
        let tx_ack = socket.rcv_wup - seq;
        let edge = socket.rcv_edge - seq;
        Leg {
            rec: Record {
                rx_end: rcv_nxt - u32::from(socket.ended),
                seen: if socket.ended { seen::FIN } else { 0 },
                rx_ack: socket.snd_una - ack,
                rx_edge: socket.snd_edge - ack,
                placement: Placement::Detached,
                ..start.record
            },
            cut: rcv_nxt,
            rx_ts: socket.ts_recent,
            loc_acked: socket.snd_una - ack,
            loc_end: socket.snd_nxt - ack,
            loc_ack: tx_ack,
            loc_edge: edge,
            tx_ack,
            tx_edge: edge,
            adj_seq: seq,
            adj_ack: ack,
            delivered: rcv_nxt - 1,
            ..Leg::default()
        }
    }
}

impl Flow {
    /// Installs both records and the slot, in TRACK.
    #[must_use]
    pub fn register(start: &[Start; 2]) -> Flow {
        let mut flow = Flow::default();
        for side in Side::BOTH {
            let (own, far) = (&start[side], &start[side.other()]);
            let leg = &mut flow.slot.leg[side];
            *leg = Leg::start(own);
            leg.rec.ts_high = far.ts_high;
            flow.records[side] = Some(Record {
                placement: Placement::Slotted,
                ..leg.rec
            });
        }
        flow.slot.mode = Mode::Track;
        flow
    }

    /// Compares and swaps the mode.
    pub fn transition(&mut self, from: Mode, to: Mode) -> bool {
        let same = self.slot.mode == from;
        if same {
            self.slot.mode = to;
        }
        same
    }

    /// Arms a trap: payload of `side` that ends at `at` or beyond is not forwarded any more. The caller has to check
    /// `rx_end` afterwards: earlier payload is not trapped.
    pub fn arm(&mut self, side: Side, at: Seq) {
        self.set_trap(side, Some(at));
    }

    /// Disarms the trap of a side.
    pub fn disarm(&mut self, side: Side) {
        self.set_trap(side, None);
    }

    fn set_trap(&mut self, side: Side, at: Option<Seq>) {
        let slotted = self.placement(side) == Some(Placement::Slotted);
        if let Some(rec) = self.record_at(side, slotted) {
            rec.armed = at.is_some();
            rec.trap = at.unwrap_or(rec.trap);
        }
    }

    /// Notes, before a drain, the bytes that the local socket of a side has received: up to `received` in the wire's
    /// numbers, with the FIN of its peer if that has `ended`. Bytes on their way to the socket at the registration of
    /// the pair were not noted, nor those accepted by a window that was not seen.
    pub fn note_received(&mut self, side: Side, received: Seq, ended: bool) {
        let (from, _) = self.legs(side);
        seq_advance(&mut from.cut, received);
        seq_advance(&mut from.rec.rx_end, received - u32::from(ended));
        if ended {
            from.rec.seen |= seen::FIN;
        }
    }

    /// Goes from Track to Drain, with the offsets between the timestamps of the two legs.
    pub fn start_drain(&mut self, ts_off: [Offset; 2], flags: u32) -> bool {
        if self.slot.mode != Mode::Track {
            return false;
        }
        for side in Side::BOTH {
            let far = ts_off[side.other()];
            let leg = &mut self.slot.leg[side];
            leg.rec.tsval_off = ts_off[side];
            leg.rec.tsecr_off = -far;
            leg.delivered = leg.cut - 1;
            leg.bypassed = 0;
        }
        self.slot.flags = flags;
        self.transition(Mode::Track, Mode::Drain)
    }

    /// Lowers the noted acknowledgement of a side's peer to the one that its socket accepted (in the wire's numbers):
    /// an acknowledgement that the socket refused does not count.
    pub fn disbelieve(&mut self, side: Side, una: Seq) {
        let (from, _) = self.legs(side);
        if from.loc_end.after(una) {
            from.loc_acked = from.loc_acked.min(una);
            from.rec.rx_ack = from.rec.rx_ack.min(una);
        }
    }

    /// Returns whether both ends have acknowledged all that was forwarded, and the sockets have sent all that the ends
    /// may have acknowledged: then the sockets alone can be in the path.
    ///
    /// The second condition matters to a pair that was woken while it drained: bytes below the cut went both ways, and
    /// a socket refuses acknowledgements above the data that it sent (RFC 9293 section 3.10.7.4).
    #[must_use]
    pub fn is_quiescent(&self) -> bool {
        let through = |from: &Leg, to: &Leg| has_delivered(from, to) && !to.rec.rx_ack.after(to.loc_end);
        let [a, b] = &self.slot.leg;
        through(a, b) && through(b, a)
    }

    /// Goes from Undrain to Track, once the flow is settled.
    pub fn undrained(&mut self) -> bool {
        self.is_quiescent() && self.transition(Mode::Undrain, Mode::Track)
    }

    /// Gives a flow in FINAL without usable sockets rebuilt ones, so that it can be woken. Returns `false` if it is in
    /// another mode or has usable ones.
    pub fn rebuilt(&mut self, sockets: &[Rebuilt; 2]) -> bool {
        if self.slot.mode != Mode::Final || self.slot.flags & slot_flag::WAKEABLE != 0 {
            return false;
        }
        for side in Side::BOTH {
            let socket = &sockets[side];
            let (from, to) = self.legs(side);
            *from = Leg {
                rec: from.rec,
                cut: socket.rcv_nxt,
                rx_ts: from.rx_ts,
                loc_acked: socket.snd_nxt,
                loc_end: socket.snd_nxt,
                loc_ack: socket.rcv_nxt,
                loc_edge: socket.rcv_edge,
                tx_ack: to.rec.rx_ack + to.rec.ack_off,
                tx_edge: socket.rcv_edge,
                base: socket.rcv_nxt,
                bypassed: bypassed::NEW,
                delivered: socket.rcv_nxt,
                ..Leg::default()
            };
        }
        self.slot.flags = slot_flag::WAKEABLE | slot_flag::KEEP;
        true
    }

    /// Takes the flow apart: each leg is alone from now on, with its mapping if it has one.
    pub fn part(&mut self) {
        for side in Side::BOTH {
            let leg = *self.leg(side);
            let far = *self.leg(side.other());
            // The peer may have received a later timestamp than the socket's clock shows.
            let mapped = leg.adj_seq.raw() | leg.adj_ack.raw() != 0;
            let needed = mapped || leg.rec.traits & traits::TIMESTAMPS != 0;
            self.records[side] = needed.then_some(Record {
                seq_off: leg.adj_seq,
                ack_off: leg.adj_ack,
                ts_high: far.rec.ts_high,
                placement: Placement::Alone,
                ..Record::default()
            });
        }
        self.slot.mode = Mode::Free;
    }

    /// Forgets the flow: the stack answers later segments of its ends.
    pub fn unregister(&mut self) {
        self.records = [None; 2];
        self.slot.mode = Mode::Free;
    }
}
