//! Clock of the laboratory.

use rustix::time::{ClockId, clock_gettime};

/// Number of nanoseconds since a fixed moment.
pub type Nanos = u64;

/// Returns nanoseconds of `CLOCK_MONOTONIC`, the clock that `bpf_ktime_get_ns` reads too: a time stamp taken here can
/// be compared with one taken by an eBPF program or by another process.
pub fn monotonic_ns() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    // CLOCK_MONOTONIC starts at zero when the machine boots, so neither part is ever negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
