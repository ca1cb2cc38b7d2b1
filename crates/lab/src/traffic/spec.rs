//! What a connection shall do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::exchange::Exchanges;
use crate::pattern::{MAX_PIECE, Pattern};

/// One direction of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// How many bytes are sent, not counting the header that tells the server what to do.
    pub bytes: u64,
    /// The rate at which the sender writes, in byte/s; `None`: as fast as it can.
    pub send_rate: Option<u64>,
    /// The rate at which the receiver reads, in byte/s: a slow reader closes its window; `None`: as it comes.
    pub receive_rate: Option<u64>,
    /// At most so many bytes are given to one `write`.
    pub chunk: usize,
    /// A silence of the sender.
    pub pause: Option<Pause>,
    /// Times in which the receiver reads nothing, so that its window closes; in any order.
    pub read_pauses: Vec<Pause>,
}

/// A silence in the middle of a transfer. One of the sender is a gap for the receiver; one of the receiver is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// It begins when so many bytes are written, or read.
    pub after_bytes: u64,
    /// How long it lasts: less than [`ConnectionSpec::stall`], or the other end gives up.
    pub length: Duration,
}

/// Who sends its FIN when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Close {
    /// Each as soon as it has sent everything: each direction closes by itself.
    #[default]
    Both,
    /// The server only after it has read the client's.
    ClientFirst,
    /// The client only after it has read the server's.
    ServerFirst,
}

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionSpec {
    /// From the client to the server.
    pub to_server: Transfer,
    /// From the server to the client; both run at the same time.
    pub to_client: Transfer,
    /// Both sides send by turns instead. The bytes of both transfers follow from this, whatever they say.
    pub exchanges: Option<Exchanges>,
    /// Who closes when.
    pub close: Close,
    /// The congestion control of both ends, `cubic` say; `None`: that of the namespace.
    pub congestion: Option<String>,
    /// Whether the receivers compute the SHA-256 of what they get, in addition to comparing every byte.
    pub sha256: bool,
    /// After so long without any progress the connection has failed.
    pub stall: Duration,
}

/// Many connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficSpec {
    /// Each of them, in the order in which they begin.
    pub connections: Vec<ConnectionSpec>,
    /// How many are open at the same time, at most; 0 counts as 1.
    pub parallel: usize,
    /// The same seed gives the same bytes.
    pub seed: u64,
}

impl Transfer {
    /// `bytes`, as fast as possible.
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
    /// A connection with these transfers, which fails after 10 s without progress.
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

    /// A connection that sends `bytes` in each direction, as fast as possible.
    pub fn both_ways(bytes: u64) -> Self {
        ConnectionSpec::new(Transfer::of(bytes), Transfer::of(bytes))
    }

    /// A connection on which requests and replies take turns.
    pub fn exchanges(exchanges: Exchanges) -> Self {
        let mut spec = ConnectionSpec::both_ways(0);
        spec.exchanges = Some(exchanges);
        spec.settled()
    }

    /// The same, where the bytes of both transfers are those of the exchanges, if there are any.
    pub(super) fn settled(mut self) -> Self {
        if let Some(exchanges) = self.exchanges {
            [self.to_server.bytes, self.to_client.bytes] = exchanges.bytes();
        }
        self
    }
}

impl TrafficSpec {
    /// `count` connections like `each`, all at the same time.
    pub fn same(count: usize, each: ConnectionSpec) -> Self {
        TrafficSpec {
            connections: vec![each; count],
            parallel: count,
            seed: 1,
        }
    }

    /// Opens at most `parallel` of them at the same time.
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

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// What the client tells the server at the beginning of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    /// Unique among all connections of this process and, by the upper half, among processes.
    pub(super) id: u64,
    pub(super) seed: u64,
    pub(super) spec: ConnectionSpec,
}

impl Job {
    /// What this side sends, and its pattern.
    pub(super) fn outgoing(&self, side: Side) -> (&Transfer, Pattern) {
        match side {
            Side::Client => (&self.spec.to_server, Pattern::new(self.seed)),
            Side::Server => (&self.spec.to_client, Pattern::new(self.seed ^ 1)),
        }
    }

    /// What this side receives, and its pattern.
    pub(super) fn incoming(&self, side: Side) -> (&Transfer, Pattern) {
        match side {
            Side::Client => self.outgoing(Side::Server),
            Side::Server => self.outgoing(Side::Client),
        }
    }

    /// Whether this side's FIN waits for the other's.
    pub(super) fn closes_second(&self, side: Side) -> bool {
        match self.spec.close {
            Close::Both => false,
            Close::ClientFirst => side == Side::Server,
            Close::ServerFirst => side == Side::Client,
        }
    }
}
