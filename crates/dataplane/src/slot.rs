//! Holds one slot: a flow that has sockets, in memory that the kernel half and this process share.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
};

use longsplice_core::{
    limit::Rate,
    seq::{Offset, Seq},
};

use crate::{
    abi::{LS_RULED, Leg, Mapping, PerSide, Side, ls_leg, ls_slot},
    inspect::Inspection,
    mode::Mode,
    skel::types::{ls_bypassed, ls_placement, ls_seen, ls_slot_flag},
    slots::SlotTable,
    successor::SuccessorPlan,
};

/// Returns a field of a slot, for atomic accesses.
macro_rules! field {
    ($slot:expr, $($path:tt)+) => {{
        let element = $slot.table.at($slot.index).as_ptr();
        // SAFETY: an aligned u32 within the mapping, which the table keeps alive. No reference is made to the slot, and this
        // process accesses the field as this atomic only, once `fill` is done.
        unsafe { AtomicU32::from_ptr(&raw mut (*element).$($path)+) }
    }};
}

/// Returns a field of a side's leg, for atomic accesses: one of four bytes unless another type is named.
macro_rules! leg_field {
    ($slot:expr, $side:expr, $($path:ident).+) => {
        leg_field!($slot, $side, $($path).+ as AtomicU32)
    };
    ($slot:expr, $side:expr, $($path:ident).+ as $atomic:ident) => {{
        let leg = $slot.leg_pointer($side);
        // SAFETY: an aligned field within the mapping, which the table keeps alive. No reference is made to the leg, and this
        // process accesses the field as this atomic only, once `fill` is done.
        unsafe { $atomic::from_ptr(&raw mut (*leg).$($path).+) }
    }};
}

mod copy;

/// Owns a slot of one flow; dropping it frees the slot.
#[derive(Debug)]
pub struct Slot {
    table: Arc<SlotTable>,
    index: u32,
}

/// Describes a local socket that was made for a leg of a flow in mode Final (numbers of the wire, which are the socket's
/// own then).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sockets {
    /// Next sequence number that it expects from the peer.
    pub receive_next: Seq,
    /// Next sequence number that it sends.
    pub send_next: Seq,
    /// Right edge of the window that it accepts.
    pub edge: Seq,
}

impl Slot {
    /// Takes a free slot; `None` if all but `spared` ones are in use.
    pub(crate) fn take(table: &Arc<SlotTable>, spared: u32) -> Option<Slot> {
        let index = table.take(spared)?;
        Some(Slot {
            table: table.clone(),
            index,
        })
    }

    /// Frees every slot that is free in the mapping, and returns the others as they are. `adopted` is true for a
    /// predecessor's slots, of which one may have been freed a moment ago.
    pub(crate) fn take_over(table: &Arc<SlotTable>, adopted: bool) -> Vec<Slot> {
        let used = table.take_over(adopted).into_iter();
        let slot = |index| Slot {
            table: table.clone(),
            index,
        };
        used.map(slot).collect()
    }

    /// Returns its index in the array.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the present mode. Waits while another processor wakes a pair: that takes less than a microsecond, unless
    /// the processor is stopped meanwhile.
    pub fn mode(&self) -> Mode {
        self.table.mode(self.index)
    }

    /// Changes the mode if it is `from`, and returns true if it was. This is a full barrier: afterwards this process
    /// reads of the legs all that the kernel half wrote before it saw the new mode (bpf/seq.h, `seq_advance`).
    pub fn transition(&self, from: Mode, to: Mode) -> bool {
        let mode = field!(self, mode);
        let done = self.mode() == from
            && mode
                .compare_exchange(from.raw(), to.raw(), Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
        fence(Ordering::SeqCst);
        done
    }

    fn set_flag(&self, flag: ls_slot_flag, on: bool) {
        let flags = field!(self, flags);
        if on {
            flags.fetch_or(flag.0, Ordering::SeqCst);
        } else {
            flags.fetch_and(!flag.0, Ordering::SeqCst);
        }
    }

    /// Sets whether the windows are coupled (papers' section III-E).
    pub fn set_coupling(&self, on: bool) {
        self.set_flag(ls_slot_flag::LS_COUPLE, on);
    }

    /// Asks for one event ([`crate::EventKind::News`]): in mode Track for the next acknowledgement of either end, in mode
    /// Drain for that of the last byte below a cut. The event may get lost if the ring is full.
    pub fn watch(&self) {
        self.set_flag(ls_slot_flag::LS_WATCH, true);
    }

    /// Sets whether an end is promised no more than its parked socket could keep.
    pub fn set_keeping(&self, on: bool) {
        self.set_flag(ls_slot_flag::LS_KEEP, on);
    }

    /// Sets whether an end has nothing to send beyond its trap. Then [`Slot::set_keeping`] still lets it be promised all
    /// up to its trap and at most 32 KiB beyond. A packet that wakes the sockets at its trap finds them able to keep
    /// that; one that would wake them earlier, when they cannot, is held instead.
    pub fn set_pausing(&self, on: bool) {
        self.set_flag(ls_slot_flag::LS_PAUSE, on);
    }

    /// Sets whether the parked sockets of mode Final can carry on where the segments stopped, so that a trap may wake
    /// them.
    pub fn set_wakeable(&self, on: bool) {
        self.set_flag(ls_slot_flag::LS_WAKEABLE, on);
    }

    /// Returns true if a wake has found data in a local socket that no program noted: the socket cannot carry on, and
    /// must be replaced.
    pub fn has_strayed(&self) -> bool {
        field!(self, flags).load(Ordering::SeqCst) & ls_slot_flag::LS_STRAYED.0 != 0
    }

    /// Sets whether user space gets copies of forwarded payload ([`crate::EventKind::Copy`]).
    pub fn set_copying(&self, on: bool) {
        self.set_flag(ls_slot_flag::LS_COPY, on);
    }

    /// Arms a trap: payload from a side that ends at this sequence number or beyond is not forwarded (papers' section
    /// III-D). `None` disarms it.
    pub fn set_trap(&self, side: Side, at: Option<Seq>) {
        if let Some(at) = at {
            leg_field!(self, side, rec.trap).store(at.raw(), Ordering::SeqCst);
        }
        let placement = leg_field!(self, side, rec.placement as AtomicU8);
        let armed = ls_placement::LS_ARMED.0 as u8;
        match at {
            Some(_) => placement.fetch_or(armed, Ordering::SeqCst),
            None => placement.fetch_and(!armed, Ordering::SeqCst),
        };
    }

    /// Sets the action of a later process at a side's trap, if this one is gone by then. Set it before the trap is armed.
    pub fn set_successor(&self, side: Side, plan: SuccessorPlan) {
        leg_field!(self, side, rec.successor).store(plan.raw(), Ordering::SeqCst);
    }

    /// Limits the rate of a side's peer from now on ([`Rate`]); `paid` is a time of [`crate::monotonic`]: that at which
    /// the limit has allowed all that passed. `None`: no limit.
    pub fn set_rate(&self, side: Side, rate: Option<Rate>, paid: u64) {
        leg_field!(self, side, rec.tat as AtomicU64).store(paid, Ordering::SeqCst);
        // A greater burst, of seconds or minutes, would not be reached by a connection that has a limit.
        let burst = rate.map_or(0, |rate| rate.burst().min(!LS_RULED));
        leg_field!(self, side, rec.burst).store(burst, Ordering::SeqCst);
        leg_field!(self, side, rec.rate).store(rate.map_or(0, Rate::per_second), Ordering::SeqCst);
    }

    /// Returns the time at which the limit has allowed all that passed of a side.
    pub fn paid(&self, side: Side) -> u64 {
        leg_field!(self, side, rec.tat as AtomicU64).load(Ordering::SeqCst)
    }

    /// Charges bytes of a side that this process has passed on, beside those that the kernel half passes.
    pub fn charge(&self, side: Side, rate: Rate, now: u64, bytes: u64) {
        let paid = leg_field!(self, side, rec.tat as AtomicU64);
        // It cannot fail: the closure always returns a value.
        let _ = paid.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |paid| {
            Some(rate.charge(paid, now, bytes))
        });
    }

    /// Promises in mode Drain that all bytes up to `cut` that the local socket of a side had received were read and
    /// passed on, and that none of them waits to be sent. (A number other than the cut promises nothing.)
    pub fn set_delivered(&self, side: Side, cut: Seq) {
        leg_field!(self, side, delivered).store(cut.raw(), Ordering::SeqCst);
    }

    /// Passes the numbers of the sockets that were made for a flow in mode Final to the kernel half.
    pub fn set_sockets(&self, sockets: PerSide<Sockets>) {
        for side in Side::BOTH {
            let s = sockets[side];
            for (word, value) in [
                (leg_field!(self, side, cut), s.receive_next.raw()),
                (leg_field!(self, side, delivered), s.receive_next.raw()),
                (leg_field!(self, side, loc_ack), s.receive_next.raw()),
                (leg_field!(self, side, loc_edge), s.edge.raw()),
                (leg_field!(self, side, loc_end), s.send_next.raw()),
                (leg_field!(self, side, loc_acked), s.send_next.raw()),
                (leg_field!(self, side, adj_seq), 0),
                (leg_field!(self, side, adj_ack), 0),
                (leg_field!(self, side, bypassed), ls_bypassed::LS_BYPASSED_NEW.0),
                (leg_field!(self, side, rx_shrunk), 0),
                (leg_field!(self, side, loc_shrunk), 0),
            ] {
                word.store(value, Ordering::SeqCst);
            }
        }
    }

    /// Switches from Undrain to Track, once all forwarded bytes are acknowledged. Returns true if it was in Undrain.
    pub fn resolve(&self) -> bool {
        let done = self.transition(Mode::Undrain, Mode::Track);
        if done {
            self.own_all();
        }
        done
    }

    /// Makes the sockets the owners of all bytes that bypassed them, in mode Track.
    pub fn own_all(&self) {
        field!(self, leg[0].bypassed).store(0, Ordering::SeqCst);
        field!(self, leg[1].bypassed).store(0, Ordering::SeqCst);
    }

    /// Sets the offsets of both directions: the sequence number of a side's peer plus `offsets[side]` is that of the same
    /// byte toward the far end.
    pub fn set_offsets(&self, offsets: PerSide<Offset>) {
        for side in Side::BOTH {
            let back = -offsets[side.other()];
            leg_field!(self, side, rec.seq_off).store(offsets[side].raw(), Ordering::SeqCst);
            leg_field!(self, side, rec.ack_off).store(back.raw(), Ordering::SeqCst);
        }
    }

    /// Notes that a local socket accepts its peer's stream up to this right edge (of the wire).
    pub fn set_edge(&self, side: Side, edge: Seq) {
        raise(leg_field!(self, side, loc_edge), edge.raw());
        leg_field!(self, side, loc_shrunk).store(0, Ordering::SeqCst);
    }

    /// Returns the flow's serial number.
    pub fn serial(&self) -> u32 {
        field!(self, serial).load(Ordering::Relaxed)
    }

    /// Limits the bytes that the peer of this side may have in flight beyond the far end's acknowledgement; 0: no limit.
    pub fn set_max_inflight(&self, side: Side, room: u32) {
        leg_field!(self, side, max_inflight).store(room, Ordering::Relaxed);
    }

    /// Resets the highest TSecr of this side's peer to this one: later ones can be told from it.
    pub fn set_echo(&self, side: Side, tsecr: u32) {
        leg_field!(self, side, rx_echo).store(tsecr, Ordering::Relaxed);
    }

    /// Notes that the peer of this side may have been sent this TSval.
    pub fn note_sent(&self, side: Side, tsval: u32) {
        raise(leg_field!(self, side.other(), rec.ts_high), tsval);
    }

    /// Notes in mode Drain that the peer of this side has acknowledged its socket's bytes up to here (of the wire). Returns
    /// false in any other mode: a wake may have moved the number over bytes that bypassed the socket, before the caller
    /// read it.
    pub fn note_acknowledged(&self, side: Side, ack: Seq) -> bool {
        // Check after the caller has read the number: a number that was read before a wake is right whenever it is noted.
        if self.mode() != Mode::Drain {
            return false;
        }
        raise(leg_field!(self, side, rec.rx_ack), ack.raw());
        raise(leg_field!(self, side, loc_acked), ack.raw());
        true
    }

    /// Lowers in mode Drain the noted acknowledgement of this side's peer to here (of the wire): its socket has not taken
    /// more. An acknowledgement that comes at the same moment stays.
    pub fn disbelieve(&self, side: Side, una: Seq) {
        if self.mode() != Mode::Drain {
            return;
        }
        for field in [
            leg_field!(self, side, loc_acked),
            leg_field!(self, side, rec.rx_ack),
        ] {
            let noted = field.load(Ordering::SeqCst);
            if Seq::new(noted) - una > 0 {
                // An acknowledgement that another processor has noted meanwhile may be true.
                let _ = field.compare_exchange(noted, una.raw(), Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Sets the timestamp offsets of both directions; `tsval[side]` is of the direction from that side's peer.
    pub fn set_timestamp_offsets(&self, tsval: PerSide<u32>) {
        for side in Side::BOTH {
            let back = tsval[side.other()].wrapping_neg();
            leg_field!(self, side, rec.tsval_off).store(tsval[side], Ordering::Relaxed);
            leg_field!(self, side, rec.tsecr_off).store(back, Ordering::Relaxed);
        }
    }

    /// Returns the addresses of both legs.
    pub(crate) fn legs(&self) -> PerSide<Leg> {
        PerSide::from_fn(|side| Leg::from_tuple(&self.leg(side).key))
    }

    fn leg_pointer(&self, side: Side) -> *mut ls_leg {
        let element = self.table.at(self.index).as_ptr();
        // SAFETY: a valid element, which the table keeps alive; no reference is made.
        unsafe {
            match side {
                Side::Client => &raw mut (*element).leg[0],
                Side::Server => &raw mut (*element).leg[1],
            }
        }
    }

    /// Returns the offset of a side's local socket from the numbers on the wire.
    pub fn mapping(&self, side: Side) -> Mapping {
        Mapping {
            seq: Offset::new(leg_field!(self, side, adj_seq).load(Ordering::SeqCst)),
            ack: Offset::new(leg_field!(self, side, adj_ack).load(Ordering::SeqCst)),
        }
    }

    /// Notes the end of what a socket has received. `ended`: that includes the FIN of its peer.
    pub fn note_received(&self, side: Side, end: Seq, ended: bool) {
        if ended {
            let seen = leg_field!(self, side, rec.seen as AtomicU8);
            seen.fetch_or(ls_seen::LS_SEEN_FIN.0 as u8, Ordering::SeqCst);
        }
        raise(leg_field!(self, side, rec.rx_end), (end - u32::from(ended)).raw());
    }

    /// Notes what a socket sent and received just before its flow was registered: bytes, acknowledgements, and the window
    /// that its peer offers. `ended`: the bytes include the FIN of its peer.
    pub fn note_socket(&self, side: Side, inspection: &Inspection, ended: bool) {
        let map = self.mapping(side);
        let received = inspection.rcv_nxt - map.seq;
        self.note_received(side, received, ended);
        for (word, value) in [
            (leg_field!(self, side, cut), received),
            (leg_field!(self, side, loc_end), inspection.snd_nxt - map.ack),
            (
                leg_field!(self, side, loc_edge),
                inspection.offered_edge - map.seq,
            ),
        ] {
            raise(word, value.raw());
        }
        // Check after all is read: a wake that came before may have moved the numbers over bytes that bypassed the socket.
        if !matches!(self.mode(), Mode::Track | Mode::Drain) {
            return;
        }
        // The peer may send nothing more that repeats it.
        let (acked, edge) = (inspection.snd_una - map.ack, inspection.peer_edge - map.ack);
        for (word, value) in [
            (leg_field!(self, side, rec.rx_ack), acked),
            (leg_field!(self, side, loc_acked), acked),
            (leg_field!(self, side, rec.rx_edge), edge),
        ] {
            raise(word, value.raw());
        }
    }

    /// Notes that the peer of this side may have been offered this right edge (of the wire) before its flow was registered.
    pub fn note_offered(&self, side: Side, edge: Seq) {
        raise(leg_field!(self, side, tx_edge), edge.raw());
    }

    /// Adds to the payload bytes of the direction from a side.
    pub fn add_bytes(&self, side: Side, bytes: u64) {
        let high = leg_field!(self, side, rec.bytes_high as AtomicU16);
        let low = leg_field!(self, side, rec.bytes_low).fetch_add(bytes as u32, Ordering::Relaxed);
        let carry = u16::from(low.checked_add(bytes as u32).is_none());
        high.fetch_add(((bytes >> 32) as u16).wrapping_add(carry), Ordering::Relaxed);
    }

    /// Fills the slot, the mode last.
    pub(crate) fn fill(&self, serial: u32, legs: PerSide<ls_leg>, mode: Mode) {
        let slot = ls_slot {
            serial,
            leg: legs.into(),
            ..Default::default()
        };
        // SAFETY: a valid element of a free slot: it has rested, so no packet finds it, and this process has no other user of
        // it, so no atomic access is under way.
        unsafe { self.table.at(self.index).as_ptr().write_volatile(slot) };
        field!(self, mode).store(mode.raw(), Ordering::SeqCst);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        field!(self, mode).store(Mode::Free.raw(), Ordering::SeqCst);
        self.table.put_back(self.index);
    }
}

/// Raises a sequence number or a TSval unless it is at least `to` already.
fn raise(field: &AtomicU32, to: u32) {
    let mut now = field.load(Ordering::SeqCst);
    while Seq::new(to) - Seq::new(now) > 0 {
        match field.compare_exchange_weak(now, to, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return,
            Err(seen) => now = seen,
        }
    }
}
