//! What became of connections.

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

use super::exchange::ExchangeTime;
use crate::emulator::Histogram;

/// Why an end of a connection is not content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[non_exhaustive]
pub enum Failure {
    /// No connection was made.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// A byte is not the one that was sent.
    #[error("the byte at {offset} is wrong")]
    Mismatch {
        /// The offset of the first wrong byte in this direction.
        offset: u64,
    },
    /// The stream ended too early.
    #[error("the stream ended after {received} of {expected} bytes")]
    Short {
        /// How many bytes came.
        received: u64,
        /// How many were sent.
        expected: u64,
    },
    /// More came than was sent.
    #[error("more than {expected} bytes came")]
    Long {
        /// How many were sent.
        expected: u64,
    },
    /// The connection was reset.
    #[error("reset after {received} bytes received and {sent} sent")]
    Reset {
        /// How many bytes came before.
        received: u64,
        /// How many had been given to the kernel.
        sent: u64,
    },
    /// Nothing moved for too long.
    #[error("stalled after {received} bytes received and {sent} sent")]
    Stalled {
        /// How many bytes came before.
        received: u64,
        /// How many had been given to the kernel.
        sent: u64,
    },
    /// The server never told what it saw: the connection did not reach it, or still runs there.
    #[error("the server knows nothing of it")]
    Silent,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// A silence between two successive reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// When it ended, in nanoseconds of `CLOCK_MONOTONIC`.
    pub end_ns: u64,
    /// How long it was, in nanoseconds.
    pub length_ns: u64,
    /// How many bytes had come before.
    pub offset: u64,
}

/// What one end of a connection saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EndReport {
    /// Why it is not content; `None` when all is well.
    pub failure: Option<Failure>,
    /// Its own address; `None` when there was no connection.
    pub local: Option<SocketAddr>,
    /// The address of the other end, or of what stands for it.
    pub peer: Option<SocketAddr>,
    /// Bytes of the pattern given to the kernel.
    pub sent: u64,
    /// Bytes of the pattern that were received, and compared.
    pub received: u64,
    /// The time from the header to the end, in microseconds.
    pub duration_us: u64,
    /// The longest silence between two successive reads, in microseconds. The time that a slow reader lets pass
    /// on purpose does not count; a pause of the sender does. Where both take turns it begins when this end has sent
    /// its message: it is the time that the reply, or the next request, took.
    pub longest_gap_us: u64,
    /// The silences of more than [`super::LONG_GAP`], the first 65,536 of them.
    pub gaps: Vec<Gap>,
    /// Segments that its TCP had sent again when the connection ended.
    pub total_retrans: u32,
    /// How often its TCP's retransmission timer had expired when the connection ended; `None` where the kernel
    /// does not say (before Linux 6.7) or there was no connection.
    pub timeouts: Option<u32>,
    /// The exchanges that were completed, the first 65,536 of them; of the client only.
    pub exchanges: Vec<ExchangeTime>,
    /// The SHA-256 of what was received, in hexadecimal, if it was asked for.
    pub sha256: Option<String>,
}

/// What became of one connection.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConnectionOutcome {
    /// The time that connecting took, in microseconds.
    pub connect_us: u64,
    /// What the client saw.
    pub client: EndReport,
    /// What the server saw; `None` only from [`super::Traffic::drive`], whose server is elsewhere.
    pub server: Option<EndReport>,
}

impl ConnectionOutcome {
    /// Why the connection failed: what the client saw, or else what the server saw.
    pub fn failure(&self) -> Option<&Failure> {
        let server = self.server.as_ref().and_then(|server| server.failure.as_ref());
        self.client.failure.as_ref().or(server)
    }

    /// The client's port.
    pub fn client_port(&self) -> Option<u16> {
        self.client.local.map(|addr| addr.port())
    }

    fn ends(&self) -> impl Iterator<Item = &EndReport> {
        [Some(&self.client), self.server.as_ref()].into_iter().flatten()
    }
}

/// What became of all connections.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Outcome {
    /// The seed of the patterns.
    pub seed: u64,
    /// Each of them, in the order of the specification.
    pub connections: Vec<ConnectionOutcome>,
    /// The time from the first connection's beginning to the last one's end, in microseconds.
    pub duration_us: u64,
}

impl Outcome {
    /// Whether every byte of every connection arrived, once and in order, at both ends.
    pub fn all_ok(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The numbers of the connections that failed, and why.
    pub fn failures(&self) -> impl Iterator<Item = (usize, &Failure)> {
        self.connections
            .iter()
            .enumerate()
            .filter_map(|(number, each)| Some((number, each.failure()?)))
    }

    /// Bytes of patterns that were received, and right. Without a report of the server, those that the client
    /// has sent count as received by a connection that did not fail.
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

    /// The throughput of all connections in both directions, in bit/s.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes() as f64 * 8e6 / self.duration_us.max(1) as f64
    }

    /// The longest silence at any receiver, in microseconds.
    pub fn longest_gap_us(&self) -> u64 {
        self.ends().map(|end| end.longest_gap_us).max().unwrap_or(0)
    }

    /// Segments that the TCPs of all ends sent again.
    pub fn total_retrans(&self) -> u64 {
        self.ends().map(|end| u64::from(end.total_retrans)).sum()
    }

    /// How often the retransmission timers of all ends expired; `None` where the kernel does not say.
    pub fn timeouts(&self) -> Option<u64> {
        let told = self.ends().filter_map(|end| end.timeouts);
        told.map(u64::from).reduce(|sum, more| sum + more)
    }

    /// How long the completed exchanges of all connections took, from the first byte of the request to the last one
    /// of the reply.
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

/// How many failures are told one by one.
const MOST_TOLD: usize = 20;

impl fmt::Display for Outcome {
    /// A summary with the seed, and what failed.
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

    /// A connection whose ends saw this.
    fn connection(timeouts: [Option<u32>; 2], failure: Option<Failure>) -> ConnectionOutcome {
        let [client, server] = timeouts.map(|timeouts| EndReport {
            timeouts,
            received: 500,
            total_retrans: 2,
            longest_gap_us: 1500,
            ..EndReport::default()
        });
        ConnectionOutcome {
            connect_us: 0,
            client: EndReport { failure, ..client },
            server: Some(server),
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
