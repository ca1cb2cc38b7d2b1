//! Measures the rate of bytes from each side, and how often a send buffer is the limit.

use std::time::Duration;

use longsplice_core::advisor::EARLIER_SPANS;
use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::TcpInfo;
use tokio::time::Instant;

use crate::relay::pump::Pump;

/// Shortest span of a sample: a shorter one measures the scheduler rather than the stream.
const SHORTEST: Duration = Duration::from_millis(10);

/// Bytes of both directions that may be the beginning of a stream: more than an initial window of each end (RFC 6928).
const BURST: u64 = 64 << 10;

/// Pause behind which bytes are measured by themselves.
const PAUSE: Duration = Duration::from_secs(1);

/// Measures the rates of both directions, in bytes per second.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Beginning of the present span, and the bytes before it.
    at: Instant,
    bytes: PerSide<u64>,
    /// Shortest span that makes a sample.
    span: Duration,
    /// Time at which bytes were last seen, and their number.
    seen: (Instant, PerSide<u64>),
    rates: PerSide<u64>,
    /// Rates of the spans before the last one, the latest first.
    earlier: PerSide<[u64; EARLIER_SPANS]>,
    peaks: PerSide<u64>,
}

impl Meter {
    pub(crate) fn new(now: Instant) -> Meter {
        Meter {
            at: now,
            bytes: PerSide::both(0),
            span: SHORTEST,
            seen: (now, PerSide::both(0)),
            rates: PerSide::both(0),
            earlier: PerSide::both([0; EARLIER_SPANS]),
            peaks: PerSide::both(0),
        }
    }

    /// Takes a sample if the last one is at least `span` old.
    pub(crate) fn sample(&mut self, now: Instant, pump: &Pump, span: Duration) {
        self.span = span.max(SHORTEST);
        let elapsed = now.duration_since(self.at);
        if elapsed < self.span {
            return;
        }
        for side in Side::BOTH {
            let bytes = pump.bytes(side);
            let per_second = u128::from(bytes - self.bytes[side]) * 1_000_000 / elapsed.as_micros().max(1);
            let earlier = &mut self.earlier[side];
            earlier.rotate_right(1);
            earlier[0] = self.rates[side];
            self.rates[side] = u64::try_from(per_second).unwrap_or(u64::MAX);
            self.peaks[side] = self.peaks[side].max(self.rates[side]);
            self.bytes[side] = bytes;
        }
        self.at = now;
        self.seen = (now, self.bytes);
    }

    /// Returns true if a sample is due of bytes that may be the beginning of a stream. The first bytes behind a pause begin a
    /// span.
    pub(crate) fn has_burst(&mut self, now: Instant, pump: &Pump) -> bool {
        let bytes = PerSide::from_fn(|side| pump.bytes(side));
        let (last, before) = self.seen;
        if bytes != before {
            if now.duration_since(last) >= PAUSE {
                (self.at, self.bytes) = (now, before);
            }
            self.seen = (now, bytes);
        }
        let passed = bytes.iter().sum::<u64>() - self.bytes.iter().sum::<u64>();
        passed >= BURST && now.duration_since(self.at) >= self.span
    }

    /// Returns the rates of the last sample.
    pub(crate) fn rates(&self) -> PerSide<u64> {
        self.rates
    }

    /// Returns the rates of the samples before the last one, the latest first.
    pub(crate) fn earlier(&self) -> PerSide<[u64; EARLIER_SPANS]> {
        self.earlier
    }

    /// Returns the highest rates of all samples.
    pub(crate) fn peaks(&self) -> PerSide<u64> {
        self.peaks
    }
}

/// Estimates how often the send buffer of each socket is what holds bytes back. (The kernel's own measure counts only
/// writes that find no room; the pump writes what fits.)
#[derive(Debug, Default)]
pub(crate) struct FullBuffers {
    percent: PerSide<u32>,
}

impl FullBuffers {
    /// Notes whether the socket toward a side was full: all that it held was sent, neither its congestion window nor the
    /// peer's window was used up, and `waiting` bytes found no room.
    pub(crate) fn note(&mut self, side: Side, info: &TcpInfo, waiting: u64) {
        let segment = u64::from(info.snd_mss());
        let in_flight = u64::from(info.unacked()) * segment;
        let windows = [
            u64::from(info.snd_cwnd()) * segment,
            info.snd_wnd().map_or(u64::MAX, u64::from),
        ];
        let has_room = windows
            .iter()
            .all(|window| in_flight * 4 < window.saturating_mul(3));
        let is_full = waiting > 0 && info.notsent_bytes() == 0 && in_flight > 0 && has_room;
        let percent = &mut self.percent[side];
        *percent = (*percent * 3 + if is_full { 100 } else { 0 }) / 4;
    }

    /// Returns the share of the last looks at a side, in percent.
    pub(crate) fn percent(&self) -> PerSide<u32> {
        self.percent
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::relay::{loopback::connection, pump::TURN};

    /// Bytes that a sample has counted, and a pause behind them, are no burst. Bytes behind the pause are measured by
    /// themselves.
    #[tokio::test]
    async fn a_burst_is_what_comes_behind_a_pause() {
        let ([mut client, near], [far, mut server]) = (connection().await, connection().await);
        let mut pump = Pump::new(near, far);
        let mut carry = async |bytes: u64, pump: &mut Pump| {
            let (all, end) = (vec![7; bytes as usize], pump.bytes(Side::Client) + bytes);
            let mut there = all.clone();
            let pass = async {
                while pump.bytes(Side::Client) < end {
                    pump.ready().await;
                    pump.step(TURN).unwrap();
                }
            };
            tokio::join!(async { client.write_all(&all).await.unwrap() }, pass);
            server.read_exact(&mut there).await.unwrap();
        };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let span = Duration::from_millis(100);
        let mut meter = Meter::new(start);
        carry(2 * BURST, &mut pump).await;
        meter.sample(at(5_000), &pump, span);
        for ms in [7_000, 7_200, 60_000] {
            assert!(!meter.has_burst(at(ms), &pump), "{ms} ms: nothing has come");
        }
        carry(BURST, &mut pump).await;
        assert!(!meter.has_burst(at(61_000), &pump), "its span begins");
        assert!(meter.has_burst(at(61_100), &pump));
        meter.sample(at(61_100), &pump, span);
        assert_eq!(meter.rates()[Side::Client], BURST * 10);
    }
}
