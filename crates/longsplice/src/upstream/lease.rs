//! Types of a request for a server and of its result.

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use longsplice_engine::Tie;
use tokio::net::TcpStream;

use super::{
    connect::Connector,
    place::{Place, Site},
    server::{Server, ServerId},
};
use crate::{client::Client, config::SourceAddress};

/// A client's request for a server.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Leg A.
    pub client: BorrowedFd<'a>,
    /// Address of the client; from the PROXY header, if one was read.
    pub peer: SocketAddr,
    /// Address that the client connected to.
    pub local: SocketAddr,
    /// True if the client's connection is IPv4 on the wire. An IPv4 client may arrive over an IPv6 socket.
    pub ipv4: bool,
    /// Selects the source address that the server sees.
    pub source: SourceAddress,
    /// Bytes to hash, as [`Upstream::key`](super::Upstream::key) says; a hash of the client's address needs none.
    pub key: Option<&'a [u8]>,
    /// Value of the cookie that [`Upstream::sticky`](super::Upstream::sticky) names, as the client sent it.
    pub sticky: Option<&'a str>,
    /// True if an idle connection may be reused.
    pub reuse: bool,
    /// Servers to leave out: they were tried already.
    pub not: &'a [ServerId],
}

impl<'a> Ask<'a> {
    /// Returns the request for a connection of which no request was read yet.
    pub fn of(client: &'a Client, source: SourceAddress) -> Ask<'a> {
        Ask {
            client: client.stream.socket().as_fd(),
            peer: client.peer,
            local: client.local,
            ipv4: client.ipv4,
            source,
            key: None,
            sticky: None,
            reuse: true,
            not: &[],
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Lease {
    /// Leg B.
    pub stream: TcpStream,
    /// True if it has served a request before.
    pub reused: bool,
    /// Counts as one of its server's connections until it is dropped.
    pub tenure: Tenure,
}

/// Permit for one connection to a server.
#[derive(Debug)]
pub struct Tenure {
    place: Place,
}

/// Failure of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The server refused the connection, or did not accept it in time.
    Connect,
    /// The server closed or reset the connection before its reply.
    Closed,
    /// The reply did not begin in time.
    Timeout,
    /// The server's bytes are no HTTP reply.
    Malformed,
}

impl Tenure {
    pub(super) fn new(place: Place) -> Tenure {
        Tenure { place }
    }

    /// Returns the server.
    pub fn server(&self) -> &Arc<Server> {
        self.place.server()
    }

    /// Returns its server in the upstream; `None` if no upstream counts it.
    pub fn site(&self) -> Option<Site> {
        self.place.site()
    }

    /// Drops this value without giving the permit up: its [`Tenure::site`] stays counted until [`Site::resume`].
    pub fn stay(self) {
        self.place.stay();
    }

    /// Gives an idle connection back to the upstream, which keeps it for another request or closes it. The last reply
    /// must have been read completely, and the socket must close with a FIN: sockets that the engine returns reset
    /// instead ([`longsplice_engine::Returned::set_reset_on_close`]). A connection with a `tie` to its last client
    /// stands aside until the tie is gone.
    pub fn give_back(self, stream: TcpStream, tie: Option<Tie>) {
        self.place.give_back(stream, tie);
    }

    /// Counts a reply whose head was read, `after` its request was sent.
    pub fn answered(&self, status: u16, after: Duration) {
        self.place.answered(status, after);
    }

    /// Counts a failure of the server. Do not call it for an idle connection that turned out dead: that is no fault. A
    /// `Closed` or `Timeout` on a reused connection is counted, but does not affect the server's health.
    pub fn failed(&self, how: Failure) {
        self.place.failed(how);
    }

    /// Returns the value of the sticky cookie for this server; `None` if the upstream is not sticky.
    pub fn cookie(&self) -> Option<&str> {
        self.place.cookie()
    }
}

impl fmt::Display for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server().address().fmt(f)
    }
}

/// Reason why a client gets no server.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// Each server that was tried failed.
    #[error("{}", list(.0))]
    Refused(Vec<(String, io::Error)>),
    /// The original destination failed.
    #[error("{0}: {1}")]
    Original(SocketAddr, io::Error),
    /// All servers are down, drained, or were tried before.
    #[error("upstream `{upstream}` has no server that is up ({why}); `longsplice servers` shows them")]
    Down {
        /// Name of the upstream.
        upstream: String,
        /// Counts of servers that are down, draining and without an address.
        why: String,
    },
    /// All servers are at their limit, and the queue is full.
    #[error("the queue of upstream `{upstream}` is full: {queue} wait for a server already")]
    QueueFull {
        /// Name of the upstream.
        upstream: String,
        /// Limit of the queue.
        queue: u32,
    },
    /// All servers are at their limit, and no connection ended in time.
    #[error("no server of upstream `{upstream}` had a place within {}", crate::config::Period(*.after))]
    QueueTimeout {
        /// Name of the upstream.
        upstream: String,
        /// Time that the client waited.
        after: Duration,
    },
}

fn list(attempts: &[(String, io::Error)]) -> String {
    let attempts: Vec<_> = attempts.iter().map(|(to, why)| format!("{to}: {why}")).collect();
    attempts.join("; ")
}

impl Unavailable {
    /// Returns the status code for a client that speaks HTTP (RFC 9110 section 15.6).
    pub fn status(&self) -> u16 {
        match self {
            Unavailable::Refused(_) | Unavailable::Original(..) => 502,
            Unavailable::Down { .. } | Unavailable::QueueFull { .. } | Unavailable::QueueTimeout { .. } => {
                503
            }
        }
    }
}

/// Connects to the client's original destination.
///
/// # Errors
/// `Unavailable::Original` with the error of the connection.
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
