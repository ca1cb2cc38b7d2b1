//! Keeps the queue short that a relay builds up before a slow leg: the buffers of one socket follow the rate at which the
//! other one drains.
//!
//! Linux lets the window of a receiver grow with the rate at which its program reads, and the send queue with the
//! congestion window; together they hold a multiple of what a slow leg takes in a round trip. Here the queue is measured
//! (unread, between the sockets, unsent) beside the rate of the leg, and both buffers are set from that.

use std::{io, time::Duration};

use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::{TcpInfo, options, unread, unsent};
use tokio::time::Instant;

use crate::relay::pump::Pump;

/// Shortest time between two looks.
const SHORTEST_LOOK: Duration = Duration::from_millis(20);

/// Least bytes that each buffer may hold: a leg needs some segments to be repaired without a timeout.
const LEAST: u64 = 32 << 10;

/// Largest receive buffer that is set, in bytes.
const LARGEST: u64 = 16 << 20;

/// Part of a receive buffer that remains after one look, in percent, while it is made smaller. The window that was
/// offered cannot be taken back, and segments above the buffer would be dropped.
const SHRINK_PERCENT: u64 = 80;

/// Limit of the queues of a pair.
#[derive(Debug)]
pub(crate) struct QueueLimit {
    longest: Duration,
    directions: PerSide<Measured>,
    next: Instant,
}

/// State of one direction at the last look.
#[derive(Debug, Clone, Copy)]
struct Measured {
    at: Instant,
    /// Bytes that the receiving end had acknowledged.
    acknowledged: u64,
    /// Highest rate so far, which fades: bytes per second.
    rate: u64,
    /// Receive buffer that was set, in bytes of payload; `None`: the kernel's.
    buffer: Option<u64>,
}

impl QueueLimit {
    pub(crate) fn new(longest: Duration, now: Instant) -> QueueLimit {
        QueueLimit {
            longest,
            directions: PerSide::both(Measured {
                at: now,
                acknowledged: 0,
                rate: 0,
                buffer: None,
            }),
            next: now,
        }
    }

    /// Returns true if it is time to look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Measures the queues and sets the buffers. `infos` were just read from the pump's sockets.
    ///
    /// # Errors
    /// Returns those of the sockets.
    pub(crate) fn look(&mut self, now: Instant, pump: &mut Pump, infos: &PerSide<TcpInfo>) -> io::Result<()> {
        let mut longest = SHORTEST_LOOK;
        for side in Side::BOTH {
            let other = side.other();
            let round_trip = Duration::from_micros(infos[other].rtt_us().into());
            longest = longest.max(round_trip.min(10 * SHORTEST_LOOK));
            let state = &mut self.directions[side];
            let acknowledged = infos[other].bytes_acked();
            let passed = acknowledged.saturating_sub(state.acknowledged);
            let time = now.duration_since(state.at);
            if time < SHORTEST_LOOK {
                continue;
            }
            let rate = rate_of(passed, time);
            state.rate = rate.max(state.rate - state.rate / 8);
            (state.at, state.acknowledged) = (now, acknowledged);
            let queued = u64::from(unread(pump.socket(side))?)
                + pump.held(side) as u64
                + u64::from(unsent(pump.socket(other))?);
            // Half of the time is for each of the two sockets.
            let half = bytes_in(state.rate, self.longest / 2).max(LEAST);
            pump.limit_unsent(side, u32::try_from(half).unwrap_or(u32::MAX))?;
            let sender = Duration::from_micros(infos[side].rtt_us().max(infos[side].rcv_rtt_us()).into());
            let wanted = bytes_in(state.rate, sender) + half;
            let window = infos[side].rcv_wnd().map_or(0, u64::from);
            let Some(buffer) = next_buffer(state.buffer, queued, 2 * half, wanted, window) else {
                continue;
            };
            state.buffer = Some(buffer);
            options::force_receive_buffer(pump.socket(side), u32::try_from(buffer).unwrap_or(u32::MAX))?;
        }
        self.next = now + longest;
        Ok(())
    }
}

/// Returns the receive buffer to set, in bytes of payload; `None` leaves it as it is. `queued` bytes wait of at most
/// `most`; the sender needs `wanted` to keep the rate, and was offered `window`.
fn next_buffer(buffer: Option<u64>, queued: u64, most: u64, wanted: u64, window: u64) -> Option<u64> {
    let now = match (buffer, queued > most) {
        (None, false) => return None,
        (None, true) => queued.max(window),
        (Some(now), _) => now,
    };
    let next = if queued > most {
        wanted.max(now * SHRINK_PERCENT / 100)
    } else if queued < most / 4 {
        // The leg drains what comes: it may be able to take more.
        now + now / 4
    } else {
        wanted.max(now * SHRINK_PERCENT / 100).min(now)
    };
    Some(next.clamp(LEAST, LARGEST)).filter(|&next| Some(next) != buffer)
}

/// Returns the rate, in bytes per second, at which so many bytes pass in this time.
fn rate_of(bytes: u64, time: Duration) -> u64 {
    let micros = time.as_micros().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

/// Returns the bytes that pass in this time at a rate in bytes per second.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate).saturating_mul(time.as_micros()) / 1_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_queue_leaves_the_kernel_alone() {
        assert_eq!(next_buffer(None, 0, 100 << 10, 1 << 20, 64 << 10), None);
        assert_eq!(next_buffer(None, 100 << 10, 100 << 10, 1 << 20, 64 << 10), None);
    }

    #[test]
    fn a_long_queue_shrinks_the_buffer_to_what_the_rate_needs() {
        let (most, wanted) = (250_000, 200_000);
        let mut buffer = next_buffer(None, 2_000_000, most, wanted, 1_000_000);
        assert_eq!(buffer, Some(1_600_000));
        for _ in 0..20 {
            buffer = next_buffer(buffer, 2_000_000, most, wanted, 1_000_000).or(buffer);
        }
        assert_eq!(buffer, Some(wanted));
    }

    #[test]
    fn an_empty_queue_lets_it_grow_up_to_a_limit() {
        let mut buffer = Some(100_000);
        assert_eq!(next_buffer(buffer, 0, 250_000, 50_000, 50_000), Some(125_000));
        for _ in 0..100 {
            buffer = next_buffer(buffer, 0, 250_000, 50_000, 50_000).or(buffer);
        }
        assert_eq!(buffer, Some(LARGEST));
    }

    #[test]
    fn nothing_overflows() {
        for n in [0, 1, u64::MAX] {
            let _ = rate_of(n, Duration::ZERO);
            let _ = bytes_in(n, Duration::MAX);
        }
    }
}
