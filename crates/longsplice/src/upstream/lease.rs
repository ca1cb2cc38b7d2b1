//! What is asked of an upstream, and what it answers.

use std::{
    borrow::Cow,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use longsplice_core::proxy_protocol::{Addresses, Header};
use nix::libc;
use tokio::net::TcpStream;

use super::{
    Upstream,
    connect::Connector,
    place::Place,
    queue::Want,
    roster::Entered,
    server::{Act, Server, ServerId},
};
use crate::{
    client::Client,
    config::{KeyKind, SourceAddress},
};

/// Who asks for a server.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Leg A.
    pub client: &'a TcpStream,
    /// The client's address, by the PROXY header where one was read.
    pub peer: SocketAddr,
    /// Where the client connected to.
    pub local: SocketAddr,
    /// Whose address the server sees.
    pub source: SourceAddress,
    /// What the hash is of, as [`Upstream::key`](super::Upstream::key) says; the client's address needs none.
    pub key: Option<&'a [u8]>,
    /// The value of the cookie that [`Upstream::sticky`](super::Upstream::sticky) names, as the client sent it.
    pub sticky: Option<&'a str>,
    /// No idle connection: one was dead, and the request must not meet another.
    pub fresh: bool,
    /// Servers that were tried already.
    pub not: &'a [ServerId],
}

impl<'a> Ask<'a> {
    /// Of a connection, before anything is known of a request.
    pub fn of(client: &'a Client, source: SourceAddress) -> Ask<'a> {
        Ask {
            client: client.stream.socket(),
            peer: client.peer,
            local: client.local,
            source,
            key: None,
            sticky: None,
            fresh: false,
            not: &[],
        }
    }

    /// Whether the client's connection is IPv4 on the wire; an IPv4 client may arrive over an IPv6 socket.
    pub(super) fn is_ipv4(&self) -> bool {
        let peer = self.client.peer_addr();
        peer.is_ok_and(|peer| peer.ip().to_canonical().is_ipv4())
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

    /// Leaves an idle connection to the upstream, which keeps it for another request, or closes it in order. The last reply must
    /// have been read to its end.
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

impl Upstream {
    /// A connection to one of its servers: chooses one, waits for a place in the queue where all are full, and takes an idle
    /// connection or makes one; where that fails, at other servers, as `retries` says.
    ///
    /// Cancel-safe: dropped, it gives up its place, in the queue too.
    ///
    /// # Errors
    /// What was tried, or why nothing was.
    pub async fn lease(self: &Arc<Self>, ask: &Ask<'_>) -> Result<Lease, Unavailable> {
        let mut search = Search {
            upstream: self,
            ask,
            tried: ask.not.to_vec(),
            lost: Vec::new(),
            attempts: Vec::new(),
        };
        let mut retries = self.config.retries.unwrap_or(u32::MAX);
        loop {
            let place = match search.place().await {
                Ok(place) => place,
                // What was tried says more than that nothing else is left.
                Err(Unavailable::Down { .. }) if !search.attempts.is_empty() => break,
                Err(why) => return Err(why),
            };
            let server = Arc::clone(place.server());
            match search.connect(place).await {
                Ok(lease) => return Ok(lease),
                Err(error) => search.attempts.push((server.described(), error)),
            }
            search.tried.push(server.id());
            if retries == 0 {
                break;
            }
            retries -= 1;
        }
        Err(Unavailable::Refused(search.attempts))
    }

    fn key_of<'a>(&self, ask: &Ask<'a>) -> Option<Cow<'a, [u8]>> {
        match self.config.balance.key {
            KeyKind::None => None,
            KeyKind::Client => Some(Cow::Owned(octets(ask.peer.ip()))),
            KeyKind::Header(_) | KeyKind::Cookie(_) => ask.key.map(Cow::Borrowed),
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// One search for a server.
struct Search<'a> {
    upstream: &'a Arc<Upstream>,
    ask: &'a Ask<'a>,
    tried: Vec<ServerId>,
    /// Entries whose names have no address.
    lost: Vec<usize>,
    attempts: Vec<(String, io::Error)>,
}

impl Search<'_> {
    /// A place at a server that was not tried yet.
    async fn place(&mut self) -> Result<Place, Unavailable> {
        let Upstream { config, roster, .. } = &**self.upstream;
        loop {
            let want = Want {
                ipv4: self.ask.is_ipv4(),
                key: self.upstream.key_of(self.ask),
                sticky: self.ask.sticky.map(Cow::Borrowed),
                not: Cow::Borrowed(&self.tried),
            };
            match roster.enter(want, &self.lost)? {
                Entered::Place(place) => return Ok(place),
                Entered::Wait(waiting) => return waiting.place(config.queue_timeout).await,
                Entered::Look(index, entry) => {
                    if let Err(error) = entry.located(config.connect_timeout).await {
                        self.attempts.push((entry.place.to_string(), error));
                        self.lost.push(index);
                    }
                }
            }
        }
    }

    /// An idle connection, or a new one.
    async fn connect(&self, mut place: Place) -> io::Result<Lease> {
        let Upstream {
            config,
            roster,
            splicer,
        } = &**self.upstream;
        let ask = self.ask;
        let server = Arc::clone(place.server());
        // A header names its client: nobody else may use the connection.
        let owner = config.send_proxy.map(|_| (ask.peer, ask.local));
        // From the client's address it is the client's alone.
        if ask.source == SourceAddress::Forwarder {
            place.keep_for(owner);
            let idle = || server.idle.take(owner, config.idle_timeout);
            if let Some(stream) = (!ask.fresh).then(idle).flatten() {
                server.counts.requests.fetch_add(1, Ordering::Relaxed);
                server.counts.reused.fetch_add(1, Ordering::Relaxed);
                return Ok(Lease {
                    stream,
                    reused: true,
                    tenure: Tenure::new(place),
                });
            }
        }
        roster.make_room(&server);
        let connector = Connector::new(splicer, ask, config.connect_timeout);
        let header = config.send_proxy.map(|version| {
            let addresses = Addresses::new(ask.peer, ask.local);
            Header::new(version, Some(addresses)).write()
        });
        match connector.introduce(server.address(), header.as_deref()).await {
            Ok(stream) => {
                server.counts.requests.fetch_add(1, Ordering::Relaxed);
                server.counts.connects.fetch_add(1, Ordering::Relaxed);
                roster.note_success(&server, Act::Connect);
                Ok(Lease {
                    stream,
                    reused: false,
                    tenure: Tenure::new(place),
                })
            }
            Err(error) => {
                if is_of_the_server(&error) {
                    place.failed(Failure::Connect);
                }
                Err(error)
            }
        }
    }
}

/// Whether an error says something of the server, and not that this host has no ports, descriptors, memory or rights.
pub(super) fn is_of_the_server(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let out_of_descriptors = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS];
    let ours = [
        Kind::AddrNotAvailable,
        Kind::AddrInUse,
        Kind::InvalidInput,
        Kind::OutOfMemory,
        Kind::PermissionDenied,
    ];
    !ours.contains(&error.kind())
        && !error
            .raw_os_error()
            .is_some_and(|e| out_of_descriptors.contains(&e))
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
