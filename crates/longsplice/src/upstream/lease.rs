//! Counts a connection of a server as long as its permit is held.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use longsplice_engine::Tie;
use tokio::net::TcpStream;

use super::{
    Upstream,
    idle::{Owner, Settles},
    server::{Act, Server, ServerId},
    state::UpstreamState,
};
use crate::config::UpstreamConfig;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Leg B.
    pub stream: TcpStream,
    /// True if it has served a request before.
    pub reused: bool,
    /// Tie to the client of the session that has [kept](super::Private) it.
    pub tie: Option<Tie>,
    /// True if it serves the requests of one session alone.
    pub is_private: bool,
    /// Counts as one of its server's connections until it is dropped.
    pub tenure: Tenure,
    /// Servers that were tried before, those of [`Ask::not`](super::Ask::not) first.
    pub tried: Vec<ServerId>,
}

/// Permit for one connection to a server. When it is dropped, the next waiting client gets it.
#[derive(Debug)]
pub(crate) struct Tenure {
    server: Arc<Server>,
    /// `None` if the server belongs to no upstream.
    state: Option<Arc<UpstreamState>>,
    /// Owner for whom the connection may be kept when it is idle; `None` if it is not kept.
    pub(super) keep_for: Option<Owner>,
    /// True if its connection has served a request before.
    reused: bool,
    sticky: bool,
    /// Client that may cause failures; `None` if it is not known.
    client: Option<IpAddr>,
}

/// A server of an upstream, for permits that stay counted without a `Tenure`.
#[derive(Debug)]
pub(crate) struct Site {
    server: Arc<Server>,
    state: Arc<UpstreamState>,
    sticky: bool,
    client: Option<IpAddr>,
}

impl Site {
    /// Returns the server's identity.
    pub(crate) fn id(&self) -> ServerId {
        self.server.id()
    }

    /// Returns a permit that [stayed](Tenure::stay) counted here. Resume each only once.
    pub(crate) fn resume(&self) -> Tenure {
        let (server, state) = (Arc::clone(&self.server), Arc::clone(&self.state));
        Tenure {
            server,
            state: Some(state),
            keep_for: None,
            reused: false,
            sticky: self.sticky,
            client: self.client,
        }
    }
}

/// Failure of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server refused the connection, or did not accept it in time.
    Connect,
    /// The server did not accept a connection from the client's own address: it may refuse that address alone.
    ConnectAsClient,
    /// The server closed or reset the connection before its reply.
    Closed,
    /// The reply did not begin in time.
    Timeout,
    /// The server's bytes are no HTTP reply.
    Malformed,
    /// The head of the reply is malformed behind its first line, exceeds a limit, or does not fit the request: it may be so
    /// because of what the client sent.
    Unfit,
    /// The reply did not begin in time, while the client waited to be asked for the body.
    Withheld,
    /// The server closed or reset the connection before its reply, while the client still owed a part of the body.
    Unfinished,
}

impl Tenure {
    /// Creates a permit at a server that counts it already, for a client at this address.
    pub(super) fn new(server: Arc<Server>, state: &Arc<UpstreamState>, client: IpAddr) -> Tenure {
        Tenure {
            server,
            sticky: state.config().sticky.is_some(),
            state: Some(Arc::clone(state)),
            keep_for: None,
            reused: false,
            client: Some(one_client(client)),
        }
    }

    /// Creates a permit for an address that belongs to no upstream.
    pub(super) fn outside(address: SocketAddr) -> Tenure {
        let name = address.to_string();
        let config = UpstreamConfig::new("", Vec::new());
        Tenure {
            server: Arc::new(Server::new(&config, &name, name.clone(), address, None)),
            state: None,
            keep_for: None,
            reused: false,
            sticky: false,
            client: None,
        }
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Counts a request over its connection, which has served one before.
    pub(super) fn use_again(&mut self) {
        self.reused = true;
        let counts = &self.server.counts;
        counts.requests.fetch_add(1, Ordering::Relaxed);
        counts.reused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether it belongs to this upstream; `None` stands for a permit outside all upstreams.
    pub(super) fn is_of(&self, upstream: Option<&Upstream>) -> bool {
        match (&self.state, upstream) {
            (Some(state), Some(upstream)) => Arc::ptr_eq(state, &upstream.state),
            (None, None) => true,
            _ => false,
        }
    }

    /// Returns whether its server takes further requests: it is up, and still belongs to its upstream.
    pub(super) fn is_welcome(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.takes(&self.server))
    }

    /// Returns the time for which its connection may be idle; `None` outside all upstreams.
    pub(super) fn idle_timeout(&self) -> Option<Duration> {
        Some(self.state.as_ref()?.config().idle_timeout)
    }

    /// Returns its server in the upstream, without a permit; `None` if no upstream counts it.
    pub(crate) fn site(&self) -> Option<Site> {
        Some(Site {
            server: Arc::clone(&self.server),
            state: Arc::clone(self.state.as_ref()?),
            sticky: self.sticky,
            client: self.client,
        })
    }

    /// Drops this value without giving the permit up: its [`Tenure::site`] stays counted until [`Site::resume`].
    pub(crate) fn stay(mut self) {
        self.state = None;
    }

    /// Returns the value of the sticky cookie for this server; `None` if the upstream is not sticky.
    pub(crate) fn cookie(&self) -> Option<&str> {
        self.sticky.then(|| self.server.cookie())
    }

    /// Gives an idle connection back to the upstream, which keeps it for another request or closes it. The last reply
    /// must have been read completely, and the socket must close with a FIN: sockets that the engine returns reset
    /// instead ([`longsplice_engine::Returned::set_reset_on_close`]). A connection with a `tie` to its last client
    /// stands aside until the tie is gone.
    pub(crate) fn give_back(self, stream: TcpStream, tie: Option<Tie>) {
        if let (Some(state), Some(owner)) = (&self.state, self.keep_for) {
            // Store it before the permit is released: the client that waits for the permit then finds the connection.
            let settles = tie.map(|tie| Settles::when(move || tie.is_gone()));
            state.keep(&self.server, stream, owner, settles);
        }
    }

    /// Counts a reply whose head was read, `after` its request was sent.
    pub(crate) fn answered(&self, status: u16, after: Duration) {
        let counts = &self.server.counts;
        let class = usize::from(status / 100).checked_sub(1);
        if let Some(class) = class.and_then(|class| counts.replies.get(class)) {
            class.fetch_add(1, Ordering::Relaxed);
        }
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        counts.reply_micros.fetch_add(micros, Ordering::Relaxed);
        let Some(state) = &self.state else { return };
        match status >= 500 && state.config().outlier_status {
            true => {
                let why = format!("status {status}");
                state.note_failure(&self.server, Act::Reply, self.client, &why);
            }
            false => state.note_success(&self.server, Act::Reply),
        }
    }

    /// Counts a failure of the server. Do not call it for an idle connection that turned out dead: that is no fault. A
    /// `Closed` or `Timeout` on a reused connection, an `Unfit`, a `Withheld` and an `Unfinished` are counted, but do not affect the
    /// server's health.
    pub(crate) fn failed(&self, how: Failure) {
        let counts = &self.server.counts;
        let (act, count) = match how {
            Failure::Connect | Failure::ConnectAsClient => (Act::Connect, &counts.connect_failures),
            _ => (Act::Reply, &counts.failures),
        };
        // The switch's own connections say nothing about a client.
        let client = self.client.filter(|_| how != Failure::Connect);
        count.fetch_add(1, Ordering::Relaxed);
        let why = match how {
            Failure::Connect => "it could not be connected to",
            Failure::ConnectAsClient => "it could not be connected to from the addresses of clients",
            // An earlier client may have caused the end of a reused connection.
            Failure::Closed | Failure::Timeout if self.reused => return,
            Failure::Closed => "it closed before it replied",
            Failure::Timeout => "it did not reply in time",
            Failure::Malformed => "what it sent was no reply",
            // The client may have caused it.
            Failure::Unfit | Failure::Withheld | Failure::Unfinished => return,
        };
        if let Some(state) = &self.state {
            state.note_failure(&self.server, act, client, why);
        }
    }
}

/// Returns what is taken for one client: an IPv4 address, or the IPv6 prefix of 64 bits, in which a client has any number of
/// addresses (RFC 4291 section 2.5.4).
fn one_client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
        ipv4 => ipv4,
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            state.release(&self.server);
        }
    }
}

impl fmt::Display for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server().address().fmt(f)
    }
}
