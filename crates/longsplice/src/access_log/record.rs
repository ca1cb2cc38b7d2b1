//! What is told of a connection, or of one request of it, once it is over.

use std::{
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use longsplice_engine::{FlowId, Returned, Summary, reason::RelayReason};
use serde::Serialize;

/// How long a name, a target or a header field may be in a log line, in bytes; what is longer is cut.
pub const MAX_TEXT: usize = 2048;

/// One line of the access log: a request and its reply, or a connection of which no requests are read.
#[derive(Debug, Clone)]
pub struct AccessRecord {
    /// When it began.
    pub time: SystemTime,
    /// The client, by the PROXY header where one was read.
    pub client: SocketAddr,
    /// The listener.
    pub listener: String,
    /// The route that took it.
    pub route: Option<String>,
    /// The upstream that it went to.
    pub upstream: Option<String>,
    /// The server that it went to.
    pub server: Option<String>,
    /// The flow, as `longsplice flows` shows it.
    pub flow: Option<FlowId>,
    /// Whether it is a request of HTTP, or a connection of which none are read.
    pub is_request: bool,
    /// What was asked for, where it could be read and somebody wanted to know.
    pub request: Option<Request>,
    /// The status code that the client got (RFC 9110 section 15).
    pub status: Option<u16>,
    /// Payload bytes to the client, heads included; of what was spliced, as the kernel counted.
    pub bytes_to_client: u64,
    /// The same to the server.
    pub bytes_to_server: u64,
    /// From its beginning to its end.
    pub duration: Duration,
    /// From its beginning to the first byte of the reply, where that was seen.
    pub first_byte: Option<Duration>,
    /// Whether it was spliced at any time.
    pub spliced: bool,
    /// Payload bytes that passed while it was spliced, in both directions.
    pub bytes_spliced: u64,
    /// Why it was not spliced, where it was not.
    pub relay_reason: Option<RelayReason>,
    /// The server's name in the ClientHello.
    pub sni: Option<String>,
    /// How it ended.
    pub end: End,
}

/// A request, for a log line.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The target, as it came.
    pub target: String,
    /// The host that was asked for.
    pub host: Option<String>,
    /// The version, such as `HTTP/1.1`.
    pub version: &'static str,
    /// The Referer field (RFC 9110 section 10.1.3), for the combined format.
    pub referer: Option<String>,
    /// The User-Agent field (RFC 9110 section 10.1.5), likewise.
    pub user_agent: Option<String>,
}

/// How a connection or request ended. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// In order: the reply was delivered, or both streams have ended.
    Complete,
    /// One of the ends was reset.
    Reset,
    /// The client went away before its end.
    ClientClosed,
    /// The server went away before its end.
    ServerClosed,
    /// The client was too slow.
    ClientTimeout,
    /// The server was too slow.
    ServerTimeout,
    /// No server could be reached, or none was free.
    Unavailable,
    /// It was answered or closed here, as a route or a limit says.
    Refused,
    /// What the client sent cannot be understood.
    BadRequest,
    /// What the server sent cannot be understood.
    BadReply,
    /// Nothing passed for longer than `idle_timeout`.
    Idle,
    /// It was ended by command.
    Asked,
    /// The configuration changed, and `on_change` says so.
    Changed,
    /// The daemon shut down.
    Stopped,
    /// Its record in the kernel is gone and nobody saw how: a new connection took the place of one that had ended.
    Lost,
}

impl End {
    /// All of them.
    pub const ALL: [End; 15] = [
        End::Complete,
        End::Reset,
        End::ClientClosed,
        End::ServerClosed,
        End::ClientTimeout,
        End::ServerTimeout,
        End::Unavailable,
        End::Refused,
        End::BadRequest,
        End::BadReply,
        End::Idle,
        End::Asked,
        End::Changed,
        End::Stopped,
        End::Lost,
    ];

    /// As it stands in a log line and in a label.
    pub fn as_str(self) -> &'static str {
        match self {
            End::Complete => "complete",
            End::Reset => "reset",
            End::ClientClosed => "client_closed",
            End::ServerClosed => "server_closed",
            End::ClientTimeout => "client_timeout",
            End::ServerTimeout => "server_timeout",
            End::Unavailable => "unavailable",
            End::Refused => "refused",
            End::BadRequest => "bad_request",
            End::BadReply => "bad_reply",
            End::Idle => "idle",
            End::Asked => "asked",
            End::Changed => "changed",
            End::Stopped => "stopped",
            End::Lost => "lost",
        }
    }
}

impl AccessRecord {
    /// Of something that begins now.
    pub fn new(listener: &str, client: SocketAddr) -> AccessRecord {
        AccessRecord {
            time: SystemTime::now(),
            client,
            listener: listener.to_owned(),
            route: None,
            upstream: None,
            server: None,
            flow: None,
            is_request: false,
            request: None,
            status: None,
            bytes_to_client: 0,
            bytes_to_server: 0,
            duration: Duration::ZERO,
            first_byte: None,
            spliced: false,
            bytes_spliced: 0,
            relay_reason: None,
            sni: None,
            end: End::Complete,
        }
    }

    /// The same, over now; `began` is its beginning on the clock that only runs forward.
    #[must_use]
    pub fn ended(self, began: Instant, end: End) -> AccessRecord {
        AccessRecord {
            duration: began.elapsed(),
            end,
            ..self
        }
    }

    /// Adds what passed during a call of [`longsplice_engine::Splicer::splice`] that ended the pair.
    pub fn add(&mut self, summary: &Summary) {
        self.flow = Some(summary.id);
        self.bytes_to_server += summary.bytes_to_server;
        self.bytes_to_client += summary.bytes_to_client;
        self.bytes_spliced += summary.bytes_spliced;
        self.spliced |= summary.spliced;
        self.relay_reason = summary.relay_reason;
    }

    /// The same of a call after which the pair came back.
    pub fn add_returned(&mut self, returned: &Returned) {
        self.flow = Some(returned.id);
        self.bytes_to_server += returned.passed[0];
        self.bytes_to_client += returned.passed[1];
        self.bytes_spliced += returned.bytes_spliced;
        self.spliced |= returned.spliced;
    }
}

/// The beginning of a text, as long as a log line has room for.
pub fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default()
}
