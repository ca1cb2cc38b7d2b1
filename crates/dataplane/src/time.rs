//! The clock of the records: CLOCK_MONOTONIC in ticks of 2^30 ns.

use std::time::Duration;

/// LS_TICK_SHIFT of bpf/abi.h.
const TICK_SHIFT: u32 = 30;

/// One tick.
pub(crate) const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

/// The present tick.
pub(crate) fn now() -> u32 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a valid timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut t) };
    let ns = t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64;
    (ns >> TICK_SHIFT) as u32
}
