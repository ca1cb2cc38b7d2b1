//! Says how much of a full bottleneck a stream leaves to others before it is spliced.
//!
//! A relay repairs and grows within its own, shorter round trip, so its stream takes most of a bottleneck that it shares. A
//! splice ends that advantage, and gives nothing back: both streams have the same loop from then on, and their windows
//! become alike within minutes. So the stream is held to a fair rate first, until another one can have grown to its share.

use std::time::Duration;

/// Segments by which a window of CUBIC grows in the cube of a second (RFC 9438 section 5).
const GROWTH: f64 = 0.4;
/// Part of a window that CUBIC gives up at a loss (RFC 9438 section 4.6).
const LOST: f64 = 0.3;
/// Payload of a segment, in bytes.
const SEGMENT: f64 = 1_448.0;

/// Longest time for which a stream is held back.
const LONGEST: Duration = Duration::from_secs(20);

/// Streams that meet in a full bottleneck, as far as this host sees them.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// Rate of a relayed stream, in bytes per second.
    pub rate: u64,
    /// Number of relayed streams that have a queue, this one included.
    pub relayed: u32,
    /// Share of all packets that belongs to streams that are not relayed, in percent (0 to 100).
    pub plain_percent: u32,
    /// Round-trip time from end to end, without queues.
    pub path: Duration,
}

/// Rate to which a stream is held, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Yield {
    /// Bytes per second.
    pub rate: u64,
    /// Time from now on, at most 20 s.
    pub time: Duration,
}

impl Crowd {
    /// Returns how a stream yields: it leaves the plain ones what one stream more would have, until CUBIC can have taken that
    /// (RFC 9438 sections 4.2 and 4.6). Returns `None` if they have as much already, or if there are none.
    #[must_use]
    pub fn make_room(&self) -> Option<Yield> {
        let plain = f64::from(self.plain_percent.min(100)) / 100.0;
        let relayed = f64::from(self.relayed.max(1));
        let fair = 1.0 / (relayed + 1.0);
        if plain <= 0.0 || plain >= fair {
            return None;
        }
        let whole = self.rate as f64 * relayed / (1.0 - plain);
        let window = |share: f64| whole * share * self.path.as_secs_f64() / SEGMENT;
        let seconds = (window(plain) * LOST / GROWTH).cbrt() + (window(fair - plain) / GROWTH).cbrt();
        Some(Yield {
            rate: (whole * fair) as u64,
            time: Duration::from_secs_f64(seconds.min(LONGEST.as_secs_f64())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how a stream of 2 MB/s over 200 ms yields.
    fn yields(relayed: u32, plain_percent: u32) -> Option<Yield> {
        let crowd = Crowd {
            rate: 2_000_000,
            relayed,
            plain_percent,
            path: Duration::from_millis(200),
        };
        crowd.make_room()
    }

    #[test]
    fn a_stream_leaves_what_one_more_would_have() {
        let half = yields(1, 20).expect("another has a fifth");
        assert_eq!(half.rate, 1_250_000, "2.5 MB/s in all");
        assert_eq!(half.time.as_secs(), 10, "{half:?}");
        let tenth = yields(9, 5).expect("another has a twentieth");
        assert_eq!(tenth.rate, 1_894_736, "18.9 MB/s in all");
    }

    #[test]
    fn a_fair_share_is_no_reason_to_yield() {
        for (relayed, plain, expected) in [
            (1, 0, false),
            (1, 49, true),
            (1, 50, false),
            (1, 100, false),
            (9, 9, true),
            (9, 10, false),
            (0, 10, true),
        ] {
            assert_eq!(
                yields(relayed, plain).is_some(),
                expected,
                "{relayed} beside {plain} %"
            );
        }
    }

    #[test]
    fn extreme_rates_have_an_end_and_do_not_panic() {
        for rate in [0, 1, u64::MAX] {
            for path in [Duration::ZERO, Duration::MAX] {
                let crowd = Crowd {
                    rate,
                    relayed: u32::MAX,
                    plain_percent: 1,
                    path,
                };
                assert!(crowd.make_room().is_none());
                let yielded = Crowd { relayed: 1, ..crowd }.make_room();
                assert!(yielded.is_some_and(|y| y.time <= LONGEST), "{yielded:?}");
            }
        }
    }
}
