//! Copies a leg out of a slot, field by field.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Slot;
use crate::abi::{Side, ls_leg};

/// Number that is loaded at once.
trait Whole: Sized {
    /// Loads a number that others change meanwhile.
    ///
    /// # Safety
    /// The place is valid and aligned, and this process accesses it by atomics of this size only.
    unsafe fn load(place: *mut Self) -> Self;
}

macro_rules! whole {
    ($($number:ty as $atomic:ident),+) => {$(
        impl Whole for $number {
            unsafe fn load(place: *mut Self) -> Self {
                // SAFETY: as the caller has promised.
                unsafe { $atomic::from_ptr(place) }.load(Ordering::Relaxed)
            }
        }
    )+};
}
whole!(
    u8 as AtomicU8,
    u16 as AtomicU16,
    u32 as AtomicU32,
    u64 as AtomicU64
);

impl Slot {
    /// Copies a leg, while packets pass: each field is whole, the fields may be of different moments.
    pub(crate) fn leg(&self, side: Side) -> ls_leg {
        let leg = self.leg_pointer(side);
        let mut copy = ls_leg {
            // SAFETY: a valid element. Only `fill` and the program `promote` write the key, while the slot has no other user.
            key: unsafe { (&raw const (*leg).key).read() },
            ..Default::default()
        };
        macro_rules! load {
            ($($($path:ident).+),+ $(,)?) => {$(
                // SAFETY: an aligned field within the mapping, which the table keeps alive. No reference is made to the leg,
                // and this process accesses the field by atomics of its size only, once `fill` is done.
                copy.$($path).+ = unsafe { Whole::load(&raw mut (*leg).$($path).+) };
            )+};
        }
        load! {
            rec.scales, rec.traits, rec.placement, rec.seen, rec.mss, rec.bytes_high, rec.seq_off, rec.ack_off, rec.tsval_off,
            rec.tsecr_off, rec.bytes_low, rec.r#where, rec.last_seen, rec.serial, rec.rx_end, rec.rx_ack, rec.rx_edge,
            rec.ts_high, rec.trap, rec.successor, rec.rate, rec.burst, rec.tat, cut, rx_ts, rx_echo, loc_acked, loc_end,
            loc_ack, loc_edge, tx_ack, tx_edge, max_inflight, adj_seq, adj_ack, base, bypassed, delivered, rx_shrunk,
            loc_shrunk,
        }
        copy
    }
}
