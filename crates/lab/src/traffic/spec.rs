//! Specification of a connection.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::exchange::Exchanges;
use super::side::Side;
use crate::pattern::{MAX_PIECE, Pattern};

/// One direction of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Number of bytes to send, not counting the header that gives the server its job.
    pub bytes: u64,
    /// Rate at which the sender writes, in byte/s; `None`: as fast as it can.
    pub send_rate: Option<u64>,
    /// Rate at which the receiver reads, in byte/s: a slow reader closes its window; `None`: at once.
    pub receive_rate: Option<u64>,
    /// Most bytes given to one `write`.
    pub chunk: usize,
    /// Pause of the sender.
    pub pause: Option<Pause>,
    /// Pauses of the receiver, so that its window closes; in any order.
    pub read_pauses: Vec<Pause>,
}

/// Pause in the middle of a transfer. A pause of the sender is a gap for the receiver; a pause of the receiver is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Number of bytes, written or read, after which it begins.
    pub after_bytes: u64,
    /// Its length: shorter than [`ConnectionSpec::stall`], or the other end gives up.
    pub length: Duration,
}

/// Order of the two FINs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Close {
    /// Each end closes as soon as it has sent everything: each direction closes by itself.
    #[default]
    Both,
    /// The server closes only after it has read the client's FIN.
    ClientFirst,
    /// The client closes only after it has read the server's FIN.
    ServerFirst,
}

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionSpec {
    /// Transfer from the client to the server.
    pub to_server: Transfer,
    /// Transfer from the server to the client; both run at the same time.
    pub to_client: Transfer,
    /// Turns of requests and replies in place of free transfers. They set the bytes of both transfers.
    pub exchanges: Option<Exchanges>,
    /// Order of the two FINs.
    pub close: Close,
    /// Congestion control of both ends, such as `cubic`; `None`: that of the namespace.
    pub congestion: Option<String>,
    /// True if the receivers compute the SHA-256 of the received bytes, in addition to comparing every byte.
    pub sha256: bool,
    /// Time without any progress after which the connection has failed.
    pub stall: Duration,
}

/// Many connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficSpec {
    /// Specification of each connection, in the order in which they begin.
    pub connections: Vec<ConnectionSpec>,
    /// Largest number of connections open at the same time; 0 counts as 1.
    pub parallel: usize,
    /// Seed of the patterns: the same seed gives the same bytes.
    pub seed: u64,
}

impl Transfer {
    /// Creates a transfer of `bytes` bytes, as fast as possible.
    pub fn of(bytes: u64) -> Self {
        Transfer {
            bytes,
            send_rate: None,
            receive_rate: None,
            chunk: MAX_PIECE,
            pause: None,
            read_pauses: Vec::new(),
        }
    }
}

impl ConnectionSpec {
    /// Creates a connection with these transfers, which fails after 10 s without progress.
    pub fn new(to_server: Transfer, to_client: Transfer) -> Self {
        ConnectionSpec {
            to_server,
            to_client,
            exchanges: None,
            close: Close::Both,
            congestion: None,
            sha256: false,
            stall: Duration::from_secs(10),
        }
    }

    /// Creates a connection that sends `bytes` in each direction, as fast as possible.
    pub fn both_ways(bytes: u64) -> Self {
        ConnectionSpec::new(Transfer::of(bytes), Transfer::of(bytes))
    }

    /// Creates a connection on which requests and replies take turns.
    pub fn exchanges(exchanges: Exchanges) -> Self {
        let mut spec = ConnectionSpec::both_ways(0);
        spec.exchanges = Some(exchanges);
        spec.settled()
    }

    /// Returns the specification with the bytes of both transfers set to those of the exchanges, if there are
    /// any.
    pub(super) fn settled(mut self) -> Self {
        if let Some(exchanges) = self.exchanges {
            [self.to_server.bytes, self.to_client.bytes] = exchanges.bytes();
        }
        self
    }
}

impl TrafficSpec {
    /// Creates `count` connections like `each`, all at the same time.
    pub fn same(count: usize, each: ConnectionSpec) -> Self {
        TrafficSpec {
            connections: vec![each; count],
            parallel: count,
            seed: 1,
        }
    }

    /// Limits the number of connections open at the same time to `parallel`.
    pub fn parallel(mut self, parallel: usize) -> Self {
        self.parallel = parallel;
        self
    }

    /// Changes each connection, given its number.
    pub fn vary(mut self, mut change: impl FnMut(usize, &mut ConnectionSpec)) -> Self {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            change(number, connection);
        }
        self
    }
}

/// Job that the client sends to the server at the beginning of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    /// Number, unique among all connections of this process and, by its upper half, among processes.
    pub(super) id: u64,
    pub(super) seed: u64,
    pub(super) spec: ConnectionSpec,
}

impl Job {
    /// Returns the transfer that this side sends, and its pattern.
    pub(super) fn outgoing(&self, side: Side) -> (&Transfer, Pattern) {
        match side {
            Side::Client => (&self.spec.to_server, Pattern::new(self.seed)),
            Side::Server => (&self.spec.to_client, Pattern::new(self.seed ^ 1)),
        }
    }

    /// Returns the transfer that this side receives, and its pattern.
    pub(super) fn incoming(&self, side: Side) -> (&Transfer, Pattern) {
        self.outgoing(side.other())
    }

    /// Returns whether this side's FIN waits for the other's.
    pub(super) fn closes_second(&self, side: Side) -> bool {
        match self.spec.close {
            Close::Both => false,
            Close::ClientFirst => side == Side::Server,
            Close::ServerFirst => side == Side::Client,
        }
    }
}
