//! What is asked of an upstream, and what it answers.

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use tokio::net::TcpStream;

use super::{
    connect::Connector,
    place::{Place, Site},
    server::{Server, ServerId},
};
use crate::{client::Client, config::SourceAddress};

/// Who asks for a server.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Leg A.
    pub client: BorrowedFd<'a>,
    /// The client's address, by the PROXY header where one was read.
    pub peer: SocketAddr,
    /// Where the client connected to.
    pub local: SocketAddr,
    /// Whether the client's connection is IPv4 on the wire; an IPv4 client may arrive over an IPv6 socket.
    pub ipv4: bool,
    /// Whose address the server sees.
    pub source: SourceAddress,
    /// What the hash is of, as [`Upstream::key`](super::Upstream::key) says; the client's address needs none.
    pub key: Option<&'a [u8]>,
    /// The value of the cookie that [`Upstream::sticky`](super::Upstream::sticky) names, as the client sent it.
    pub sticky: Option<&'a str>,
    /// Whether a connection will do that has served a request before.
    pub reuse: Reuse,
    /// Servers that were tried already.
    pub not: &'a [ServerId],
}

/// Which idle connections will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// None: one was dead, and the request must not meet another.
    No,
    /// One whose socket is asked whether it is still open: the request cannot be sent twice.
    Asked,
    /// One of whose end nothing was heard yet. That costs no system call, and the request can be sent again if it was over.
    Unheard,
}

impl<'a> Ask<'a> {
    /// Of a connection, before anything is known of a request.
    pub fn of(client: &'a Client, source: SourceAddress) -> Ask<'a> {
        Ask {
            client: client.stream.socket().as_fd(),
            peer: client.peer,
            local: client.local,
            ipv4: client.ipv4,
            source,
            key: None,
            sticky: None,
            reuse: Reuse::Asked,
            not: &[],
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Lease {
    /// Leg B.
    pub stream: TcpStream,
    /// Whether it has served a request before.
    pub reused: bool,
    /// Counts as one of its server's connections until it is dropped.
    pub tenure: Tenure,
}

/// A connection's place at its server.
#[derive(Debug)]
pub struct Tenure {
    place: Place,
}

/// How a server failed a connection that it had taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It did not take it in time, or refused.
    Connect,
    /// It ended or reset before its reply was there.
    Closed,
    /// Its reply did not begin in time.
    Timeout,
    /// What it sent is no reply.
    Malformed,
}

impl Tenure {
    pub(super) fn new(place: Place) -> Tenure {
        Tenure { place }
    }

    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        self.place.server()
    }

    /// Where it is; `None`: no upstream counts it.
    pub fn site(&self) -> Option<Site> {
        self.place.site()
    }

    /// Goes without giving its place up: its [`Tenure::site`] has it counted until [`Site::resume`].
    pub fn stay(self) {
        self.place.stay();
    }

    /// Leaves an idle connection to the upstream, which keeps it for another request, or closes it. The last reply must have been
    /// read to its end, and the socket is one that closes in order: those that the engine gives back reset
    /// ([`longsplice_engine::Returned::set_reset_on_close`]).
    pub fn give_back(self, stream: TcpStream) {
        self.place.give_back(stream);
    }

    /// A reply's head was read, so long after its request was sent.
    pub fn answered(&self, status: u16, after: Duration) {
        self.place.answered(status, after);
    }

    /// The server failed. Not for an idle connection that turned out dead: that is no fault.
    pub fn failed(&self, how: Failure) {
        self.place.failed(how);
    }

    /// The value of the sticky cookie that stands for this server; `None`: the upstream is not sticky.
    pub fn cookie(&self) -> Option<&str> {
        self.place.cookie()
    }
}

impl fmt::Display for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server().address().fmt(f)
    }
}

/// No server.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// None of those that were tried answered.
    #[error("{}", list(.0))]
    Refused(Vec<(String, io::Error)>),
    /// The original destination did not.
    #[error("{0}: {1}")]
    Original(SocketAddr, io::Error),
    /// All are down, drained, or were tried before.
    #[error("upstream `{upstream}` has no server that is up ({why}); `longsplice servers` shows them")]
    Down {
        /// Which upstream.
        upstream: String,
        /// How many are down, drained and so on.
        why: String,
    },
    /// All have as many connections as they may, and so many wait already.
    #[error("the queue of upstream `{upstream}` is full: {queue} wait for a server already")]
    QueueFull {
        /// Which upstream.
        upstream: String,
        /// Its limit.
        queue: u32,
    },
    /// All have as many connections as they may, and none ended in time.
    #[error("no server of upstream `{upstream}` had a place within {}", crate::config::Period(*.after))]
    QueueTimeout {
        /// Which upstream.
        upstream: String,
        /// How long it waited.
        after: Duration,
    },
}

fn list(attempts: &[(String, io::Error)]) -> String {
    let attempts: Vec<_> = attempts.iter().map(|(to, why)| format!("{to}: {why}")).collect();
    attempts.join("; ")
}

impl Unavailable {
    /// The status code for a client that speaks HTTP (RFC 9110 section 15.6).
    pub fn status(&self) -> u16 {
        match self {
            Unavailable::Refused(_) | Unavailable::Original(..) => 502,
            Unavailable::Down { .. } | Unavailable::QueueFull { .. } | Unavailable::QueueTimeout { .. } => {
                503
            }
        }
    }
}

/// A connection to where the client was going.
///
/// # Errors
/// What it answered.
pub async fn lease_original(
    splicer: &longsplice_engine::Splicer,
    ask: &Ask<'_>,
    to: SocketAddr,
    timeout: Duration,
) -> Result<Lease, Unavailable> {
    let connector = Connector::new(splicer, ask, timeout);
    let connected = connector.connect_to(to).await;
    let stream = connected.map_err(|error| Unavailable::Original(to, error))?;
    Ok(Lease {
        stream,
        reused: false,
        tenure: Tenure::new(Place::outside(to)),
    })
}
