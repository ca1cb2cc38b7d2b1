//! Searches for a server that takes a connection: chooses, waits, connects, and tries others.

use std::{
    borrow::Cow,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use longsplice_core::proxy_protocol::{Addresses, Header};
use longsplice_engine::Splicer;
use nix::libc;
use tokio::{io::AsyncWriteExt, net::TcpStream, time};

use super::{
    backend_set::Want,
    lease::{Failure, Lease, Tenure},
    queue::Unavailable,
    server::{Act, ServerId},
    state::{Entered, UpstreamState},
};
use crate::{
    client::Client,
    config::{KeyKind, SourceAddress, UpstreamConfig},
    congestion,
};

/// A client's request for a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
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
    /// Servers to leave out: they were tried already. Each has cost one of the retries.
    pub not: &'a [ServerId],
}

impl<'a> Ask<'a> {
    /// Returns the request for a connection whose bytes are passed on unread. It gets a new connection: one that was
    /// idle belongs to HTTP, and has served other clients.
    pub(crate) fn of(client: &'a Client, source: SourceAddress) -> Ask<'a> {
        Ask {
            client: client.stream.socket().as_fd(),
            peer: client.peer,
            local: client.local,
            ipv4: client.ipv4,
            source,
            key: None,
            sticky: None,
            reuse: false,
            not: &[],
        }
    }
}

/// One search for a server.
pub(super) struct Search<'a> {
    config: &'a UpstreamConfig,
    state: &'a Arc<UpstreamState>,
    splicer: &'a Splicer,
    ask: &'a Ask<'a>,
    tried: Vec<ServerId>,
    /// Indices of entries whose names have no address.
    lost: Vec<usize>,
    attempts: Vec<(String, io::Error)>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        config: &'a UpstreamConfig,
        state: &'a Arc<UpstreamState>,
        splicer: &'a Splicer,
        ask: &'a Ask<'a>,
    ) -> Search<'a> {
        Search {
            config,
            state,
            splicer,
            ask,
            tried: ask.not.to_vec(),
            lost: Vec::new(),
            attempts: Vec::new(),
        }
    }

    /// Tries servers until one takes the connection, as [`Upstream::lease`](super::Upstream::lease) says.
    pub(super) async fn run(mut self) -> Result<Lease, Unavailable> {
        let retries = self.config.retries.unwrap_or(u32::MAX);
        loop {
            let permit = match self.permit().await {
                Ok(permit) => permit,
                // Report the attempts: they say more than that no other server is left.
                Err(Unavailable::Down { .. }) if !self.attempts.is_empty() => break,
                Err(why) => return Err(why),
            };
            let server = Arc::clone(permit.server());
            match self.connect(permit).await {
                Ok((stream, reused, tenure)) => {
                    return Ok(Lease {
                        stream,
                        reused,
                        tie: None,
                        is_private: false,
                        tenure,
                        tried: self.tried,
                    });
                }
                Err(error) => self.attempts.push((server.described(), error)),
            }
            self.tried.push(server.id());
            if self.tried.len() > retries as usize {
                break;
            }
        }
        Err(Unavailable::Refused(self.attempts))
    }

    /// Returns the bytes to hash.
    fn key(&self) -> Option<Cow<'a, [u8]>> {
        match self.config.balance.key {
            KeyKind::None => None,
            KeyKind::Client => Some(Cow::Owned(octets(self.ask.peer.ip()))),
            KeyKind::Header(_) | KeyKind::Cookie(_) => self.ask.key.map(Cow::Borrowed),
        }
    }

    /// Returns a permit for a server that was not tried yet.
    async fn permit(&mut self) -> Result<Tenure, Unavailable> {
        let (config, state) = (self.config, self.state);
        let server = loop {
            let want = Want {
                ipv4: self.ask.ipv4,
                key: self.key(),
                sticky: self.ask.sticky.map(Cow::Borrowed),
                not: Cow::Borrowed(&self.tried),
            };
            match state.enter(want, &self.lost)? {
                Entered::Permit(server) => break server,
                Entered::Wait(waiting) => break waiting.permit(config.queue_timeout).await?,
                Entered::Look(index, entry) => {
                    if let Err(error) = entry.located(config.connect_timeout).await {
                        self.attempts.push((entry.place.to_string(), error));
                        self.lost.push(index);
                    }
                }
            }
        };
        Ok(Tenure::new(server, state, self.ask.peer.ip()))
    }

    /// Takes an idle connection, or makes a new one. Returns it, and whether it was idle.
    async fn connect(&self, mut permit: Tenure) -> io::Result<(TcpStream, bool, Tenure)> {
        let (config, state, ask) = (self.config, self.state, self.ask);
        let server = Arc::clone(permit.server());
        // Bind the connection to its client: the header names that client.
        let owner = config.send_proxy.map(|_| (ask.peer, ask.local));
        // Keep a connection only if its source is the forwarder's address; one from a client's address serves that
        // client alone.
        if ask.source == SourceAddress::Forwarder {
            permit.keep_for = Some(owner);
            let idle = || server.idle.take(owner, config.idle_timeout);
            if let Some(stream) = ask.reuse.then(idle).flatten() {
                permit.use_again();
                return Ok((stream, true, permit));
            }
        }
        state.make_room(&server);
        let connector = Connector::new(self.splicer, ask, config.connect_timeout);
        let header = config.send_proxy.map(|version| {
            let addresses = Addresses::new(ask.peer, ask.local);
            Header::new(version, Some(addresses)).write()
        });
        match connector.introduce(server.address(), header.as_deref()).await {
            Ok(stream) => {
                // Go on without it: a warning tells of a name that the kernel refuses.
                let _ = congestion::set(&stream, config.congestion.as_deref());
                server.counts.requests.fetch_add(1, Ordering::Relaxed);
                server.counts.connects.fetch_add(1, Ordering::Relaxed);
                state.note_success(&server, Act::Connect);
                Ok((stream, false, permit))
            }
            Err(error) => {
                if is_of_the_server(&error) {
                    permit.failed(match ask.source {
                        SourceAddress::Forwarder => Failure::Connect,
                        SourceAddress::Client | SourceAddress::ClientAndPort => Failure::ConnectAsClient,
                    });
                }
                Err(error)
            }
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Returns whether an error tells something about the server. This host's lack of ports, descriptors, memory or rights
/// does not.
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

/// Connects to the client's original destination.
pub(crate) async fn lease_original(
    splicer: &Splicer,
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
        tie: None,
        is_private: false,
        tenure: Tenure::outside(to),
        tried: Vec::new(),
    })
}

/// Settings for the connection of leg B.
#[derive(Debug, Clone, Copy)]
struct Connector<'a> {
    /// The engine.
    splicer: &'a Splicer,
    /// Leg A.
    client: BorrowedFd<'a>,
    /// Selects the source address that the target sees.
    source: SourceAddress,
    /// Longest time for connecting to one address.
    timeout: Duration,
}

impl<'a> Connector<'a> {
    fn new(splicer: &'a Splicer, ask: &Ask<'a>, timeout: Duration) -> Connector<'a> {
        Connector {
            splicer,
            client: ask.client,
            source: ask.source,
            timeout,
        }
    }

    /// Connects, then sends the header, if any. Fails with `TimedOut` if it takes too long.
    async fn introduce(&self, target: SocketAddr, header: Option<&[u8]>) -> io::Result<TcpStream> {
        let mut stream = self.connect_to(target).await?;
        if let Some(header) = header {
            time::timeout(self.timeout, stream.write_all(header)).await??;
        }
        Ok(stream)
    }

    /// Connects to this address.
    async fn connect_to(&self, target: SocketAddr) -> io::Result<TcpStream> {
        let Connector {
            splicer,
            client,
            source,
            timeout,
            ..
        } = *self;
        splicer.connect_from(source, target, client, timeout).await
    }
}

/// Sorts the addresses of the client's family first: only legs of one family can be spliced. The resolver's order stays
/// within each family.
pub(super) fn same_family_first(mut addresses: Vec<SocketAddr>, ipv4: bool) -> Vec<SocketAddr> {
    addresses.sort_by_key(|a| a.is_ipv4() != ipv4);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_clients_family_come_first_in_their_order() {
        let all: Vec<SocketAddr> = ["[::1]:1", "127.0.0.1:1", "[::2]:1", "127.0.0.2:1"]
            .iter()
            .map(|a| a.parse().unwrap())
            .collect();
        let order = |ipv4| {
            same_family_first(all.clone(), ipv4)
                .iter()
                .map(|a| a.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(order(true), ["127.0.0.1:1", "127.0.0.2:1", "[::1]:1", "[::2]:1"]);
        assert_eq!(order(false), ["[::1]:1", "[::2]:1", "127.0.0.1:1", "127.0.0.2:1"]);
    }
}
