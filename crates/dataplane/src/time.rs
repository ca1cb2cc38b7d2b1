//! Reads the clock of the records: CLOCK_MONOTONIC in ticks of 2^30 ns.

use std::time::Duration;

/// Equals LS_TICK_SHIFT of bpf/abi.h.
const TICK_SHIFT: u32 = 30;

/// Length of one tick.
pub(crate) const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

/// Returns the present tick.
pub(crate) fn now() -> u32 {
    (read(libc::CLOCK_MONOTONIC_COARSE) >> TICK_SHIFT) as u32
}

/// Returns CLOCK_MONOTONIC, in nanoseconds: the kernel half's `bpf_ktime_get_ns`.
pub fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a valid timespec; the clocks named above always exist.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
