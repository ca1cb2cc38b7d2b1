//! Defines the state of a flow: `struct ls_record`, `ls_leg` and `ls_slot` of `bpf/abi.h`.

use longsplice_core::seq::{Offset, Seq};
pub use longsplice_core::side::Side;

/// Bits of `enum ls_trait`, constant while the flow is spliced.
pub mod traits {
    /// Both legs use timestamps (RFC 7323).
    pub const TIMESTAMPS: u8 = 1 << 1;
    /// The far end did not permit SACK (RFC 2018).
    pub const BLANK_SACK: u8 = 1 << 2;
    /// The sender permitted SACK.
    pub const SACK: u8 = 1 << 4;
}

/// Bits of `enum ls_seen`: the ends of the stream that passed.
pub mod seen {
    /// The end of the sender's stream.
    pub const FIN: u8 = 1 << 0;
    /// A reset of the sender that was in place.
    pub const RST: u8 = 1 << 1;
}

/// Bits of `enum ls_bypassed`: stream bytes of the sender that bypassed its socket.
pub mod bypassed {
    /// UNDRAIN: bytes below `base`.
    pub const SOME: u32 = 1 << 0;
    /// FINAL: the socket was built for the flow, all earlier bytes bypassed it.
    pub const NEW: u32 = 1 << 1;
    /// The FIN at `base` bypassed the local socket: user space has to show it to the socket.
    pub const FIN: u32 = 1 << 2;
    /// DRAIN: payload was forwarded. A late packet may set it in another mode, where it has no meaning.
    pub const DRAIN: u32 = 1 << 3;
}

/// Bits of `enum ls_slot_flag`.
pub mod slot_flag {
    /// TRACK: offer no larger window than the far end does.
    pub const COUPLE: u32 = 1 << 0;
    /// FINAL: the parked sockets can continue where the segments stopped.
    pub const WAKEABLE: u32 = 1 << 1;
    /// Forwarding: promise no window that the parked sockets could not take.
    pub const KEEP: u32 = 1 << 2;
    /// FINAL: user space gets a copy of the payload that is forwarded.
    pub const COPY: u32 = 1 << 3;
    /// With KEEP: the sender has nothing to send beyond its trap, so only a small window is promised there.
    pub const PAUSE: u32 = 1 << 5;
}

/// Place of a direction's current record (`enum ls_placement`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The record in the table.
    #[default]
    Detached,
    /// The record in the slot.
    Slotted,
    /// The record in the table, of a leg in control mode without a flow, whose socket's numbers differ from those of
    /// the wire.
    Alone,
}

/// Mode of a slot (`enum ls_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The slot is not used.
    #[default]
    Free,
    /// Segments go to the local sockets; sequence numbers are noted.
    Track,
    /// New payload is forwarded while the sockets deliver the old.
    Drain,
    /// The translation is constant; segments of the parked sockets are dropped.
    Final,
    /// A new connection took the tuple of a closing flow.
    Replaced,
    /// A socket was reset while it held bytes: both ends must see a reset.
    Aborted,
    /// New payload goes to the sockets while the ends deliver the forwarded payload.
    Undrain,
    /// A CPU changes the mode.
    Waking,
    /// The records are current again.
    Moved,
    /// Like FINAL, but new payload of both directions is held.
    Freeze,
}

/// `struct ls_record`, without addresses and statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// Added to a sequence number of the sender, gives that of the same byte toward the far end.
    pub seq_off: Offset,
    /// Added to acknowledgements and SACK edges of the sender.
    pub ack_off: Offset,
    /// Added to TSval of the sender.
    pub tsval_off: Offset,
    /// Added to TSecr of the sender.
    pub tsecr_off: Offset,
    /// Scale of the window field that the sender sends, 0 to 14.
    pub wscale_in: u8,
    /// Scale that the far end applies to that field, 0 to 14.
    pub wscale_out: u8,
    /// Bits of [`traits`].
    pub traits: u8,
    /// Place of the current record; meaningless within a slot.
    pub placement: Placement,
    /// Bits of [`seen`].
    pub seen: u8,
    /// True if `trap` counts.
    pub armed: bool,
    /// Highest end of payload of the sender. A FIN is not counted: two fields would have to agree about it on two CPUs.
    pub rx_end: Seq,
    /// Highest acknowledgement of the sender.
    pub rx_ack: Seq,
    /// Highest right edge of the window that the sender offers.
    pub rx_edge: Seq,
    /// Highest TSval sent to the far end, by the sender or by a local socket.
    pub ts_high: Seq,
    /// Payload of the sender that ends here or beyond is not forwarded.
    pub trap: Seq,
    /// Bytes of payload translated.
    pub bytes: u64,
}

impl Record {
    /// Returns the end of the sender's stream as far as it passed: after its FIN, if that passed.
    pub fn end(&self) -> Seq {
        self.rx_end + u32::from(self.seen & seen::FIN != 0)
    }
}

/// `struct ls_leg`: state of the leg of the peer. "local" is the forwarder's socket of that leg. Numbers are the
/// wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leg {
    /// Direction from the peer.
    pub rec: Record,
    /// End of the payload shown to the local socket.
    pub cut: Seq,
    /// Highest TSval of the peer.
    pub rx_ts: Seq,
    /// Highest acknowledgement of the peer that was shown to the local socket.
    pub loc_acked: Seq,
    /// End of the payload that the local socket sent to the peer.
    pub loc_end: Seq,
    /// Highest acknowledgement of the local socket itself.
    pub loc_ack: Seq,
    /// Highest window edge that the local socket itself offered to the peer.
    pub loc_edge: Seq,
    /// Highest acknowledgement sent to the peer, by the local socket or forwarded from the far end.
    pub tx_ack: Seq,
    /// Window edge last offered to the peer, by the local socket or forwarded from the far end.
    pub tx_edge: Seq,
    /// COUPLE: bytes that the peer may send beyond those that the far end acknowledged; 0: no limit.
    pub max_inflight: u32,
    /// Amount by which the local socket's own numbers exceed those of the wire, in the stream of the peer.
    pub adj_seq: Offset,
    /// Amount by which the local socket's own numbers exceed those of the wire, in the stream toward the peer.
    pub adj_ack: Offset,
    /// UNDRAIN: payload of the peer below it was forwarded; the local socket does not deliver it.
    pub base: Seq,
    /// Bits of [`bypassed`].
    pub bypassed: u32,
    /// DRAIN: equal to `cut` once user space has passed on all that the local socket received. FINAL: where the local
    /// socket stands.
    pub delivered: Seq,
    /// Bytes by which the peer, short of memory, has taken its window back from `rec.rx_edge`.
    pub rx_shrunk: u32,
    /// Bytes by which the local socket has taken its window back from `loc_edge`.
    pub loc_shrunk: u32,
}

/// `struct ls_slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// See [`Mode`].
    pub mode: Mode,
    /// Bits of [`slot_flag`].
    pub flags: u32,
    /// Legs, by [`Side`].
    pub leg: [Leg; 2],
}

/// Flow with its records, each present or not, and its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    /// Elements of the map `flows`, by side. Their second half counts if they are not slotted.
    pub records: [Option<Record>; 2],
    /// Element of the array `slots`.
    pub slot: Slot,
}

/// Raises a shared sequence number (`seq_advance` of `bpf/seq.h`).
pub(super) fn seq_advance(field: &mut Seq, to: Seq) {
    *field = field.max(to);
}

impl Flow {
    /// Returns the legs of a side and of the far side.
    pub(super) fn legs(&mut self, side: Side) -> (&mut Leg, &mut Leg) {
        let [client, server] = &mut self.slot.leg;
        match side {
            Side::Client => (client, server),
            Side::Server => (server, client),
        }
    }

    /// Returns the leg of a side.
    #[must_use]
    pub fn leg(&self, side: Side) -> &Leg {
        &self.slot.leg[side]
    }

    /// Returns the place of a direction's current record; `None` if the tuple is unknown.
    #[must_use]
    pub fn placement(&self, side: Side) -> Option<Placement> {
        self.records[side].map(|r| r.placement)
    }

    /// Returns the current record of a direction, wherever it is (`find` of `bpf/flow.h`).
    #[must_use]
    pub fn record(&self, side: Side) -> Option<&Record> {
        let record = self.records[side].as_ref()?;
        Some(if record.placement == Placement::Slotted {
            &self.slot.leg[side].rec
        } else {
            record
        })
    }

    /// Returns the record at a place that was found before: the current one may have moved since.
    pub(super) fn record_at(&mut self, side: Side, slotted: bool) -> Option<&mut Record> {
        if slotted {
            Some(&mut self.slot.leg[side].rec)
        } else {
            self.records[side].as_mut()
        }
    }
}
