//! Reads the clock of the records: CLOCK_MONOTONIC in ticks of 2^30 ns.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Equals LS_TICK_SHIFT of bpf/abi.h.
const TICK_SHIFT: u32 = 30;

/// Length of one tick.
pub(crate) const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

/// Returns the present tick.
pub(crate) fn now() -> u32 {
    (read(ClockId::MonotonicCoarse) >> TICK_SHIFT) as u32
}

/// Returns CLOCK_MONOTONIC, in nanoseconds: the kernel half's `bpf_ktime_get_ns`.
pub fn monotonic() -> u64 {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
