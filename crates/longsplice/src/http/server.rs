//! Leases and describes the server's connection for a request.

use std::{net::Shutdown, pin::pin, sync::Arc, time::Duration};

use longsplice_engine::{Tie, policy::SplicePolicy, reason::RelayReason};
use longsplice_repair::{TcpInfo, set_receive_growth, tcp_info};
use socket2::SockRef;
use tokio::{net::TcpStream, time::Instant};

use super::{
    body::Passage,
    buffered_stream::BufferedStream,
    deadline::Late,
    lazy_stream::LazyStream,
    request::{Request, Target},
    session::Session,
};
use crate::{
    access_log::End,
    upstream::{Ask, Lease, ServerId, Tenure, Unavailable},
};

/// A leased connection, and the state of the request on it.
#[derive(Debug)]
pub(super) struct AtServer {
    pub(super) wire: BufferedStream<TcpStream>,
    pub(super) tenure: Tenure,
    /// True if it has served a request before: it may be dead without the proxy knowing.
    pub(super) reused: bool,
    /// Tie to the client, as it was when the engine returned both connections.
    pub(super) tie: Option<Tie>,
    /// True if the client may have authenticated it: no other client must get it (RFC 4559).
    pub(super) is_private: bool,
    /// True once the client's FIN was passed to the server, which answers no other request on this connection then.
    pub(super) half_closed: bool,
    /// Body of the request.
    pub(super) upload: Passage,
    /// True once the server takes no more of the body.
    pub(super) refuses: bool,
    /// Set once the client has broken its request off: the end of the request, unless the reply passes completely.
    broken_off: Option<End>,
    /// Number of bytes at the front of the client's buffer that are the request, while it may be sent again.
    pub(super) kept: usize,
    /// Time at which the last bytes of the request were written.
    pub(super) sent_at: Instant,
    /// True until the server says 100, if the client may wait for that before it sends the body.
    pub(super) expects_continue: bool,
}

impl AtServer {
    pub(super) fn new(lease: Lease, request: &Request) -> AtServer {
        AtServer {
            wire: BufferedStream::new(lease.stream, Vec::new()),
            tenure: lease.tenure,
            reused: lease.reused,
            tie: lease.tie,
            is_private: lease.is_private || request.authenticates,
            half_closed: false,
            upload: Passage::new(request.body),
            refuses: false,
            broken_off: None,
            kept: 0,
            sent_at: Instant::now(),
            expects_continue: request.expects_continue,
        }
    }

    /// Returns whether no more of the request will be sent.
    pub(super) fn is_sent(&self) -> bool {
        self.upload.is_done() || self.refuses || self.broken_off.is_some()
    }

    /// Ends a request within its body, because the client's bytes do. A FIN tells the server not to wait for the rest.
    pub(super) fn break_off(&mut self, end: End) {
        self.broken_off = Some(end);
        // Ignore an error: a read tells of it.
        let _ = SockRef::from(&self.wire.stream).shutdown(Shutdown::Write);
    }

    /// Returns the end of a request whose reply broke off with this one. A server may rightly give up the reply to a
    /// request that its client has broken off.
    pub(super) fn end_behind(&self, end: End) -> End {
        match end {
            End::ServerClosed | End::ServerTimeout => self.broken_off.unwrap_or(end),
            _ => end,
        }
    }

    /// Returns whether the next bytes have to come from the server: its reply, or the 100 without which the client sends
    /// no body.
    pub(super) fn is_servers_turn(&self) -> bool {
        self.is_sent() || self.awaits_continue()
    }

    /// Returns whether the client may withhold the body, until the server says 100.
    pub(super) fn awaits_continue(&self) -> bool {
        let is_held = self.upload.passed() == 0 && !self.upload.waits_for_recipient();
        self.expects_continue && is_held && !self.is_sent()
    }
}

/// Time after which a waiting client's socket is watched, to notice that the client is gone.
pub(super) const UNHEARD: Duration = Duration::from_millis(50);

/// Round-trip time below which a server is as fast with a small window.
const BESIDE: Duration = Duration::from_millis(1);

impl Session<'_> {
    /// Leases a connection for a request, to none of the servers `not`. Fails with the end of the request if the client
    /// is gone.
    pub(super) async fn lease(
        &mut self,
        client: &BufferedStream<LazyStream>,
        to: &Target,
        reuse: bool,
        not: &[ServerId],
    ) -> Result<Result<Lease, Unavailable>, End> {
        let settings = Arc::clone(&self.settings);
        let (upstream, key, sticky) = match to {
            Target::Upstream {
                upstream,
                key,
                sticky,
            } => (Some(upstream), key.as_deref(), sticky.as_deref()),
            Target::Original => (None, None, None),
        };
        // A client whose socket is lost needs no server.
        let socket = client.stream.socket().ok_or(End::ClientClosed)?;
        // Prefer the authenticated connection over any choice of a server: a handshake takes several requests.
        if reuse && let Some(lease) = self.private.take(upstream.map(Arc::as_ref)) {
            return Ok(Ok(lease));
        }
        let ask = Ask {
            client: socket,
            peer: self.peer,
            local: self.local,
            ipv4: self.ipv4,
            source: settings.listener.source(),
            key,
            sticky,
            reuse,
            not,
        };
        let splicer = self.service.splicer();
        let mut lease = pin!(settings.lease(upstream, &ask, splicer));
        let leased = match self.deadline.within(UNHEARD, lease.as_mut()).await {
            Err(Late) if !self.deadline.is_cancelled() => {
                let gone = client.stream.gone(settings.listener.abort_on_close);
                let either = pin!(async {
                    tokio::select! {
                        biased;
                        leased = lease => Ok(leased),
                        () = gone => Err(End::ClientClosed),
                    }
                });
                self.deadline
                    .unless_cancelled(either)
                    .await
                    .unwrap_or(Err(End::Reset))
            }
            leased => leased.map_err(|Late| End::Reset),
        };
        if let Ok(Ok(lease)) = &leased
            && !lease.reused
            && self.may_splice(client)
        {
            // Do not let the receive window grow before the first long reply: see `choose_window`.
            let _ = set_receive_growth(&lease.stream, false);
        }
        leased
    }

    /// Lets the server's window grow for a long reply, or keeps it small if a splice is possible and the server is
    /// near: all bytes that the window admits arrive before the splice takes effect, and are relayed. For spliced
    /// bytes, the client's window counts.
    pub(super) fn choose_window(&self, client: &BufferedStream<LazyStream>, server: &TcpStream) {
        let is_beside = |info: TcpInfo| {
            let least = info.min_rtt_us().unwrap_or_else(|| info.rtt_us());
            Duration::from_micros(least.into()) < BESIDE
        };
        let is_small = self.may_splice(client) && tcp_info(server).is_ok_and(is_beside);
        // Ignore an error: both choices are correct, one is only slower.
        let _ = set_receive_growth(server, !is_small);
    }

    /// Returns whether replies to this client may be spliced.
    pub(super) fn may_splice(&self, client: &BufferedStream<LazyStream>) -> bool {
        self.why_never(client).is_none()
    }

    /// Returns the reason why no reply to this client is spliced; `None` if replies may be.
    pub(super) fn why_never(&self, client: &BufferedStream<LazyStream>) -> Option<RelayReason> {
        match self.settings.listener.splice {
            _ if !client.stream.is_plain() => Some(RelayReason::Tls),
            SplicePolicy::Never => Some(RelayReason::PolicyNever),
            _ => None,
        }
    }

    /// Notes the server for the log and for `on_reload`. Returns false if the connection ends because of a reload.
    pub(super) fn tell_server(&mut self, at: &AtServer) -> bool {
        let server = at.tenure.server();
        self.had_server = true;
        self.owned.note(&at.tenure);
        self.note(|told| told.at_server(server));
        self.open.at_server(server)
    }
}
