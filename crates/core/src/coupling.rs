//! Couples the windows of two legs, before a drain, by arithmetic alone.
//!
//! A relay holds megabytes between two ends. If its sockets were removed then, the sender's new bytes could not be
//! acknowledged until those are delivered: the sender would run dry for a round trip, then burst. So the edge that is
//! offered to each end is first moved to the one that the other end's window allows, and the bytes in the relay run
//! down. Two bounds apply: the far end's receive window (the drafts' section III-E), and the capacity of the path. The
//! numbers come from splices over emulated paths (design, "Over real round-trip times").
//!
//! Below, x is the sender of a direction and o its receiver.

use std::time::Duration;

use crate::{
    limit::Rate,
    seq::{Offset, Seq},
    side::PerSide,
};

/// Largest window that a TCP header can announce (RFC 7323 section 2.3), in bytes.
pub const MAX_WINDOW: u32 = 65_535 << 14;

/// Smallest window that is offered to a peer, in bytes; a leg that pauses at its trap is offered no more beyond it
/// (`LEAST_WINDOW` of bpf/window.h).
pub const LEAST_WINDOW: u32 = 32 << 10;

/// Lowest bound, in bytes: a sender held to a few segments would lose its ACK clock, and this much drains within
/// moments on any path.
pub const MIN_ROOM: u32 = 64 << 10;

/// Longest drain of a backlog that does not delay a splice.
const SHORT_BACKLOG: Duration = Duration::from_millis(10);

/// Largest backlog that does not delay a splice over a short path, at any rate, in bytes: a sender beside us has that
/// much ready at once.
const SMALL_BACKLOG: u64 = 256 << 10;

/// Longest path of both legs together, at their best, whose ends are beside each other.
const SHORT_PATH: Duration = Duration::from_millis(5);

/// Initial window of RFC 6928, in bytes: a sender whose rate is unknown can send that much in a round trip.
const INITIAL_WINDOW: u64 = 14_600;

/// Returns how many bytes x may send beyond those that o has acknowledged: `cwnd_o · mss_o · (1 + RTT_x / RTT_o)`,
/// between [`MIN_ROOM`] and [`MAX_WINDOW`].
///
/// A congestion window's worth is on its way from here to o, and x sends more until it hears of that. `cwnd_o` is that
/// of our socket toward o, in segments of `mss_o` bytes. `rtt_x` should be the lowest RTT of the leg and `rtt_o` the
/// smoothed one, so that queues on neither leg widen the bound.
#[must_use]
pub fn room(cwnd_o: u32, mss_o: u32, rtt_x: Duration, rtt_o: Duration) -> u32 {
    let (rtt_x, rtt_o) = (rtt_x.as_micros(), rtt_o.as_micros().max(1));
    let window = u128::from(cwnd_o) * u128::from(mss_o);
    // A `Duration` holds up to 2^84 µs, and the window up to 2^64 bytes: such values make no sense, but must not panic.
    let bytes = window.saturating_mul(rtt_x.saturating_add(rtt_o)) / rtt_o;
    u32::try_from(bytes)
        .unwrap_or(MAX_WINDOW)
        .clamp(MIN_ROOM, MAX_WINDOW)
}

/// Least room of a direction that is limited: some segments.
const LEAST_LIMITED_ROOM: u32 = 8 << 10;

/// Returns how many bytes x may have under way if a rate limits its direction: those of a round trip of both legs, and
/// a few that wait for their turn. More would only lie between the ends, and delay the drain.
#[must_use]
pub fn limited_room(rate: Rate, rtt_x: Duration, rtt_o: Duration) -> u32 {
    let time = rtt_x.saturating_add(rtt_o).saturating_add(SHORT_BACKLOG);
    let bytes = bytes_in(rate.per_second().into(), time);
    u32::try_from(bytes)
        .unwrap_or(MAX_WINDOW)
        .clamp(LEAST_LIMITED_ROOM, MAX_WINDOW)
}

/// Returns how long a coupling may take before it is given up: 20 round trips of the whole path, and at least a second.
#[must_use]
pub fn give_up_after(rtt_a: Duration, rtt_b: Duration) -> Duration {
    rtt_a
        .saturating_add(rtt_b)
        .saturating_mul(20)
        .max(Duration::from_secs(1))
}

/// Shortest time between two looks at a pair on its way to a splice.
const LOOK: Duration = Duration::from_millis(1);

/// Age up to which a pair is looked at that soon, however many there are: both ends feel a delay then.
const YOUNG: Duration = Duration::from_secs(2);

/// Share of the least wait of an older pair that each pair on its way to a splice adds: looks take only a part of one
/// processor.
const LOOK_OF_ONE: Duration = Duration::from_micros(50);

/// Longest time between two looks at a pair of which nothing is heard: an event may have been lost, and the patience with
/// a silent end is counted in seconds.
const LONGEST_LOOK: Duration = Duration::from_millis(200);

/// Returns how long to wait at least before the next look at a pair that has been on its way to a splice for `elapsed`,
/// beside `under_way` such pairs, whatever is heard of it.
#[must_use]
pub fn soonest_look(elapsed: Duration, under_way: usize) -> Duration {
    if elapsed < YOUNG {
        return LOOK;
    }
    LOOK.max(LOOK_OF_ONE.saturating_mul(u32::try_from(under_way).unwrap_or(u32::MAX)))
}

/// Returns how long to wait at most before the next look at a pair of which nothing was heard for `quiet`, and at least
/// `soonest`. Times that a look depends on ([`Obstacle::Notice`]) are noticed a quarter late at most.
#[must_use]
pub fn latest_look(quiet: Duration, soonest: Duration) -> Duration {
    (quiet / 4).min(LONGEST_LOOK).max(soonest)
}

/// State of our socket's delivery to an end, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Bytes that wait in the socket and were not sent yet.
    pub unsent: u64,
    /// Segments that were sent and are not acknowledged yet.
    pub in_flight: u32,
    /// The window that the end offers, in bytes.
    pub window: u32,
    /// Longest segment that is sent to the end, in bytes.
    pub mss: u32,
    /// Time since our socket last sent to the end.
    pub quiet: Duration,
}

/// Time after which an end that has taken nothing counts as stopped; one that reads slowly takes a little now and then.
const STILL: Duration = Duration::from_millis(50);

impl Delivery {
    /// Returns whether the end has closed its window before all was sent, and keeps it closed: only the end can open it
    /// again, by reading, and its time is unknown here.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let next = self.unsent.min(self.mss.into());
        next > 0 && self.in_flight == 0 && u64::from(self.window) < next && self.quiet >= STILL
    }

    /// Returns whether this alone makes a coupling hopeless: more than any path may have between the ends (`backlog`,
    /// in bytes) waits for a stopped end.
    #[must_use]
    pub fn is_hopeless(&self, backlog: u64) -> bool {
        self.is_stopped() && backlog > SMALL_BACKLOG
    }
}

/// Knowledge about an end that was offered less than before: whether it has heard of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The end was offered no less, or has echoed (RFC 7323 section 3) a timestamp that was sent with the new edge: all
    /// bytes that it had sent before are here.
    Heard,
    /// Unknown; the end has sent nothing since.
    Quiet,
    /// Unknown, and the end sends: bytes that it sent by the old edge may wait in a queue. If both ends had sent beyond
    /// the edges that they then learn, neither would accept the other's acknowledgements any more: each sends them with
    /// a sequence number at the edge (RFC 9293 section 3.8.6), which the other has received long ago.
    Busy,
}

/// State of one direction on which its drain depends, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionProgress {
    /// Right edge of the window now offered to x, in x's sequence space: as shrunk by the coupling.
    pub offered: Seq,
    /// Highest end of payload seen from x, in x's sequence space. May lie beyond an edge that was moved back.
    pub sent: Seq,
    /// Right edge of the window that o offers, in o's sequence space.
    pub far_edge: Seq,
    /// Translation from x's sequence space to o's.
    pub offset: Offset,
    /// Knowledge of x about the edge, if the coupling has moved it back.
    pub notice: Notice,
    /// Bytes between the ends: not read from x's socket, held by the daemon, or not yet sent to o.
    pub backlog: u64,
    /// Payload bytes per second that go to o now; 0 if unknown.
    pub rate: u64,
}

/// State of a leg at one moment, as our socket on it sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegProgress {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Lowest round-trip time so far.
    pub base_rtt: Duration,
    /// Retransmission timeout of our socket: the best estimate of that of the peer, which sees the same path.
    pub rto: Duration,
    /// True if our socket is repairing losses.
    pub recovering: bool,
}

/// Pair whose windows are being coupled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coupling {
    /// Time since the coupling began.
    pub elapsed: Duration,
    /// Legs A and B.
    pub legs: PerSide<LegProgress>,
    /// Directions from A to B, and from B to A.
    pub directions: PerSide<DirectionProgress>,
}

/// Obstacle for which a drain has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// A leg is repairing losses.
    Recovery,
    /// An end was told of its new window too short a time ago.
    Notice,
    /// An end may send, or has sent, more than the other end's window takes.
    Window,
    /// Too many bytes are still between the ends.
    Backlog,
    /// The drain would take so long that a sender's retransmission timer might fire: three quarters of it, as both
    /// times are estimates. Without a backlog the drain delays nothing, so there is nothing to wait for.
    Timeout,
}

/// Returns the obstacle for which the drain still has to wait; `None`: it may start.
#[must_use]
pub fn obstacle(coupling: &Coupling) -> Option<Obstacle> {
    let PerSide { client: a, server: b } = &coupling.legs;
    if a.recovering || b.recovering {
        return Some(Obstacle::Recovery);
    }
    let rtt = a.rtt.max(b.rtt);
    if coupling
        .directions
        .iter()
        .zip(&coupling.legs)
        .any(|(d, x)| coupling.elapsed < notice_time(d.notice, x, rtt))
    {
        return Some(Obstacle::Notice);
    }
    let PerSide {
        client: to_b,
        server: to_a,
    } = &coupling.directions;
    direction_obstacle(to_b, a, b).or_else(|| direction_obstacle(to_a, b, a))
}

/// Returns whether the drain may start.
#[must_use]
pub fn ready(coupling: &Coupling) -> bool {
    obstacle(coupling).is_none()
}

/// Returns the time until a sender has learned of a smaller window and its earlier bytes have arrived. An ACK waits up
/// to several milliseconds for company, except if the round trip itself is shorter than that. For an end that sends,
/// and echoes nothing, only its timeout is an estimate with enough room for queues.
fn notice_time(notice: Notice, x: &LegProgress, rtt: Duration) -> Duration {
    match notice {
        Notice::Heard => return Duration::ZERO,
        Notice::Busy => return x.rto,
        Notice::Quiet => {}
    }
    let slack = if rtt > Duration::from_millis(1) {
        Duration::from_millis(5)
    } else {
        Duration::ZERO
    };
    (rtt.saturating_mul(3) / 2).saturating_add(slack)
}

fn direction_obstacle(d: &DirectionProgress, x: &LegProgress, o: &LegProgress) -> Option<Obstacle> {
    let allowed = d.far_edge - d.offset;
    // An end that has sent beyond the offered edge must learn of the edge first.
    if d.offered.after(allowed) || d.sent.after(d.offered) {
        return Some(Obstacle::Window);
    }
    let is_short = x.base_rtt.saturating_add(o.base_rtt) <= SHORT_PATH;
    let small = if is_short { SMALL_BACKLOG } else { MIN_ROOM.into() };
    if d.backlog > bytes_in(d.rate, SHORT_BACKLOG).max(small) {
        return Some(Obstacle::Backlog);
    }
    // Between the last ACK of our socket and the first of o for forwarded bytes, x receives none.
    let silence = drain_time(d.backlog, d.rate, o.rtt)
        .saturating_add(x.rtt)
        .saturating_add(o.rtt);
    (d.backlog > 0 && silence >= x.rto / 4 * 3).then_some(Obstacle::Timeout)
}

/// Returns how long a backlog takes to leave. If nothing flows, the rate is unknown: a sender can send its initial
/// window each round trip.
fn drain_time(backlog: u64, rate: u64, rtt: Duration) -> Duration {
    let rtt_us = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).max(1);
    let rate = rate.max(INITIAL_WINDOW.saturating_mul(1_000_000) / rtt_us).max(1);
    Duration::from_micros(backlog.saturating_mul(1_000_000) / rate)
}

fn bytes_in(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_micros() / 1_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
