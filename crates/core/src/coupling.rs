//! The coupling of the windows of two legs, before a drain: the arithmetic.
//!
//! A relay holds megabytes between two ends. If its sockets were taken out then, the sender could not get its new bytes
//! acknowledged until those are through: it would run dry for a round trip, then burst. So the edge that is offered to
//! each end is first moved to where the other end's window allows it, and what the relay holds runs down. Two bounds
//! apply: the far end's receive window (the drafts' section III-E), and what fits on the path. The numbers come from
//! splices over emulated paths (design, "Over real round-trip times").
//!
//! Below, x is the sender of a direction and o its receiver.

use std::time::Duration;

use crate::{
    limit::Rate,
    seq::{Offset, Seq},
};

/// The largest window that a TCP header can announce (RFC 7323 section 2.3), in bytes.
pub const MAX_WINDOW: u32 = 65_535 << 14;

/// No bound goes below this, in bytes: a sender held to a few segments would lose its ACK clock, and this much drains
/// within moments on any path.
pub const MIN_ROOM: u32 = 64 << 10;

/// A backlog that takes no longer than this to drain does not hold up a splice.
const SHORT_BACKLOG: Duration = Duration::from_millis(10);

/// Nor does one of so many bytes over a short path, whatever the rate: what a sender beside us has ready at once.
const SMALL_BACKLOG: u64 = 256 << 10;

/// Both legs together at their best: ends that are beside each other.
const SHORT_PATH: Duration = Duration::from_millis(5);

/// The initial window of RFC 6928, in bytes: what a sender of which no rate is known can send in a round trip.
const INITIAL_WINDOW: u64 = 14_600;

/// How many bytes x may be allowed to have beyond what o has acknowledged: `cwnd_o · mss_o · (1 + RTT_x / RTT_o)`,
/// between [`MIN_ROOM`] and [`MAX_WINDOW`].
///
/// A congestion window's worth is on its way from here to o, and what x sends until it hears of that comes on top.
/// `cwnd_o` is that of our socket toward o, in segments of `mss_o` bytes. `rtt_x` should be the lowest RTT of the leg
/// and `rtt_o` the smoothed one, so that queues on neither leg widen the bound.
#[must_use]
pub fn room(cwnd_o: u32, mss_o: u32, rtt_x: Duration, rtt_o: Duration) -> u32 {
    let (rtt_x, rtt_o) = (rtt_x.as_micros(), rtt_o.as_micros().max(1));
    let window = u128::from(cwnd_o) * u128::from(mss_o);
    // A `Duration` holds up to 2^84 µs, and the window up to 2^64 bytes: beyond all sense, but no reason to panic.
    let bytes = window.saturating_mul(rtt_x.saturating_add(rtt_o)) / rtt_o;
    u32::try_from(bytes)
        .unwrap_or(MAX_WINDOW)
        .clamp(MIN_ROOM, MAX_WINDOW)
}

/// The least room of a direction that is limited: some segments.
const LEAST_LIMITED_ROOM: u32 = 8 << 10;

/// How many bytes x may have under way where a rate limits its direction: what passes in a round trip of both legs, and a
/// little that waits for its turn. More would only lie between the ends, and keep the drain waiting.
#[must_use]
pub fn limited_room(rate: Rate, rtt_x: Duration, rtt_o: Duration) -> u32 {
    let time = rtt_x.saturating_add(rtt_o).saturating_add(SHORT_BACKLOG);
    let bytes = bytes_in(rate.per_second().into(), time);
    u32::try_from(bytes)
        .unwrap_or(MAX_WINDOW)
        .clamp(LEAST_LIMITED_ROOM, MAX_WINDOW)
}

/// How long a coupling may take before it is given up: 20 round trips of the whole path, and at least a second.
#[must_use]
pub fn give_up_after(rtt_a: Duration, rtt_b: Duration) -> Duration {
    rtt_a
        .saturating_add(rtt_b)
        .saturating_mul(20)
        .max(Duration::from_secs(1))
}

/// What an end that was offered less than before is known to have heard of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// It was offered no less, or has echoed (RFC 7323 section 3) something that was sent with the new edge: all that it had
    /// sent before is here.
    Heard,
    /// Unknown; nothing has come of it since.
    Quiet,
    /// Unknown, and it sends: what it sent on the strength of the old edge may wait in a queue. If both ends had sent beyond
    /// what they then know to be allowed, neither would take the other's acknowledgements any more: each sends them with a
    /// sequence number at the edge (RFC 9293 section 3.8.6), which the other has received long ago.
    Busy,
}

/// What the drain of one direction depends on, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionProgress {
    /// The right edge of the window now offered to x, in x's sequence space: as shrunk by the coupling.
    pub offered: Seq,
    /// The highest end of payload seen from x, in x's sequence space. May lie beyond an edge that was moved back.
    pub sent: Seq,
    /// The right edge of the window that o offers, in o's sequence space.
    pub far_edge: Seq,
    /// The translation from x's sequence space to o's.
    pub offset: Offset,
    /// Whether x knows the edge, if the coupling has moved it back.
    pub notice: Notice,
    /// Bytes between the ends: not read from x's socket, held by the daemon, or not yet sent to o.
    pub backlog: u64,
    /// Payload bytes per second that go to o now; 0 if unknown.
    pub rate: u64,
}

/// A leg at one moment, as our socket on it sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegProgress {
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The lowest round-trip time so far.
    pub base_rtt: Duration,
    /// The retransmission timeout of our socket: the best guess at that of the peer, which sees the same path.
    pub rto: Duration,
    /// Whether our socket is repairing losses.
    pub recovering: bool,
}

/// A pair whose windows are being coupled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coupling {
    /// Time since the coupling began.
    pub elapsed: Duration,
    /// Legs A and B.
    pub legs: [LegProgress; 2],
    /// From A to B, and from B to A.
    pub directions: [DirectionProgress; 2],
}

/// What a drain has to wait for.
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
    /// times are estimates. Without a backlog nothing is late by the drain's doing, so there is nothing to wait for.
    Timeout,
}

/// What the drain still has to wait for; `None`: it may start.
#[must_use]
pub fn obstacle(coupling: &Coupling) -> Option<Obstacle> {
    let [a, b] = &coupling.legs;
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
    let [to_b, to_a] = &coupling.directions;
    direction_obstacle(to_b, a, b).or_else(|| direction_obstacle(to_a, b, a))
}

/// Whether the drain may start.
#[must_use]
pub fn ready(coupling: &Coupling) -> bool {
    obstacle(coupling).is_none()
}

/// How long it takes until a sender has learned of a smaller window and what it sent before has arrived. An ACK waits
/// up to several milliseconds for company, except where the round trip itself is shorter than that. Of one that sends, and
/// echoes nothing, only its timeout is an estimate with enough room for queues.
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
    // One that has sent more than it was told is allowed is told first.
    if d.offered.after(allowed) || d.sent.after(d.offered) {
        return Some(Obstacle::Window);
    }
    let is_short = x.base_rtt.saturating_add(o.base_rtt) <= SHORT_PATH;
    let small = if is_short { SMALL_BACKLOG } else { MIN_ROOM.into() };
    if d.backlog > bytes_in(d.rate, SHORT_BACKLOG).max(small) {
        return Some(Obstacle::Backlog);
    }
    // From the last ACK of our socket to the first of o for what is forwarded, x hears nothing.
    let silence = drain_time(d.backlog, d.rate, o.rtt)
        .saturating_add(x.rtt)
        .saturating_add(o.rtt);
    (d.backlog > 0 && silence >= x.rto / 4 * 3).then_some(Obstacle::Timeout)
}

/// How long a backlog takes to leave. Where nothing flows the rate says nothing: a sender can send its initial window
/// each round trip.
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
