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

/// Part of a receive buffer that remains after one look, in percent, while it is made smaller.
const SHRINK_PERCENT: u64 = 80;

/// Round trips for which the window of a leg that repairs losses has to last. One is for the bytes on their way, one for those
/// that wait behind a gap, and one for a repair that was lost, too.
const ROUND_TRIPS_OF_REPAIRS: u32 = 3;

/// Round trips of a leg for which its queue may last while BBR starts up there. Its rate may double within one, and its startup
/// ends by rounds in which it was never short of data (draft-ietf-ccwg-bbr section 5.3.1). Until then it paces at 2.9 times the
/// rate of the path, and overfills the path's queue with each loss that it repairs.
const ROUND_TRIPS_OF_STARTUP: u32 = 4;

/// Limit of the queues of a pair.
#[derive(Debug)]
pub(crate) struct QueueLimit {
    longest: Duration,
    directions: PerSide<Measured>,
    next: Instant,
}

/// Findings of a look at a direction: at the socket that receives, in the node, and at the socket that sends.
#[derive(Debug, Clone, Copy)]
struct Sight {
    at: Instant,
    /// Bytes that the receiving end has acknowledged.
    acknowledged: u64,
    /// Bytes that wait: unread, between the sockets, unsent.
    queued: u64,
    /// Bytes of them that are unread, and the memory that they take; 0 if there are none.
    unread: u64,
    memory: u64,
    /// Number of segments that have come out of order.
    out_of_order: u32,
    /// Window that the sender was offered, in bytes; 0 if the kernel does not tell.
    window: u64,
    /// Round-trip times of the leg that sends here, and of the one that receives from here.
    round_trip: Duration,
    far_round_trip: Duration,
    /// True if BBR starts up on the leg that receives.
    starts: bool,
}

impl Sight {
    /// Returns the findings before the first look.
    fn before(at: Instant) -> Sight {
        Sight {
            at,
            acknowledged: 0,
            queued: 0,
            unread: 0,
            memory: 0,
            out_of_order: 0,
            window: 0,
            round_trip: Duration::ZERO,
            far_round_trip: Duration::ZERO,
            starts: true,
        }
    }

    /// Returns the size to set for a receive buffer that so many bytes fill. The kernel doubles the size and counts memory, of which
    /// full segments take less.
    fn in_buffer(&self, bytes: u64) -> u64 {
        match self.unread {
            0 => bytes,
            unread => bytes.saturating_mul(self.memory) / (2 * unread),
        }
    }
}

/// Limits of a direction's sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    /// Most bytes that may wait to be sent.
    unsent: u64,
    /// Receive buffer to set, in bytes of payload; `None`: as it is.
    buffer: Option<u64>,
}

/// State of one direction.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Findings of the last look. `starts` is true until one has met no BBR in its startup.
    last: Sight,
    /// Highest rate so far, which fades: bytes per second.
    rate: u64,
    /// Receive buffer that was set, in bytes of payload; `None`: the kernel's.
    buffer: Option<u64>,
}

impl Measured {
    fn new(at: Instant) -> Measured {
        Measured {
            last: Sight::before(at),
            rate: 0,
            buffer: None,
        }
    }

    /// Returns the limits that keep the queue at `longest`.
    fn limits(&mut self, sight: Sight, longest: Duration) -> Limits {
        let passed = sight.acknowledged.saturating_sub(self.last.acknowledged);
        let rate = rate_of(passed, sight.at.duration_since(self.last.at));
        self.rate = rate.max(self.rate - self.rate / 8);
        let starts = self.last.starts && sight.starts;
        let longest = match starts {
            true => longest.max(ROUND_TRIPS_OF_STARTUP * sight.far_round_trip),
            false => longest,
        };
        // Half of the time is for each of the two sockets.
        let half = bytes_in(self.rate, longest / 2).max(LEAST);
        // All that waits behind a gap comes at once when that is filled. A queue is what is there for longer.
        let (stays, round_trips) = match sight.out_of_order != self.last.out_of_order {
            true => (sight.queued.min(self.last.queued), ROUND_TRIPS_OF_REPAIRS),
            false => (sight.queued, 1),
        };
        let wanted = bytes_in(self.rate, round_trips * sight.round_trip) + half;
        // The sender may use up its window within a round trip, in which some bytes leave. When a segment finds no room, the kernel
        // closes the window to two segments (`tcp_clamp_window`): the stream runs dry.
        let offered = sight.in_buffer(sight.unread + sight.window);
        let filled = offered.saturating_sub(sight.in_buffer(bytes_in(self.rate, sight.round_trip)));
        let now = self.buffer.unwrap_or(stays.max(sight.window).max(offered));
        let is_limited = self.buffer.is_some() || stays > 2 * half;
        let next = is_limited.then(|| next_buffer(now, stays, 2 * half, wanted, filled));
        let buffer = next.filter(|_| next != self.buffer);
        self.buffer = buffer.or(self.buffer);
        self.last = Sight { starts, ..sight };
        Limits { unsent: half, buffer }
    }
}

impl QueueLimit {
    pub(crate) fn new(longest: Duration, now: Instant) -> QueueLimit {
        QueueLimit {
            longest,
            directions: PerSide::both(Measured::new(now)),
            next: now,
        }
    }

    /// Returns true if it is time to look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Measures the queues and sets the buffers. `infos` were just read from the pump's sockets.
    pub(crate) fn look(&mut self, now: Instant, pump: &mut Pump, infos: &PerSide<TcpInfo>) -> io::Result<()> {
        let mut longest = SHORTEST_LOOK;
        for side in Side::BOTH {
            let (from, to) = (&infos[side], &infos[side.other()]);
            let far_round_trip = Duration::from_micros(to.rtt_us().into());
            longest = longest.max(far_round_trip.min(10 * SHORTEST_LOOK));
            let state = &mut self.directions[side];
            if now.duration_since(state.last.at) < SHORTEST_LOOK {
                continue;
            }
            let (source, sink) = (pump.socket(side), pump.socket(side.other()));
            let unread = u64::from(unread(source)?);
            let sight = Sight {
                at: now,
                acknowledged: to.bytes_acked(),
                queued: unread + pump.held(side) as u64 + u64::from(unsent(sink)?),
                unread,
                memory: match unread {
                    0 => 0,
                    _ => options::receive_memory(source)?.into(),
                },
                out_of_order: from.rcv_ooopack().unwrap_or(0),
                window: from.rcv_wnd().map_or(0, u64::from),
                round_trip: Duration::from_micros(from.rtt_us().max(from.rcv_rtt_us()).into()),
                far_round_trip,
                starts: state.last.starts && options::is_in_bbr_startup(sink)?,
            };
            let limits = state.limits(sight, self.longest);
            if let Some(buffer) = limits.buffer {
                options::force_receive_buffer(source, u32::try_from(buffer).unwrap_or(u32::MAX))?;
            }
            pump.limit_unsent(side, u32::try_from(limits.unsent).unwrap_or(u32::MAX))?;
        }
        self.next = now + longest;
        Ok(())
    }
}

/// Returns the receive buffer that follows one of `now` bytes of payload. `queued` bytes wait of at most `most`, and the sender
/// needs `wanted` to keep the rate. The buffer does not get smaller than `filled`, which will be in it, nor larger for it.
fn next_buffer(now: u64, queued: u64, most: u64, wanted: u64, filled: u64) -> u64 {
    let shrunk = (now * SHRINK_PERCENT / 100).max(filled).min(now);
    let next = if queued > most {
        wanted.max(shrunk)
    } else if queued < most / 4 {
        // The leg drains what comes: it may be able to take more.
        now + now / 4
    } else {
        wanted.max(shrunk).min(now)
    };
    next.clamp(LEAST, LARGEST)
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
    use longsplice_core::advisor::Thresholds;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{Acceleration, OpenError, Pair, Splicer, SplicerConfig, Until, relay::loopback::connection};

    #[test]
    fn a_long_queue_shrinks_the_buffer_to_what_the_rate_needs() {
        let (most, wanted) = (250_000, 200_000);
        let mut buffer = 2_000_000;
        for _ in 0..20 {
            let next = next_buffer(buffer, 2_000_000, most, wanted, 0);
            assert_eq!(next, wanted.max(buffer * 80 / 100));
            buffer = next;
        }
        assert_eq!(buffer, wanted);
    }

    #[test]
    fn a_buffer_is_not_made_smaller_than_it_may_be() {
        for queued in [250_000, 100_000] {
            let next = |filled| next_buffer(400_000, queued, 125_000, 90_000, filled);
            assert_eq!(next(390_000), 390_000);
            assert_eq!(next(200_000), 320_000);
            assert_eq!(next(500_000), 400_000, "it does not grow");
        }
    }

    #[test]
    fn an_empty_queue_lets_it_grow_up_to_a_limit() {
        let mut buffer = 100_000;
        assert_eq!(next_buffer(buffer, 0, 250_000, 50_000, 0), 125_000);
        for _ in 0..100 {
            buffer = next_buffer(buffer, 0, 250_000, 50_000, 0);
        }
        assert_eq!(buffer, LARGEST);
    }

    const LONGEST: Duration = Duration::from_millis(75);

    /// Looks at a direction once in a round trip of 92 ms, in which a megabyte passes.
    struct Looks {
        state: Measured,
        sight: Sight,
    }

    impl Looks {
        fn new() -> Looks {
            let at = Instant::now();
            let sight = Sight {
                window: 2_000_000,
                round_trip: Duration::from_millis(92),
                far_round_trip: Duration::from_millis(92),
                starts: false,
                ..Sight::before(at)
            };
            let state = Measured::new(at);
            Looks { state, sight }
        }

        fn look(&mut self, queued: u64) -> Limits {
            self.sight.at += Duration::from_millis(92);
            self.sight.acknowledged += 1_000_000;
            self.sight.queued = queued;
            self.state.limits(self.sight, LONGEST)
        }
    }

    #[test]
    fn what_a_filled_gap_sets_free_is_no_queue() {
        let mut looks = Looks::new();
        for queued in [0, 2_000_000, 0, 1_000_000, 0, 0, 2_000_000] {
            looks.sight.out_of_order += 100;
            assert_eq!(looks.look(queued).buffer, None);
        }
        // It stays: the leg behind is slow. Three round trips remain for the repairs.
        for _ in 0..20 {
            looks.sight.out_of_order += 100;
            looks.look(2_000_000);
        }
        let half = bytes_in(looks.state.rate, LONGEST / 2);
        let repairs = bytes_in(looks.state.rate, Duration::from_millis(3 * 92));
        assert_eq!(looks.state.buffer, Some(repairs + half));
        // Without repairs one round trip is enough.
        for _ in 0..20 {
            looks.look(2_000_000);
        }
        let buffer = looks.state.buffer.unwrap();
        assert!((1_000_000..1_000_000 + 2 * half).contains(&buffer), "{buffer}");
    }

    #[test]
    fn a_short_queue_leaves_the_kernel_alone() {
        let mut looks = Looks::new();
        let most = 2 * bytes_in(1_000_000 * 1_000 / 92, LONGEST / 2);
        for queued in [0, most - 10] {
            assert_eq!(looks.look(queued).buffer, None);
        }
        assert!(looks.look(most + 10).buffer.is_some());
    }

    /// A sender that is near may fill its window before the node looks again.
    #[test]
    fn a_buffer_has_room_for_what_was_offered() {
        for (round_trip, expected) in [(92, 3_200_000), (46, 3_500_000), (0, 4_000_000)] {
            let mut looks = Looks::new();
            looks.sight.round_trip = Duration::from_millis(round_trip);
            (looks.sight.unread, looks.sight.memory) = (2_000_000, 4_000_000);
            let buffer = looks.look(2_000_000).buffer.unwrap();
            assert!(buffer.abs_diff(expected) < 10, "{round_trip} ms: {buffer}");
        }
    }

    #[test]
    fn a_startup_has_a_longer_queue_until_it_is_over() {
        let mut looks = Looks::new();
        let unsent = |looks: &mut Looks, starts| {
            looks.sight.starts = starts;
            looks.look(0).unsent
        };
        // Half of four round trips, and of 75 ms.
        assert!(unsent(&mut looks, true).abs_diff(2_000_000) < 10);
        let short = unsent(&mut looks, false);
        assert!(short.abs_diff(1_000_000 * 75 / 92 / 2) < 10, "{short}");
        assert_eq!(unsent(&mut looks, true), short, "it begins once");
    }

    #[test]
    fn nothing_overflows() {
        for n in [0, 1, u64::MAX] {
            let _ = rate_of(n, Duration::ZERO);
            let _ = bytes_in(n, Duration::MAX);
        }
    }

    /// Carries a stream through an accelerated pair whose server reads slowly. Only this thread has no privileges.
    #[test]
    fn a_pair_whose_buffers_cannot_be_set_is_relayed_on() {
        const BYTES: usize = 16 << 20;
        let carry = async || {
            let why = OpenError::Unsupported("a test".into());
            let splicer = Splicer::relay_only(SplicerConfig::default(), why);
            let ([mut client, a], [mut server, b]) = (connection().await, connection().await);
            let pair = Pair::new(a, b).with_acceleration(Acceleration {
                thresholds: Thresholds::auto(),
                queue: Duration::from_millis(1),
            });
            let call = tokio::spawn(async move { splicer.splice(pair, Until::closed()).await });
            let sending = tokio::spawn(async move {
                client.write_all(&vec![7; BYTES]).await?;
                client.shutdown().await?;
                client.read_to_end(&mut Vec::new()).await
            });
            let (mut piece, mut received) = (vec![0; 64 << 10], 0);
            loop {
                match server.read(&mut piece).await? {
                    0 => break,
                    n => received += n,
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(server);
            sending.await??;
            call.await??;
            io::Result::Ok(received)
        };
        let relay = move || {
            rustix::thread::set_capabilities(
                None,
                rustix::thread::CapabilitySets {
                    effective: rustix::thread::CapabilitySet::empty(),
                    permitted: rustix::thread::CapabilitySet::empty(),
                    inheritable: rustix::thread::CapabilitySet::empty(),
                },
            )?;
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(carry())
        };
        assert_eq!(std::thread::spawn(relay).join().unwrap().unwrap(), BYTES);
    }
}
