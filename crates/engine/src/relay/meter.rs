//! Measures the rate of bytes from each side, and for how much of the time a send buffer was the limit.

use std::time::Duration;

use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::TcpInfo;
use tokio::time::Instant;

use crate::relay::pump::Pump;

/// Shortest span of a sample: a shorter one measures the scheduler rather than the stream.
const SHORTEST: Duration = Duration::from_millis(10);

/// Measures the rates of both directions, in bytes per second.
#[derive(Debug)]
pub(crate) struct Meter {
    at: Instant,
    bytes: PerSide<u64>,
    rates: PerSide<u64>,
    peaks: PerSide<u64>,
}

impl Meter {
    pub(crate) fn new(now: Instant) -> Meter {
        Meter {
            at: now,
            bytes: PerSide::both(0),
            rates: PerSide::both(0),
            peaks: PerSide::both(0),
        }
    }

    /// Takes a sample if the last one is at least `span` old.
    pub(crate) fn sample(&mut self, now: Instant, pump: &Pump, span: Duration) {
        let elapsed = now.duration_since(self.at);
        if elapsed < span.max(SHORTEST) {
            return;
        }
        for side in Side::BOTH {
            let bytes = pump.bytes(side);
            let per_second = u128::from(bytes - self.bytes[side]) * 1_000_000 / elapsed.as_micros().max(1);
            self.rates[side] = u64::try_from(per_second).unwrap_or(u64::MAX);
            self.peaks[side] = self.peaks[side].max(self.rates[side]);
            self.bytes[side] = bytes;
        }
        self.at = now;
    }

    /// Returns the rates of the last sample.
    pub(crate) fn rates(&self) -> PerSide<u64> {
        self.rates
    }

    /// Returns the highest rates of all samples.
    pub(crate) fn peaks(&self) -> PerSide<u64> {
        self.peaks
    }
}

/// Measures for how much of the time the send buffer of each socket was full, with nothing in it that was not sent.
#[derive(Debug)]
pub(crate) struct FullBuffers {
    at: Instant,
    /// Microseconds since the socket was made.
    full: PerSide<u64>,
    percent: PerSide<u32>,
}

impl FullBuffers {
    pub(crate) fn new(now: Instant) -> FullBuffers {
        FullBuffers {
            at: now,
            full: PerSide::both(0),
            percent: PerSide::both(0),
        }
    }

    /// Takes a sample if the last one is at least `span` old.
    pub(crate) fn sample(&mut self, now: Instant, infos: &PerSide<TcpInfo>, span: Duration) {
        let elapsed = now.duration_since(self.at);
        if elapsed < span.max(SHORTEST) {
            return;
        }
        for side in Side::BOTH {
            let full = infos[side].sndbuf_limited_us();
            // A socket that was built meanwhile counts from zero.
            let share = u128::from(full.saturating_sub(self.full[side])) * 100 / elapsed.as_micros().max(1);
            self.percent[side] = u32::try_from(share).unwrap_or(u32::MAX);
            self.full[side] = full;
        }
        self.at = now;
    }

    /// Returns the share of the last span, in percent.
    pub(crate) fn percent(&self) -> PerSide<u32> {
        self.percent
    }
}
