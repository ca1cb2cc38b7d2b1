//! Searches for a server that takes a connection: chooses, waits, connects, and tries others.

use std::{
    borrow::Cow,
    io,
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};

use longsplice_core::proxy_protocol::{Addresses, Header};
use nix::libc;

use super::{
    Ask, Failure, Lease, ServerId, Tenure, Unavailable, Upstream, connect::Connector, place::Place,
    queue::Want, roster::Entered, server::Act,
};
use crate::config::{KeyKind, SourceAddress};

impl Upstream {
    /// Connects to one of its servers: chooses one, waits in the queue if all are full, and takes an idle connection or
    /// makes one. If that fails, it tries other servers, as `retries` says.
    ///
    /// Cancel-safe: when the future is dropped, it gives up its permit or its position in the queue.
    ///
    /// # Errors
    /// The failed attempts, or the reason why there was none.
    pub async fn lease(self: &Arc<Self>, ask: &Ask<'_>) -> Result<Lease, Unavailable> {
        let mut search = Search {
            upstream: self,
            ask,
            tried: ask.not.to_vec(),
            lost: Vec::new(),
            attempts: Vec::new(),
        };
        let mut retries = self.retries();
        loop {
            let place = match search.place().await {
                Ok(place) => place,
                // Report the attempts: they say more than that no other server is left.
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
    /// Indices of entries whose names have no address.
    lost: Vec<usize>,
    attempts: Vec<(String, io::Error)>,
}

impl Search<'_> {
    /// Returns a permit for a server that was not tried yet.
    async fn place(&mut self) -> Result<Place, Unavailable> {
        let Upstream { config, roster, .. } = &**self.upstream;
        loop {
            let want = Want {
                ipv4: self.ask.ipv4,
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

    /// Takes an idle connection, or makes a new one.
    async fn connect(&self, mut place: Place) -> io::Result<Lease> {
        let Upstream {
            config,
            roster,
            splicer,
        } = &**self.upstream;
        let ask = self.ask;
        let server = Arc::clone(place.server());
        // Bind the connection to its client: the header names that client.
        let owner = config.send_proxy.map(|_| (ask.peer, ask.local));
        // Keep a connection only if its source is the forwarder's address; one from a client's address serves that
        // client alone.
        if ask.source == SourceAddress::Forwarder {
            place.keep_for(owner);
            let idle = || server.idle.take(owner, config.idle_timeout);
            if let Some(stream) = ask.reuse.then(idle).flatten() {
                place.note_reused();
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
