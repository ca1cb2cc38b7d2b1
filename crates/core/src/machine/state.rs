//! What is known of a flow: `struct ls_record`, `ls_leg` and `ls_slot` of `bpf/abi.h`.

use crate::seq::{Offset, Seq};

/// A side of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The initiator's leg.
    Client = 0,
    /// The target's leg.
    Server = 1,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::Client, Side::Server];

    /// The far side.
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }

    /// Its place in arrays of two.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// `enum ls_trait`: constant while the flow is spliced.
pub mod traits {
    /// Both legs use timestamps (RFC 7323).
    pub const TIMESTAMPS: u8 = 1 << 1;
    /// The far end did not permit SACK (RFC 2018).
    pub const BLANK_SACK: u8 = 1 << 2;
    /// x permitted SACK.
    pub const SACK: u8 = 1 << 4;
}

/// `enum ls_seen`: what passed.
pub mod seen {
    /// The end of x's stream.
    pub const FIN: u8 = 1 << 0;
    /// A reset of x that was in place.
    pub const RST: u8 = 1 << 1;
}

/// `enum ls_owed`: what of x passed by its socket.
pub mod owed {
    /// UNDRAIN: something below `base`.
    pub const SOME: u32 = 1 << 0;
    /// FINAL: the socket was built for the flow, everything before it passed by it.
    pub const NEW: u32 = 1 << 1;
    /// And the FIN at `base`: user space has to have the local socket see it.
    pub const FIN: u32 = 1 << 2;
    /// DRAIN: payload was forwarded. A late packet may set it in another mode, where it means nothing.
    pub const DRAIN: u32 = 1 << 3;
}

/// `enum ls_slot_flag`.
pub mod slot_flag {
    /// TRACK: offer no window that the far end does not have.
    pub const COUPLE: u32 = 1 << 0;
    /// FINAL: the parked sockets can go on where the segments stopped.
    pub const WAKEABLE: u32 = 1 << 1;
    /// Forwarding: promise no window that the parked sockets could not keep.
    pub const KEEP: u32 = 1 << 2;
    /// FINAL: user space gets a copy of the payload that is forwarded.
    pub const COPY: u32 = 1 << 3;
    /// With KEEP: x has nothing to send beyond its trap, and is promised little there.
    pub const PAUSE: u32 = 1 << 5;
}

/// `enum ls_placement`: where the truth about a direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// In the record.
    #[default]
    Detached,
    /// In the slot.
    Slotted,
    /// No flow: a leg in control mode whose socket counts otherwise than the wire.
    Alone,
}

/// `enum ls_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Nobody's.
    #[default]
    Free,
    /// Local delivery; sequence numbers are noted.
    Track,
    /// New payload is forwarded while the sockets deliver the old.
    Drain,
    /// Constant translation; what the parked sockets emit is dropped.
    Final,
    /// A new connection took the tuple of a closing flow.
    Replaced,
    /// A socket was reset while it held bytes: both ends must see a reset.
    Aborted,
    /// New payload goes to the sockets while the ends deliver what was forwarded.
    Undrain,
    /// Some CPU is about to make it UNDRAIN.
    Waking,
    /// The records have the truth again.
    Moved,
    /// As FINAL, but new payload of both directions is held.
    Freeze,
}

/// `struct ls_record`, without addresses and statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// Sequence number of x + this = of the same byte toward o.
    pub seq_off: Offset,
    /// Likewise for acknowledgements and SACK edges.
    pub ack_off: Offset,
    /// Likewise for TSval.
    pub tsval_off: Offset,
    /// Likewise for TSecr.
    pub tsecr_off: Offset,
    /// Scale of the window field that x sends, 0 to 14.
    pub wscale_in: u8,
    /// Scale that o applies to it, 0 to 14.
    pub wscale_out: u8,
    /// Of [`traits`].
    pub traits: u8,
    /// Where the truth is; meaningless within a slot.
    pub placement: Placement,
    /// Of [`seen`].
    pub seen: u8,
    /// Whether `trap` counts.
    pub armed: bool,
    /// Highest end of payload of x. A FIN is not counted: two fields would have to agree about it on two CPUs.
    pub rx_end: Seq,
    /// Highest acknowledgement of x.
    pub rx_ack: Seq,
    /// Highest right edge of the window that x offers.
    pub rx_edge: Seq,
    /// Highest TSval sent to o, by whomever.
    pub ts_high: Seq,
    /// Payload of x that ends here or beyond is not forwarded.
    pub trap: Seq,
    /// Payload translated.
    pub bytes: u64,
}

impl Record {
    /// The end of x's stream as far as it passed: after its FIN, if that did.
    pub fn end(&self) -> Seq {
        self.rx_end + u32::from(self.seen & seen::FIN != 0)
    }
}

/// `struct ls_leg`: the leg of the peer x. "local" is the forwarder's socket of that leg. Numbers are the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leg {
    /// The direction from x.
    pub rec: Record,
    /// End of what was shown to the local socket.
    pub cut: Seq,
    /// Highest TSval of x.
    pub rx_ts: Seq,
    /// Highest acknowledgement of x that the local socket was shown.
    pub loc_acked: Seq,
    /// End of what the local socket sent to x.
    pub loc_end: Seq,
    /// Highest acknowledgement of the local socket itself.
    pub loc_ack: Seq,
    /// Highest window edge that the local socket itself offered to x.
    pub loc_edge: Seq,
    /// Highest acknowledgement sent to x, by whomever.
    pub tx_ack: Seq,
    /// Window edge last offered to x, by whomever.
    pub tx_edge: Seq,
    /// COUPLE: bytes that x may have beyond what the far end acknowledged; 0: no limit.
    pub room: u32,
    /// The local socket's own numbers are greater by this: the stream of x.
    pub adj_seq: Offset,
    /// And by this: the stream toward x.
    pub adj_ack: Offset,
    /// UNDRAIN: what x sent below it was forwarded, and is not the local socket's business.
    pub base: Seq,
    /// Of [`owed`].
    pub owed: u32,
    /// DRAIN: if it equals `cut`, user space has passed on all that the local socket had. FINAL: where the local socket
    /// stands.
    pub read_to: Seq,
}

/// `struct ls_slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// See [`Mode`].
    pub mode: Mode,
    /// Of [`slot_flag`].
    pub flags: u32,
    /// By [`Side`].
    pub leg: [Leg; 2],
}

/// A flow: both records, which are there or not, and the slot of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    /// The elements of the map `flows`, by side. Their soft half counts where they are not slotted.
    pub records: [Option<Record>; 2],
    /// The element of the array `slots`.
    pub slot: Slot,
}

/// Raises a shared sequence number (`raise` of `bpf/seq.h`).
pub(super) fn raise(field: &mut Seq, to: Seq) {
    *field = field.max(to);
}

impl Flow {
    /// The legs of a side and of the far side.
    pub(super) fn legs(&mut self, side: Side) -> (&mut Leg, &mut Leg) {
        let [client, server] = &mut self.slot.leg;
        match side {
            Side::Client => (client, server),
            Side::Server => (server, client),
        }
    }

    /// The leg of a side.
    #[must_use]
    pub fn leg(&self, side: Side) -> &Leg {
        &self.slot.leg[side.index()]
    }

    /// Where the truth about a direction is; `None` if the tuple is unknown.
    #[must_use]
    pub fn placement(&self, side: Side) -> Option<Placement> {
        self.records[side.index()].map(|r| r.placement)
    }

    /// The record of a direction, wherever it is (`find` of `bpf/walk.h`).
    #[must_use]
    pub fn record(&self, side: Side) -> Option<&Record> {
        let record = self.records[side.index()].as_ref()?;
        Some(if record.placement == Placement::Slotted {
            &self.slot.leg[side.index()].rec
        } else {
            record
        })
    }

    /// The record at a place that was found before: it may have moved on since.
    pub(super) fn record_at(&mut self, side: Side, slotted: bool) -> Option<&mut Record> {
        if slotted {
            Some(&mut self.slot.leg[side.index()].rec)
        } else {
            self.records[side.index()].as_mut()
        }
    }
}
