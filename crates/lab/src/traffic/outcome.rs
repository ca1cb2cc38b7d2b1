//! Outcomes of connections.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use super::exchange::ExchangeTime;
use crate::emulator::Histogram;

/// Reason why an end of a connection failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[non_exhaustive]
pub enum Failure {
    /// The connection could not be established.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// A received byte differs from the one that was sent.
    #[error("the byte at {offset} is wrong")]
    Mismatch {
        /// Offset of the first wrong byte in this direction.
        offset: u64,
    },
    /// The stream ended too early.
    #[error("the stream ended after {received} of {expected} bytes")]
    Short {
        /// Number of bytes that came.
        received: u64,
        /// Number of bytes that were sent.
        expected: u64,
    },
    /// More bytes came than were sent.
    #[error("more than {expected} bytes came")]
    Long {
        /// Number of bytes that were sent.
        expected: u64,
    },
    /// The connection was reset.
    #[error("reset after {received} bytes received and {sent} sent")]
    Reset {
        /// Number of bytes that came before.
        received: u64,
        /// Number of bytes that had been given to the kernel.
        sent: u64,
    },
    /// No byte moved for longer than the limit.
    #[error("stalled after {received} bytes received and {sent} sent")]
    Stalled {
        /// Number of bytes that came before.
        received: u64,
        /// Number of bytes that had been given to the kernel.
        sent: u64,
    },
    /// The server sent no report: the connection did not reach it, or still runs there.
    #[error("the server knows nothing of it")]
    Silent,
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

/// Gap between two successive reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// Time of its end, in nanoseconds of `CLOCK_MONOTONIC`.
    pub end_ns: u64,
    /// Its length, in nanoseconds.
    pub length_ns: u64,
    /// Number of bytes that had come before.
    pub offset: u64,
}

/// Report of one end of a connection.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EndReport {
    /// Reason why it failed; `None` when all is well.
    pub failure: Option<Failure>,
    /// Its own address; `None` without a connection.
    pub local: Option<SocketAddr>,
    /// Address of the other end, or of the forwarder in its place.
    pub peer: Option<SocketAddr>,
    /// Bytes of the pattern given to the kernel.
    pub sent: u64,
    /// Bytes of the pattern that were received and compared.
    pub received: u64,
    /// Time from the header to the end, in microseconds.
    pub duration_us: u64,
    /// Time of its end, in nanoseconds of `CLOCK_MONOTONIC`; 0 without a connection.
    pub ended_ns: u64,
    /// Longest gap between two successive reads, in microseconds. A deliberate pause of a slow reader does not count; a
    /// pause of the sender does. Where both take turns the gap begins when this end has sent its message: it is the
    /// time that the reply, or the next request, took.
    pub longest_gap_us: u64,
    /// Gaps of more than [`super::LONG_GAP`], the first 65,536 of them.
    pub gaps: Vec<Gap>,
    /// Number of segments that its TCP had retransmitted when the connection ended.
    pub total_retrans: u32,
    /// Number of expiries of its TCP's retransmission timer when the connection ended; `None` without a connection or
    /// on a kernel that does not report it (before Linux 6.7).
    pub timeouts: Option<u32>,
    /// Completed exchanges, the first 65,536 of them; of the client only.
    pub exchanges: Vec<ExchangeTime>,
    /// SHA-256 of the received bytes, in hexadecimal, if it was requested.
    pub sha256: Option<String>,
}

/// Outcome of one connection.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConnectionOutcome {
    /// Time at which connecting began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// Time that connecting took, in microseconds.
    pub connect_us: u64,
    /// Report of the client.
    pub client: EndReport,
    /// Report of the server; `None` only from [`super::Traffic::drive`], whose server is in another process.
    pub server: Option<EndReport>,
}

impl ConnectionOutcome {
    /// Returns the reason why the connection failed: the client's, or else the server's.
    pub fn failure(&self) -> Option<&Failure> {
        let server = self.server.as_ref().and_then(|server| server.failure.as_ref());
        self.client.failure.as_ref().or(server)
    }

    /// Returns the client's port.
    pub fn client_port(&self) -> Option<u16> {
        self.client.local.map(|addr| addr.port())
    }

    /// Returns the time from the client's SYN to the server's last byte; `None` if one of them is not known. (The server's own
    /// time begins when the header arrives, which a relay that answers early may hold for a round trip.)
    pub fn one_way(&self) -> Option<Duration> {
        let ended = self.server.as_ref()?.ended_ns;
        let known = self.began_ns > 0 && ended > self.began_ns;
        known.then(|| Duration::from_nanos(ended - self.began_ns))
    }

    fn ends(&self) -> impl Iterator<Item = &EndReport> {
        [Some(&self.client), self.server.as_ref()].into_iter().flatten()
    }
}

/// Outcome of all connections.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Outcome {
    /// Seed of the patterns.
    pub seed: u64,
    /// Outcome of each connection, in the order of the specification.
    pub connections: Vec<ConnectionOutcome>,
    /// Time from the first connection's beginning to the last one's end, in microseconds.
    pub duration_us: u64,
}

impl Outcome {
    /// Returns whether every byte of every connection arrived, once and in order, at both ends.
    pub fn all_ok(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Returns the numbers of the failed connections, with the reasons.
    pub fn failures(&self) -> impl Iterator<Item = (usize, &Failure)> {
        self.connections
            .iter()
            .enumerate()
            .filter_map(|(number, each)| Some((number, each.failure()?)))
    }

    /// Returns the number of pattern bytes that were received and right. Without a report of the server, the bytes
    /// that the client sent count as received, if the connection did not fail.
    pub fn bytes(&self) -> u64 {
        let to_server = |each: &ConnectionOutcome| match &each.server {
            Some(server) => server.received,
            None if each.failure().is_none() => each.client.sent,
            None => 0,
        };
        self.connections
            .iter()
            .map(|each| each.client.received + to_server(each))
            .sum()
    }

    /// Returns the throughput of all connections in both directions, in bit/s.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes() as f64 * 8e6 / self.duration_us.max(1) as f64
    }

    /// Returns the longest gap at any receiver, in microseconds.
    pub fn longest_gap_us(&self) -> u64 {
        self.ends().map(|end| end.longest_gap_us).max().unwrap_or(0)
    }

    /// Returns the number of segments that the TCPs of all ends retransmitted.
    pub fn total_retrans(&self) -> u64 {
        self.ends().map(|end| u64::from(end.total_retrans)).sum()
    }

    /// Returns the number of expiries of the retransmission timers of all ends; `None` where the kernel does
    /// not report it.
    pub fn timeouts(&self) -> Option<u64> {
        let told = self.ends().filter_map(|end| end.timeouts);
        told.map(u64::from).reduce(|sum, more| sum + more)
    }

    /// Returns the times of the completed exchanges of all connections, from the first byte of the request to the last
    /// one of the reply.
    pub fn exchange_times(&self) -> Histogram {
        let mut times = Histogram::default();
        let exchanges = self.connections.iter().flat_map(|each| &each.client.exchanges);
        exchanges.for_each(|exchange| times.add(exchange.last_byte_ns));
        times
    }

    fn ends(&self) -> impl Iterator<Item = &EndReport> {
        self.connections.iter().flat_map(ConnectionOutcome::ends)
    }
}

/// Number of failures that are listed one by one.
const MOST_TOLD: usize = 20;

impl fmt::Display for Outcome {
    /// Writes a summary with the seed and the failures.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures().count();
        write!(
            f,
            "seed {}: {} of {} connections ok, {} bytes compared in {:.3} s, {:.1} Mbit/s; longest pause {:.1} ms, \
             {} segments sent again",
            self.seed,
            self.connections.len() - failed,
            self.connections.len(),
            self.bytes(),
            self.duration_us as f64 / 1e6,
            self.bits_per_second() / 1e6,
            self.longest_gap_us() as f64 / 1e3,
            self.total_retrans(),
        )?;
        if let Some(timeouts) = self.timeouts() {
            write!(f, ", {timeouts} timeouts")?;
        }
        let times = self.exchange_times();
        if times.count() > 0 {
            write!(f, "\n  {} exchanges: {times}", times.count())?;
        }
        for (number, failure) in self.failures().take(MOST_TOLD) {
            write!(f, "\n  connection {number}: {failure}")?;
        }
        if failed > MOST_TOLD {
            write!(f, "\n  and {} more", failed - MOST_TOLD)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a connection whose ends report this.
    fn connection(timeouts: [Option<u32>; 2], failure: Option<Failure>) -> ConnectionOutcome {
        let [client, server] = timeouts.map(|timeouts| EndReport {
            timeouts,
            received: 500,
            total_retrans: 2,
            longest_gap_us: 1500,
            ..EndReport::default()
        });
        ConnectionOutcome {
            client: EndReport { failure, ..client },
            server: Some(server),
            ..ConnectionOutcome::default()
        }
    }

    #[test]
    fn timeouts_are_those_of_all_ends_that_tell() {
        let of = |connections| Outcome {
            connections,
            ..Outcome::default()
        };
        assert_eq!(of(vec![connection([None, None], None)]).timeouts(), None);
        let some = of(vec![
            connection([Some(1), None], None),
            connection([Some(0), Some(3)], None),
        ]);
        assert_eq!(some.timeouts(), Some(4));
    }

    #[test]
    fn the_summary_has_the_seed_and_the_failures() {
        let mut outcome = Outcome {
            seed: 7,
            connections: vec![connection([Some(1), Some(2)], None); 2],
            duration_us: 2000,
        };
        let time = ExchangeTime {
            begin_ns: 5,
            first_byte_ns: 6,
            last_byte_ns: 2_000_000,
        };
        outcome.connections[0].client.exchanges.push(time);
        let text = outcome.to_string();
        assert_eq!(
            text,
            "seed 7: 2 of 2 connections ok, 2000 bytes compared in 0.002 s, 8.0 Mbit/s; longest pause 1.5 ms, \
             8 segments sent again, 6 timeouts\n  \
             1 exchanges: p50 2.00 ms, p99 2.00 ms, p99.9 2.00 ms, max 2.00 ms"
        );
        let bad = connection([None, None], Some(Failure::Mismatch { offset: 12 }));
        outcome.connections = vec![bad; 25];
        let text = outcome.to_string();
        assert!(text.starts_with("seed 7: 0 of 25 connections ok"), "{text}");
        assert!(
            text.contains("\n  connection 0: the byte at 12 is wrong\n"),
            "{text}"
        );
        assert!(
            text.ends_with("\n  connection 19: the byte at 12 is wrong\n  and 5 more"),
            "{text}"
        );
    }
}
