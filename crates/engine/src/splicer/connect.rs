//! Makes both legs fit each other: the listening socket's segments, and leg B's address, port and segments.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use longsplice_core::terms::{Agreement, Lacks};
use longsplice_dataplane::{Dataplane, Withheld};
use longsplice_repair::{TcpInfo, options, tcp_info};
use serde::Deserialize;
use tokio::{net::TcpStream, sync::watch};

use super::Splicer;
use crate::{
    flow::assess,
    recovery::reaper,
    services::{
        ports::{self, Occupants, Origin},
        targets::{self, Request},
    },
    transparent::identity,
};

/// Largest value of TCP_MAXSEG, in bytes; only the loopback has longer segments.
const LARGEST_SEGMENT: u32 = 32_767;

/// Source of leg B, as the target sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SourceAddress {
    /// Address of this host, and a port of this instance.
    #[default]
    Forwarder,
    /// Address of the client, which needs CAP_NET_ADMIN, and a port of this instance. The target's answers must come in over
    /// this host, on an interface with a rule that makes them follow their connection
    /// ([`Action::Follow`](crate::services::rules::Action::Follow)).
    Client,
    /// Address, port and initial sequence number of the client, so that its stream has the same numbers on both legs (papers'
    /// section III-F; docs/decisions/0016). If that port is in use toward the target, it is another one.
    ///
    /// The connection tracker of this host takes both legs for one connection: there must be none, or the client's socket is
    /// one of an accelerator, whose mark the server's gets, too ([`Notrack`](crate::notrack::Notrack)).
    ClientAndPort,
}

longsplice_core::named!(pub SourceAddress);

impl Splicer {
    /// Prepares a listening socket for splicing toward `target`, if that is known. It offers clients no longer segments than
    /// the route to the target takes. For ten minutes it offers none of the options that targets of earlier clients did not
    /// agree to (timestamps, SACK, ECN, long segments). Connections that are there do not change. Call it again when
    /// [`Splicer::watch_targets`] says so.
    ///
    /// # Errors
    /// Returns an error if the socket is not a TCP socket.
    pub fn prepare_listener(
        &self,
        listener: impl AsFd,
        target: impl Into<Option<SocketAddr>>,
    ) -> io::Result<()> {
        let listener = listener.as_fd();
        let lacks = self.withheld(listener)?;
        let withheld = Withheld {
            terms: lacks.terms,
            accurate_ecn: true,
            ect: false,
        };
        self.bound_offer(listener, target.into(), lacks.max_segment, withheld)
    }

    /// Prepares a listening socket whose connections are relayed unless a command splices them. It offers clients no longer
    /// segments than the route to the target takes, if that is known. It offers all options again that
    /// [`Splicer::prepare_listener`] has withheld. Pairs whose target lacks an option cannot be spliced then.
    ///
    /// # Errors
    /// Returns an error if the socket is not a TCP socket.
    pub fn prepare_relaying_listener(
        &self,
        listener: impl AsFd,
        target: impl Into<Option<SocketAddr>>,
    ) -> io::Result<()> {
        self.bound_offer(listener.as_fd(), target.into(), None, Withheld::default())
    }

    /// Bounds what a listening socket offers: segments by the route to the target and by `max_segment`, options by
    /// `withheld`.
    fn bound_offer(
        &self,
        listener: BorrowedFd<'_>,
        target: Option<SocketAddr>,
        max_segment: Option<u32>,
        withheld: Withheld,
    ) -> io::Result<()> {
        let Some(plane) = self.context.plane() else {
            return Ok(());
        };
        let way = |target| self.context.routes.ask(longsplice_repair::canonical(target)).ok();
        let by_route = target.and_then(way).and_then(|way| way.max_segment);
        let bytes = by_route.into_iter().chain(max_segment).min();
        match bytes.filter(|&bytes| bytes <= LARGEST_SEGMENT) {
            Some(bytes) => options::set_max_segment(listener, bytes)?,
            None => options::lift_max_segment(listener)?,
        }
        plane.withhold(listener, withheld)
    }

    /// Returns what a listening socket's next clients are not offered once it is prepared, because targets of earlier ones
    /// did not agree to it.
    ///
    /// # Errors
    /// Returns an error if the socket has no address of IP.
    pub fn withheld(&self, listener: impl AsFd) -> io::Result<Lacks> {
        Ok(self.context.targets.lacks(assess::local(listener)?))
    }

    /// Returns a receiver that sees a change each time that listening sockets should be prepared again.
    pub fn watch_targets(&self) -> watch::Receiver<()> {
        self.context.targets.changes()
    }

    /// Connects leg B from a source port that this instance owns, so that the port is not given away while a flow without
    /// sockets has it. Its MSS (RFC 9293 section 3.7.1) fits leg A, and it has no other options of TCP than leg A. A pair
    /// whose leg B was connected otherwise can be spliced, too, if the segments fit; its port is safe only while it has its
    /// socket. The socket resets on close (`SO_LINGER` of 0) from before its SYN is sent, until a call of
    /// [`Splicer::splice`] has ended the pair.
    ///
    /// # Errors
    /// Returns those of `connect`; `TimedOut` after `timeout`; `AddrNotAvailable` if all source ports toward the target
    /// are in use.
    pub async fn connect(
        &self,
        target: SocketAddr,
        client: impl AsFd,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        self.connect_from(SourceAddress::Forwarder, target, client, timeout)
            .await
    }

    /// Connects like [`Splicer::connect`], from this source.
    ///
    /// # Errors
    /// Returns those of [`Splicer::connect`]; `InvalidInput` if the source is the client and the target is of another family.
    pub async fn connect_from(
        &self,
        source: SourceAddress,
        target: SocketAddr,
        client: impl AsFd,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let client = client.as_fd();
        let target = longsplice_repair::canonical(target);
        let from = match source {
            SourceAddress::Forwarder => None,
            SourceAddress::Client | SourceAddress::ClientAndPort => Some(client_address(target, client)?),
        };
        let context = &self.context;
        let (Some(kernel), Some(ports), true) = (&context.kernel, &context.ports, assess::is_global(target))
        else {
            let connect = async {
                match from {
                    None => ports::connect_plainly(target).await,
                    Some(from) => {
                        let origin = Origin::new((from, 0).into(), true);
                        ports::connect_from(origin, target, Request::default()).await
                    }
                }
            };
            return tokio::time::timeout(timeout, connect).await?;
        };
        let plane = &kernel.plane;
        let info = tcp_info(client).ok();
        let request = self.request(plane, client, info.as_ref()).await;
        let identical = match source {
            SourceAddress::ClientAndPort => {
                let own = identity::connect(plane, client, target, request);
                tokio::time::timeout(timeout, own).await?
            }
            SourceAddress::Forwarder | SourceAddress::Client => None,
        };
        let (server, request) = match identical {
            Some(server) => (server?, request),
            None => {
                let flows = Occupants {
                    in_use: |leg| plane.in_use(leg),
                    vacate: |leg| reaper::vacate(context, kernel, leg),
                    look: || ports::ask_neighbours(plane),
                };
                let free = ports.connect(&flows, &context.routes, from, target, request, timeout);
                tokio::time::timeout(timeout, free).await??
            }
        };
        if let Some(info) = info {
            self.note_agreement(plane, client, &info, &request, target, &server);
        }
        Ok(server)
    }

    /// Returns what leg B is to ask for, so that it is like leg A, with this state of TCP.
    async fn request<'a>(
        &'a self,
        plane: &'a Dataplane,
        client: BorrowedFd<'_>,
        info: Option<&TcpInfo>,
    ) -> Request<'a> {
        let Some(info) = info else {
            return Request::default();
        };
        let segment = assess::longest_segment(plane, client, info);
        let segment = segment.filter(|&bytes| bytes <= LARGEST_SEGMENT);
        self.context.targets.request(plane, info, segment).await
    }

    /// Notes what the target did not agree to, for the next clients of the same listener.
    fn note_agreement(
        &self,
        plane: &Dataplane,
        client: BorrowedFd<'_>,
        info: &TcpInfo,
        request: &Request<'_>,
        target: SocketAddr,
        server: &TcpStream,
    ) {
        let Ok(of_server) = tcp_info(server) else {
            return;
        };
        let agreement = Agreement {
            wanted: targets::terms(info),
            agreed: targets::terms(&of_server),
            max_segment: match request.is_limited() || assess::segment_sent(&of_server) < info.advmss() {
                true => assess::unlimited_segment(plane, server, &of_server)
                    .or_else(|| assess::longest_segment(plane, server.as_fd(), &of_server))
                    // A limit of the path is that of a route: it may change at any time, and listeners follow it.
                    .filter(|&bytes| {
                        bytes < info.advmss().min(assess::path_segment(&of_server, target.ip()))
                    }),
                false => None,
            },
        };
        let targets = &self.context.targets;
        if agreement.is_whole() && !targets.lack_anything() {
            return;
        }
        if let Ok(local) = assess::local(client) {
            targets.note(local, target, &agreement);
        }
    }
}

/// Returns the address from which to connect in the name of a client.
fn client_address(target: SocketAddr, client: BorrowedFd<'_>) -> io::Result<IpAddr> {
    let from = assess::peer(client)?.ip();
    if from.is_ipv4() == target.is_ipv4() {
        return Ok(from);
    }
    let what = format!("{target} cannot be reached from the client's address {from}: the families differ");
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}
