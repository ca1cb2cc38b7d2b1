//! Copies a leg out of a slot, field by field.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Slot;
use crate::abi::{Side, ls_leg};

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
            ($($atomic:ident: $($($path:ident).+),+;)+) => {$($(
                copy.$($path).+ = leg_field!(self, side, $($path).+ as $atomic).load(Ordering::Relaxed);
            )+)+};
        }
        load! {
            AtomicU8: rec.scales, rec.traits, rec.placement, rec.seen;
            AtomicU16: rec.mss, rec.bytes_high;
            AtomicU32: rec.seq_off, rec.ack_off, rec.tsval_off, rec.tsecr_off, rec.bytes_low, rec.r#where, rec.last_seen,
                rec.serial, rec.rx_end, rec.rx_ack, rec.rx_edge, rec.ts_high, rec.trap, rec.successor, rec.rate, rec.burst,
                cut, rx_ts, rx_echo, loc_acked, loc_end, loc_ack, loc_edge, tx_ack, tx_edge, max_inflight, adj_seq, adj_ack,
                base, bypassed, delivered, rx_shrunk, loc_shrunk;
            AtomicU64: rec.tat;
        }
        copy
    }
}
