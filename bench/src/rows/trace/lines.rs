//! Reads the stream from the server to the client from a capture on one side.

use std::net::SocketAddr;
use std::ops::Range;

use anyhow::{Context, Result};

use crate::capture::Seen;

/// Data segment: its time, and its first and last byte in the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    /// Time in seconds since the start of the record.
    pub(super) at: f64,
    /// Position of its first byte in the stream.
    pub(super) from: f64,
    /// Position after its last byte.
    pub(super) to: f64,
    /// Its order among the earlier segments.
    pub(super) order: Order,
}

/// Order of a segment among those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Beyond all of them.
    Next,
    /// Later bytes have passed, these have not: in a drain old bytes are delivered while new segments pass.
    Late,
    /// Some of its bytes have passed before.
    Again,
}

/// View of one side: data one way, and acknowledgements the other way.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Data segments, in the order of time.
    pub(super) data: Vec<Data>,
    /// Times and positions of acknowledgements.
    pub(super) acks: Vec<(f64, f64)>,
    /// Times and positions of the right edge of the window.
    pub(super) edges: Vec<(f64, f64)>,
}

impl Lines {
    /// Reads the segments of the connection whose data `sender` sends; times count from `start_ns`. Fails if the
    /// handshake is missing.
    pub(super) fn of(seen: &[Seen], sender: SocketAddr, start_ns: u64) -> Result<Self> {
        let ours = |seen: &&Seen| SocketAddr::from(seen.segment.source) == sender;
        let back = |seen: &&Seen| SocketAddr::from(seen.segment.destination) == sender;
        let syn = seen.iter().filter(ours).find(|seen| seen.segment.syn);
        let syn = syn.with_context(|| format!("no handshake of {sender} was captured"))?;
        // The scale holds only if both SYNs have the option (RFC 7323 section 2.2).
        let other = seen.iter().filter(back).find(|seen| seen.segment.syn);
        let scale = other
            .and_then(|seen| seen.segment.scale)
            .filter(|_| syn.segment.scale.is_some());
        let first = syn.segment.seq.wrapping_add(1);
        let position = |seq: u32| f64::from(seq.wrapping_sub(first));
        let at = |seen: &Seen| (seen.at_ns as f64 - start_ns as f64) / 1e9;
        let mut lines = Lines::default();
        let mut passed = Passed::default();
        for one in seen.iter().filter(|seen| !seen.segment.syn && !seen.segment.rst) {
            if ours(&one) && one.segment.payload > 0 {
                let from = one.segment.seq.wrapping_sub(first);
                let to = from.wrapping_add(one.segment.payload);
                lines.data.push(Data {
                    at: at(one),
                    from: from.into(),
                    to: to.into(),
                    order: passed.add(from, to),
                });
            } else if back(&one) {
                let ack = position(one.segment.ack);
                lines.acks.push((at(one), ack));
                let window = u64::from(one.segment.window) << scale.unwrap_or(0).min(14);
                lines.edges.push((at(one), ack + window as f64));
            }
        }
        Ok(lines)
    }

    /// Returns the number of data segments of this order.
    pub(super) fn count(&self, order: Order) -> usize {
        self.data.iter().filter(|data| data.order == order).count()
    }

    /// Returns the time at which the byte at `position` passed first.
    pub(super) fn passed(&self, position: f64) -> Option<f64> {
        self.data
            .iter()
            .find(|data| data.to > position)
            .map(|data| data.at)
    }

    /// Returns the longest time between two data segments. Of the later one, `counts` gets the time and the first byte,
    /// and returns true to count the pair.
    pub(super) fn silence_ms(&self, counts: impl Fn(f64, f64) -> bool) -> f64 {
        let pairs = self
            .data
            .windows(2)
            .filter(|pair| counts(pair[1].at, pair[1].from));
        pairs
            .map(|pair| (pair[1].at - pair[0].at) * 1e3)
            .fold(0.0, f64::max)
    }

    /// Returns the rate of the data, in Mbit/s.
    pub(super) fn mbps(&self, when: Range<f64>) -> f64 {
        let there = self.data.iter().filter(|data| when.contains(&data.at));
        let bytes: f64 = there.map(|data| data.to - data.from).sum();
        bytes * 8e-6 / (when.end - when.start)
    }
}

/// Bytes of a stream that have passed.
#[derive(Debug, Default)]
struct Passed {
    /// Position below which all have.
    whole: u32,
    /// Pieces beyond, in their order.
    pieces: Vec<Range<u32>>,
}

impl Passed {
    /// Adds a segment.
    fn add(&mut self, from: u32, to: u32) -> Order {
        let end = self.pieces.last().map_or(self.whole, |piece| piece.end);
        let overlaps = |piece: &Range<u32>| from < piece.end && piece.start < to;
        let order = if from < self.whole || self.pieces.iter().any(overlaps) {
            Order::Again
        } else if from < end {
            Order::Late
        } else {
            Order::Next
        };
        let place = self.pieces.partition_point(|piece| piece.start < from);
        self.pieces.insert(place, from..to);
        let mut merged: Vec<Range<u32>> = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces.drain(..) {
            match merged.last_mut() {
                Some(last) if piece.start <= last.end => last.end = last.end.max(piece.end),
                _ if piece.start <= self.whole => self.whole = self.whole.max(piece.end),
                _ => merged.push(piece),
            }
        }
        self.pieces = merged;
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Segment;

    const SERVER: &str = "198.18.2.1:7000";
    const CLIENT: &str = "198.18.2.2:9";

    fn seen(at_ms: u64, from_server: bool, change: impl FnOnce(&mut Segment)) -> Seen {
        let (server, client) = (SERVER.parse().unwrap(), CLIENT.parse().unwrap());
        let (source, destination) = if from_server {
            (server, client)
        } else {
            (client, server)
        };
        let mut segment = Segment {
            source,
            destination,
            seq: 0,
            ack: 0,
            syn: false,
            fin: false,
            rst: false,
            window: 0,
            scale: None,
            payload: 0,
        };
        change(&mut segment);
        Seen {
            at_ns: at_ms * 1_000_000,
            outgoing: from_server,
            segment,
        }
    }

    #[test]
    fn what_comes_late_is_told_from_what_comes_again() {
        let mut passed = Passed::default();
        let segments = [
            (0, 10, Order::Next),
            (10, 20, Order::Next),
            (40, 50, Order::Next),
            (20, 30, Order::Late),
            (45, 55, Order::Again),
            (30, 40, Order::Late),
            (54, 60, Order::Again),
            (60, 70, Order::Next),
            (0, 5, Order::Again),
        ];
        for (from, to, order) in segments {
            assert_eq!(passed.add(from, to), order, "{from}..{to}");
        }
        assert_eq!((passed.whole, passed.pieces.len()), (70, 0));
    }

    #[test]
    fn positions_are_those_of_the_stream_and_repetitions_are_counted() {
        let data = |at, seq, payload| {
            seen(at, true, |s| {
                (s.seq, s.payload) = (seq, payload);
            })
        };
        let trace = [
            seen(0, false, |s| (s.syn, s.scale) = (true, Some(2))),
            seen(1, true, |s| (s.syn, s.scale, s.seq) = (true, Some(7), u32::MAX)),
            data(2, 0, 1000),
            data(3, 1000, 1000),
            seen(4, false, |s| (s.ack, s.window) = (1000, 500)),
            data(9, 1000, 500),
            data(10, 2000, 100),
        ];
        let lines = Lines::of(&trace, SERVER.parse().unwrap(), 0).unwrap();
        assert_eq!(lines.count(Order::Again), 1);
        assert_eq!(lines.acks, [(0.004, 1000.0)]);
        assert_eq!(lines.edges, [(0.004, 3000.0)]);
        assert_eq!(lines.passed(1000.0), Some(0.003));
        assert!((lines.silence_ms(|_, _| true) - 6.0).abs() < 1e-9);
        assert!((lines.silence_ms(|_, at| at > 1500.0) - 1.0).abs() < 1e-9);
        assert!(Lines::of(&trace[2..], SERVER.parse().unwrap(), 0).is_err());
    }
}
