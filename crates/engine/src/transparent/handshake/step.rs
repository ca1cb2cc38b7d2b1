//! Describes the steps of a handshake to the caller, who decides on them.

use std::{io, net::SocketAddr, time::Duration};

use tokio::net::TcpStream;

use crate::{FlowHandle, Pair};

/// Describes a segment of a handshake, before it is decided whether the connection is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Address of the end that opens the connection.
    pub client: SocketAddr,
    /// Address of the other end.
    pub server: SocketAddr,
    /// Interface at which the SYN came in.
    pub client_interface: u32,
    /// Answer to the SYN; `None` while the SYN is decided.
    pub answer: Option<StepAnswer>,
    /// True if the segment has options that a built socket does not support, such as those of MPTCP or TCP-AO, or payload, or
    /// its packet has IP options or extension headers. With these two it is passed through in any case.
    pub has_unknown_options: bool,
    /// True if the server has accepted a connection lately ([`KnownServers`]).
    pub is_known_server: bool,
    /// True if so many handshakes are under way that this one cannot be remembered: it is passed through in any case.
    pub is_beyond_limit: bool,
    /// Number of connections whose client has not acknowledged the answer yet.
    pub unconfirmed: usize,
    /// Largest window that the ends have offered so far, in bytes; never scaled in a handshake.
    pub window: u16,
}

/// Describes the answer to a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepAnswer {
    /// Interface at which the answer came in.
    pub interface: u32,
    /// Time from the SYN to its answer: the round-trip time to the server, measured where the answer comes in. `None` if
    /// the SYN was sent more than once.
    pub round_trip: Option<Duration>,
}

/// Decision about a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The segment goes on untouched, and the connection is none of ours.
    PassThrough,
    /// The connection is taken over once the server has answered.
    TakeOver,
    /// The client is answered at once, before the server is asked (paper 004, algorithm 1); only for a SYN. If the server
    /// refuses then, the client sees a connection that is reset.
    AnswerEarly,
}

/// Result of a segment of a handshake.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "made once, and taken apart at once")]
pub enum Taken {
    /// Both legs are connected: the client has acknowledged the answer.
    Opened(Opened),
    /// The client is connected, and the server is to be asked.
    Early(EarlyClient),
    /// A client that was answered early has acknowledged the answer.
    Confirmed(Confirmed),
    /// The client has not acknowledged the answer for 20 s: the connection passes through, should it go on. Its SYN may have
    /// had a forged source.
    Unconfirmed {
        /// End that opens the connection.
        client: SocketAddr,
        /// End that answers.
        server: SocketAddr,
    },
    /// A firewall of this host drops what the client sends to its socket, or what the socket sends: the connection passes
    /// through.
    Undelivered {
        /// End that opens the connection.
        client: SocketAddr,
        /// End that answers.
        server: SocketAddr,
    },
    /// The system refused the sockets: the connection passes through.
    Refused {
        /// End that opens the connection.
        client: SocketAddr,
        /// End that answers.
        server: SocketAddr,
        /// Error of the system.
        error: io::Error,
    },
    /// The server has answered in a handshake that was passed through.
    Passed(Step),
    /// One direction of a handshake has not come by. An answer came without its SYN, or a client goes on without an answer.
    HalfSeen {
        /// End that opens the connection.
        client: SocketAddr,
        /// End that answers.
        server: SocketAddr,
    },
}

/// Tells that a client has acknowledged the early answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the server.
    pub server: SocketAddr,
    /// Round-trip time to the client, measured where its acknowledgement comes in.
    pub round_trip: Duration,
}

/// Holds a client that was answered in the name of its server.
#[derive(Debug)]
pub struct EarlyClient {
    /// Socket toward the client; connect to the server with [`Splicer::connect_from`].
    pub client: TcpStream,
    /// Handshake.
    pub step: Step,
    /// Handle for the pair ([`Pair::with_handle`]); it learns the client's round-trip time.
    pub handle: FlowHandle,
    /// Traffic class of the client's SYN, without ECN: the DSCP in the upper six bits (RFC 2474). Set it on the socket toward the
    /// server ([`longsplice_repair::options::set_traffic_class`]).
    pub class: u8,
}

/// Holds a connection that was taken over at its handshake.
#[derive(Debug)]
pub struct Opened {
    /// Sockets of both legs.
    pub pair: Pair,
    /// Handshake, with its answer.
    pub step: Step,
    /// Handle for the pair ([`Pair::with_handle`]); it learns the round-trip times of both handshakes.
    pub handle: FlowHandle,
}
