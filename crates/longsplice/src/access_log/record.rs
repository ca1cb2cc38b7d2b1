//! Describes a connection, or one of its requests, after its end.

use std::{
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use longsplice_engine::{FlowId, Returned, Summary, reason::RelayReason};
use serde::Serialize;

/// Limit of a name, a target or a header field in a log line, in bytes; longer text is cut.
pub(crate) const MAX_TEXT: usize = 2048;

/// One line of the access log: a request and its reply, or a connection of which no requests are read.
#[derive(Debug, Clone)]
pub(crate) struct AccessRecord {
    /// Time of its beginning.
    pub time: SystemTime,
    /// Address of the client; from the PROXY header, if one was read.
    pub client: SocketAddr,
    pub listener: String,
    /// Route that took it.
    pub route: Option<String>,
    /// Upstream that it went to.
    pub upstream: Option<String>,
    /// Server that it went to.
    pub server: Option<String>,
    /// True for a request; false for a connection of which no requests are read.
    pub is_request: bool,
    /// Request, if it was read and there is an access log.
    pub request: Option<Request>,
    /// Status code that the client got (RFC 9110 section 15).
    pub status: Option<u16>,
    /// Payload that passed, and its way.
    pub traffic: Traffic,
    /// Time from its beginning to its end.
    pub duration: Duration,
    /// Time from its beginning to the first byte of the reply, if that was seen.
    pub first_byte: Option<Duration>,
    /// Name of the server in the ClientHello.
    pub sni: Option<String>,
    pub end: End,
}

/// Payload of a connection or request, and its way.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    /// Number of the flow, as `longsplice flows` shows it.
    pub flow: Option<FlowId>,
    /// Payload bytes to the client, including heads; for spliced bytes, as the kernel counted them.
    pub bytes_to_client: u64,
    /// Payload bytes to the server, including heads; for spliced bytes, as the kernel counted them.
    pub bytes_to_server: u64,
    /// True if it was spliced at any time.
    pub spliced: bool,
    /// Payload bytes that passed while it was spliced, in both directions.
    pub bytes_spliced: u64,
    /// Reason why it was not spliced.
    pub relay_reason: Option<RelayReason>,
}

/// A request, for a log line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub method: String,
    /// Target, as the client sent it.
    pub target: String,
    /// Host of the request.
    pub host: Option<String>,
    /// Version, such as `HTTP/1.1`.
    pub version: &'static str,
    /// Value of Referer, for the combined format (RFC 9110 section 10.1.3).
    pub referer: Option<String>,
    /// Value of User-Agent, for the combined format (RFC 9110 section 10.1.5).
    pub user_agent: Option<String>,
}

/// End of a connection or request. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::IntoStaticStr, strum::VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum End {
    /// The reply was delivered, or both streams ended in order.
    Complete,
    /// A connection was reset.
    Reset,
    /// The client closed too early.
    ClientClosed,
    /// The server closed too early.
    ServerClosed,
    /// The client was too slow.
    ClientTimeout,
    /// The server was too slow.
    ServerTimeout,
    /// No server could be reached, or none was free.
    Unavailable,
    /// The proxy answered or closed, because of a route or a limit.
    Refused,
    /// The client sent an invalid request.
    BadRequest,
    /// The server sent an invalid reply.
    BadReply,
    /// More bytes passed than the reply had: a defect of the proxy. Both connections were reset.
    OutOfStep,
    /// No byte passed for longer than `idle_timeout` (spliced) or `relay_idle_timeout` (relayed).
    Idle,
    /// A command (`longsplice kill`) ended it.
    Admin,
    /// The configuration changed, and `on_reload` ended it.
    Reload,
    /// Memory ran out.
    Memory,
    /// The daemon shut down.
    Shutdown,
    /// The record in the kernel is gone without an observed end: a new connection replaced one that had ended.
    Unknown,
}

longsplice_core::named!(pub(crate) End);

impl AccessRecord {
    /// Creates the record of a connection or request that begins now.
    pub(crate) fn new(listener: &str, client: SocketAddr) -> AccessRecord {
        AccessRecord {
            time: SystemTime::now(),
            client,
            listener: listener.to_owned(),
            route: None,
            upstream: None,
            server: None,
            is_request: false,
            request: None,
            status: None,
            traffic: Traffic::default(),
            duration: Duration::ZERO,
            first_byte: None,
            sni: None,
            end: End::Complete,
        }
    }

    /// Completes the record now; `began` is the beginning on the monotonic clock.
    #[must_use]
    pub(crate) fn ended(self, began: Instant, end: End) -> AccessRecord {
        AccessRecord {
            duration: began.elapsed(),
            end,
            ..self
        }
    }
}

impl Traffic {
    /// Adds the bytes of a call of [`longsplice_engine::Splicer::splice`] that ended the pair.
    pub(crate) fn add(&mut self, summary: &Summary) {
        self.flow = Some(summary.id);
        self.bytes_to_server += summary.bytes_to_server;
        self.bytes_to_client += summary.bytes_to_client;
        self.bytes_spliced += summary.bytes_spliced;
        self.spliced |= summary.spliced;
        self.relay_reason = summary.relay_reason;
    }

    /// Adds the bytes of a call of [`longsplice_engine::Splicer::splice`] after which the pair came back.
    pub(crate) fn add_returned(&mut self, returned: &Returned) {
        self.flow = Some(returned.id);
        self.bytes_to_server += returned.passed.client;
        self.bytes_to_client += returned.passed.server;
        self.bytes_spliced += returned.bytes_spliced;
        self.spliced |= returned.spliced;
    }
}

/// Cuts a text to the length that a log line has room for.
pub(crate) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default()
}
