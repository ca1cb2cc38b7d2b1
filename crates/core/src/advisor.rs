//! Advises whether a splice would improve a pair of connections. This is the policy `auto`.
//!
//! A splice makes one round trip of two, and one congestion control of two. The cost was measured over emulated paths
//! of 100 Mbit/s (design, "Over real round-trip times"), and no mechanism can repair any of it:
//! - The sender keeps a congestion window that was sized for its own leg. On the leg of 20 ms beside one of 80 ms, its
//!   rate fell from 95 to 38 Mbit/s and took more than 5 s to come back; on the leg of 80 ms it hardly fell.
//! - A BBR sender on the shorter leg keeps the short leg's lowest RTT for up to 10 s, and collapsed from 34 to 7
//!   Mbit/s.
//! - A lossy leg is repaired over the whole path instead of its own: at 0.5 % loss the rate halves.
//! - A sender in slow start doubles its window once in a long round trip instead of a short one.
//!
//! None of these matters if one leg is so short that the path is hardly longer than the other leg (a switch beside its
//! servers, a firewall beside its clients), or if both are short.
//!
//! # Known and estimated values
//!
//! The samples are of the forwarder's own two sockets. In the direction from x to o the sender that stays after a
//! splice is x itself, and no socket here knows its congestion window, its algorithm, or whether it is in slow start:
//! - **Window:** estimated by the bytes that x has had in flight: its rate, as received here, times the RTT of its leg,
//!   and no more than the window that we offered. The highest rate so far counts, as Linux keeps the window while the
//!   application or the receiver is the limit. A sender that was never asked for more may have more.
//! - **Slow start:** judged by our own socket toward o, which x feeds: below its threshold, on a connection so young
//!   that slow start can still go on.
//! - **BBR:** assumed for x if our own socket on its leg runs it; an operator that runs BBR here often does so on the
//!   servers, too. A BBR sender beside a forwarder with another algorithm is not noticed.
//! - **Full buffers:** an end is taken to have as much in flight as it had here, and 64 KB at least.
//! - **Loss:** known for the retransmissions of our sockets; those of the peers are estimated from the segments that
//!   arrive out of order.

mod period;
mod queue;
mod sample;
mod yielding;

use std::time::Duration;

use crate::reason::{RelayReason, SpliceReason};

pub use period::Period;
pub use queue::{QueueWatch, StandingQueue};
pub use sample::{CongestionControl, EARLIER_SPANS, LOSS_SEGMENTS, LOSSY, LegSample};
pub use yielding::{Crowd, Yield};

/// Advice for a pair at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Splice it, for this reason.
    Splice(SpliceReason),
    /// Continue to relay it.
    Wait {
        /// Reason: one of the `Advised…` reasons, or [`RelayReason::Recovery`].
        reason: RelayReason,
        /// Time after which to ask again.
        again: Duration,
    },
}

/// Thresholds of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Longest path of two legs that counts as short: a round trip more costs less than the relay's threads add under
    /// load.
    pub short_path: Duration,
    /// Ratio, in percent, from which on a leg is negligible: it is so many times shorter than the other, and adds too
    /// little to the path to matter.
    pub negligible_percent: u32,
    /// Share of its present rate that a sender must be able to keep, in percent. A sender on the long leg, which measured
    /// 88 to 95 of 95 Mbit/s, is predicted at 80.
    pub enough_percent: u64,
    /// Time for which a pair over two long legs carries little before it is spliced. A burst behind that is as slow as the
    /// whole path makes it, and a splice does not ask again.
    pub quiet: Duration,
    /// True if a splice is for good, as the release of an accelerated connection is. Then a pair waits until its losses
    /// can be judged, and the queue on a sender's own leg counts as part of the path.
    pub is_final: bool,
    /// True if a leg has a congestion control that was chosen for it: it may be faster than the ends, whatever their distance.
    /// Then only a short path, a queue and the host's buffers are reasons for a splice.
    pub has_own_congestion: bool,
    /// True if a pair is spliced when a queue stands on a leg: its bottleneck is full, and a splice leaves other connections
    /// their share of it. Where there are none, a relay is better: the sender's window was sized for its own leg.
    pub yields_at_queue: bool,
}

impl Thresholds {
    /// Returns the thresholds of the policy `auto`.
    #[must_use]
    pub const fn auto() -> Thresholds {
        Thresholds {
            short_path: Duration::from_millis(5),
            negligible_percent: 800,
            enough_percent: 75,
            quiet: QUIET,
            is_final: false,
            has_own_congestion: false,
            yields_at_queue: false,
        }
    }

    /// Returns thresholds under which a pair is relayed only over a path of at least `min_rtt`, and only for a gain: its relay is
    /// predicted to be faster than the splice by the factor `min_gain`, in percent (100 to 10,000). With 100 no leg is negligible.
    #[must_use]
    pub fn for_gain(min_rtt: Duration, min_gain: u32) -> Thresholds {
        let gain = min_gain.clamp(100, 10_000);
        Thresholds {
            short_path: min_rtt,
            // A path is longer than its longer leg by 1 / ratio: with one round trip for two that is the largest gain.
            negligible_percent: match gain {
                100 => u32::MAX,
                more => 100 * 100 / (more - 100),
            },
            enough_percent: 100 * 100 / u64::from(gain),
            quiet: Duration::MAX,
            is_final: true,
            has_own_congestion: false,
            yields_at_queue: true,
        }
    }
}

/// Distance of two ends, as far as it matters to a relay between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// Both legs together are short ([`Thresholds::short_path`]).
    Short,
    /// One leg is nearly all of the path ([`Thresholds::negligible_percent`]).
    OneLeg,
    /// Both legs count: two round trips in place of one may make a connection faster.
    Long,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds::auto()
    }
}

/// Longest RTT of a leg whose ends are beside each other. Loss is rare there, so a sender has not reached a threshold,
/// and resumes slow start if its window turns out too small.
const BESIDE: Duration = Duration::from_millis(2);

/// Longest path, in percent of the shorter leg's RTT, that a BBR sender there tolerates: its window is twice what the
/// lowest RTT takes (draft-ietf-ccwg-bbr, `BBRDefaultCwndGain`), and some of it is lost to jitter.
const BBR_PATH_PERCENT: u32 = 250;

/// Round trips in which slow start grows the window a thousandfold; after that another limit holds it.
const SLOW_START_ROUNDS: u32 = 10;

/// Round trips for a stream that waits for its receiver's leg: it pays to let that leg grow. A leg without any loss
/// never has a threshold; this bounds the wait.
const HELD_BACK_ROUNDS: u32 = 50;

/// Round trips that come before a judgement over long legs, together with [`FIRST_BYTES`]: the first burst tells
/// little.
const FIRST_ROUNDS: u32 = 4;
/// Bytes that come before a judgement over long legs. See [`FIRST_ROUNDS`].
const FIRST_BYTES: u64 = 256 << 10;
/// Time after which a stream that carried fewer bytes is not going to carry many.
const FIRST_TIME: Duration = Duration::from_secs(3);

/// Time after which a pair that carries little is taken to stay so: its sockets are worth more than a burst that may come.
const QUIET: Duration = Duration::from_secs(60);

/// Bytes of a stream that come before a judgement of the losses on its legs: 1,400 segments, of which a rate of 0.5 % loses
/// 7, and one that is not lossy ([`LegSample::is_lossy`]) fewer than 3. A splice before that is a guess.
const JUDGED_BYTES: u64 = 2 << 20;

/// Longest path on which the distance of a repair does not matter: it takes no longer than a timer's tick.
const REPAIRED_AT_ONCE: Duration = Duration::from_millis(1);

/// Bytes like [`FIRST_BYTES`], before a splice that is for good: they are more segments, in one direction, than the judgement
/// of losses needs.
const FINAL_BYTES: u64 = 1 << 20;
/// Age from which a splice that is for good waits for no more bytes. Later, time alone tells nothing more.
pub const FINAL_TIME: Duration = Duration::from_secs(30);

/// Segments that the peer of a leg acknowledged before the leg counts as that much longer than the other one. It holds if a
/// splice is for good: the handshake alone may have met a queue, or a radio that slept.
const CONFIRMING_SEGMENTS: u32 = 3;

/// Longest time before the next look at a pair whose splice would be for good, apart from [`FINAL_LOOK_ROUNDS`]: a node
/// that has become a hindrance must not remain one for long.
const FINAL_LOOK: Duration = Duration::from_secs(1);
const FINAL_LOOK_ROUNDS: u32 = 2;

/// Time for which a queue must stand before a splice, and the same in round trips: slow start fills a queue for a moment
/// on any path.
const QUEUE_TIME: Duration = Duration::from_millis(400);
const QUEUE_ROUNDS: u32 = 4;

/// Share of the samples, in percent, from which on a full send buffer counts as the limit of a leg.
const BUFFER_LIMITED_PERCENT: u32 = 50;

/// Bytes that each end is taken to be able to have in flight: the largest window without scaling (RFC 7323).
const USUAL_WINDOW: u64 = 64 << 10;

/// Advises on a pair of connections, of which the client's leg and the server's leg were just sampled.
///
/// `age` is the time since the pair's present [`Period`] began, and `bytes` the bytes relayed since, both directions
/// together. The advice is good for the moment; the caller asks again after the given time, for as long as it relays, and
/// at once when a pair that carries little begins to stream.
#[must_use]
pub fn advise(
    thresholds: &Thresholds,
    client: &LegSample,
    server: &LegSample,
    age: Duration,
    bytes: u64,
) -> Advice {
    let path = client.base_rtt().saturating_add(server.base_rtt());
    let wait = |reason, rounds: u32, at_least_ms| Advice::Wait {
        reason,
        again: path
            .saturating_mul(rounds)
            .max(Duration::from_millis(at_least_ms))
            .min(thresholds.longest_wait(client, server, path)),
    };
    if client.rtt.is_zero() || server.rtt.is_zero() {
        return wait(RelayReason::AdvisedWait, 0, 50);
    }
    if client.recovering || server.recovering {
        return wait(RelayReason::Recovery, 4, 50);
    }
    let upward = Direction {
        thresholds,
        sender: client,
        receiver: server,
        path,
    };
    let downward = Direction {
        thresholds,
        sender: server,
        receiver: client,
        path,
    };
    if age >= path.saturating_mul(FIRST_ROUNDS) && thresholds.is_final {
        if upward.is_slowed_by_own_buffers() || downward.is_slowed_by_own_buffers() {
            return Advice::Splice(SpliceReason::OwnBuffers);
        }
        if thresholds.fills_a_queue(client, path) || thresholds.fills_a_queue(server, path) {
            return Advice::Splice(SpliceReason::StandingQueue);
        }
    }
    if thresholds.lose_by_distance(client, server) || thresholds.lose_by_distance(server, client) {
        return wait(RelayReason::AdvisedLoss, 0, 10_000);
    }
    if upward.collapses_with_bbr() || downward.collapses_with_bbr() {
        return wait(RelayReason::AdvisedBbr, 0, 10_000);
    }
    if upward.in_slow_start(age) || downward.in_slow_start(age) {
        return wait(RelayReason::AdvisedSlowStart, 2, 10);
    }
    let has_negligible_leg =
        thresholds.is_negligible(client, server) || thresholds.is_negligible(server, client);
    let is_idle = !upward.is_bulk() && !downward.is_bulk();
    let may_burst = is_idle && !has_negligible_leg && age < thresholds.quiet;
    if !thresholds.is_final && may_burst && path > REPAIRED_AT_ONCE && bytes < JUDGED_BYTES {
        return Advice::Wait {
            reason: RelayReason::AdvisedQuiet,
            again: thresholds.quiet - age,
        };
    }
    if !thresholds.is_final && !has_negligible_leg && !is_idle && is_unjudged(path, age, bytes) {
        return wait(RelayReason::AdvisedWait, 2, 10);
    }
    if path <= thresholds.short_path {
        return Advice::Splice(SpliceReason::ShortPath);
    }
    let far = [client, server].into_iter().max_by_key(|leg| leg.base_rtt());
    let is_confirmed = age >= FIRST_TIME || far.is_some_and(|leg| leg.delivered >= CONFIRMING_SEGMENTS);
    if thresholds.is_final && has_negligible_leg && !is_confirmed {
        return wait(RelayReason::AdvisedWait, 2, 10);
    }
    if !has_negligible_leg && thresholds.is_too_young(path, age, bytes) {
        return wait(RelayReason::AdvisedWait, 2, 50);
    }
    if thresholds.is_final && may_burst {
        return wait(RelayReason::AdvisedQuiet, 0, 1_000);
    }
    if thresholds.has_own_congestion {
        return wait(RelayReason::AdvisedCongestion, 0, 5_000);
    }
    match upward.keeps_its_rate() && downward.keeps_its_rate() {
        true if has_negligible_leg => Advice::Splice(SpliceReason::NegligibleLeg),
        true => Advice::Splice(SpliceReason::KeepsItsRate),
        false => wait(RelayReason::AdvisedThroughput, 0, 5_000),
    }
}

/// Returns whether the losses of a stream matter, and too few of its segments have passed to tell how many there are.
fn is_unjudged(path: Duration, age: Duration, bytes: u64) -> bool {
    path > REPAIRED_AT_ONCE && bytes < JUDGED_BYTES && age < FIRST_TIME
}

impl Thresholds {
    /// Returns the longest time before the next look; a queue that may come to stand is looked at each round trip.
    fn longest_wait(&self, client: &LegSample, server: &LegSample, path: Duration) -> Duration {
        let has_queue = client.standing_queue.is_some() || server.standing_queue.is_some();
        match (self.is_final, has_queue && self.yields_at_queue) {
            (false, _) => Duration::MAX,
            (true, true) => path.max(Duration::from_millis(50)),
            (true, false) => FINAL_LOOK.max(path.saturating_mul(FINAL_LOOK_ROUNDS)),
        }
    }

    /// Returns whether a sender fills the bottleneck on this leg and its queue, and would fill it over the whole path, too. The
    /// splice is predicted to cost no more then than the gain for which a pair is relayed.
    fn fills_a_queue(&self, leg: &LegSample, path: Duration) -> bool {
        let Some(queue) = leg.standing_queue else {
            return false;
        };
        // A node before the bottleneck, if there is one, yields first: two of them would leave too much.
        let turns = if leg.receives { 2 } else { 1 };
        if queue.time < turns * path.saturating_mul(QUEUE_ROUNDS).max(QUEUE_TIME) {
            return false;
        }
        let Some(kept_percent) = leg.congestion_control.kept_at_loss() else {
            return false;
        };
        self.yields_at_queue
            && leg.was_congested()
            && !leg.is_window_limited()
            && utilisation(path, queue.highest, kept_percent) >= self.enough_percent
    }

    /// Returns whether a splice would make the repair of this leg's losses slower than it is.
    fn lose_by_distance(&self, leg: &LegSample, other: &LegSample) -> bool {
        leg.is_lossy() && !self.is_negligible(other, leg)
    }

    /// Returns whether too little is known of a pair over two long legs.
    fn is_too_young(&self, path: Duration, age: Duration, bytes: u64) -> bool {
        let (first_bytes, first_time) = match self.is_final {
            true => (FINAL_BYTES, FINAL_TIME),
            false => (FIRST_BYTES, FIRST_TIME),
        };
        age < path.saturating_mul(FIRST_ROUNDS) || (bytes < first_bytes && age < first_time)
    }

    /// Returns whether a path over both legs is hardly longer than one over the other leg alone.
    fn is_negligible(&self, leg: &LegSample, other: &LegSample) -> bool {
        self.is_negligible_time(leg.base_rtt(), other.base_rtt())
    }

    fn is_negligible_time(&self, leg: Duration, other: Duration) -> bool {
        leg.saturating_mul(self.negligible_percent) < other.saturating_mul(100)
    }

    /// Judges two legs by their round-trip times alone, before any byte has passed.
    #[must_use]
    pub fn judge(&self, client: Duration, server: Duration) -> Distance {
        if client.saturating_add(server) <= self.short_path {
            Distance::Short
        } else if self.is_negligible_time(client, server) || self.is_negligible_time(server, client) {
            Distance::OneLeg
        } else {
            Distance::Long
        }
    }
}

/// Direction of a pair. `sender` and `receiver` are our sockets toward the true sender and the true receiver.
struct Direction<'a> {
    thresholds: &'a Thresholds,
    sender: &'a LegSample,
    receiver: &'a LegSample,
    /// Lowest RTT of both legs together.
    path: Duration,
}

impl Direction<'_> {
    fn is_bulk(&self) -> bool {
        self.sender.sends_bulk(self.path)
    }

    fn collapses_with_bbr(&self) -> bool {
        self.sender.congestion_control == CongestionControl::Bbr
            && self.is_bulk()
            && self.path.saturating_mul(100) > self.sender.base_rtt().saturating_mul(BBR_PATH_PERCENT)
    }

    /// Returns whether the buffers of this host hold the stream below the rate that both ends would reach with the windows
    /// that they have.
    fn is_slowed_by_own_buffers(&self) -> bool {
        let sends_too_little = self.receiver.send_buffer_limited >= BUFFER_LIMITED_PERCENT;
        let offers_too_little = self.is_bulk() && !self.is_backlogged() && self.sender.uses_up_buffer();
        let window = self.sender.in_flight_estimate().max(USUAL_WINDOW);
        let window = window.min(self.receiver.peer_window.into());
        (sends_too_little || offers_too_little)
            && bytes_per_second(window, self.path) > self.sender.received_rate
    }

    fn in_slow_start(&self, age: Duration) -> bool {
        let below_threshold = self.receiver.ssthresh.is_none_or(|s| self.receiver.cwnd < s);
        let rounds = match self.is_backlogged() && self.path > self.thresholds.short_path {
            true => HELD_BACK_ROUNDS,
            false => SLOW_START_ROUNDS,
        };
        below_threshold && self.is_bulk() && age < self.path.saturating_mul(rounds)
    }

    /// Returns whether the relay has bytes for the receiver that its leg does not take yet: the stream could be faster.
    fn is_backlogged(&self) -> bool {
        self.receiver.waiting > 0
    }

    /// Returns whether the sender's window is enough for the whole path, or is not its limit.
    fn keeps_its_rate(&self) -> bool {
        if !self.is_bulk() || self.thresholds.is_negligible(self.receiver, self.sender) {
            return true;
        }
        if self.thresholds.is_negligible(self.sender, self.receiver) && self.sender.base_rtt() <= BESIDE {
            return true;
        }
        if self.thresholds.is_final && !self.sender.sent_bulk_lately(self.path) {
            return false;
        }
        // A queue on the sender's own leg is counted in its window; after a splice it may be there as before.
        let path = match self.thresholds.is_final {
            true => self.sender.rtt.saturating_add(self.receiver.base_rtt()),
            false => self.path,
        };
        let predicted = bytes_per_second(self.sender.in_flight_estimate(), path);
        let needed = match self.is_backlogged() {
            // The relay holds this sender back: its peak shows its capacity, and the relay will let it reach that once
            // the other leg has grown.
            true => self.sender.received_peak.max(self.sender.received_rate),
            false if self.thresholds.is_final => self.sender.received_lately(),
            false => self.sender.received_rate,
        };
        predicted >= needed / 100 * self.thresholds.enough_percent
    }
}

/// Returns the share of a bottleneck, in percent, that one sender uses over a path. At each loss it keeps `kept_percent` of
/// what was in flight, the round trip's and the queue's worth. It grows evenly until the next one.
fn utilisation(path: Duration, queue: Duration, kept_percent: u64) -> u64 {
    let micros = |time: Duration| time.as_micros().min(u128::from(u64::MAX)) as f64;
    let most = 1.0 + micros(queue) / micros(path).max(1.0);
    let least = most * kept_percent as f64 / 100.0;
    if least >= 1.0 {
        return 100;
    }
    let idle = (1.0 - least).powi(2) / (2.0 * (most - least));
    ((1.0 - idle) * 100.0) as u64
}

/// Returns how many bytes pass in a time at a rate of bytes per second.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate).saturating_mul(time.as_micros()) / 1_000_000).unwrap_or(u64::MAX)
}

/// Returns the rate at which this many bytes pass in a time.
fn bytes_per_second(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000 / time.as_micros().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
