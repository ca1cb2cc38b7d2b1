//! A request's connection to its server.

use std::{pin::pin, sync::Arc, time::Duration};

use longsplice_core::http::Body;
use longsplice_engine::policy::SplicePolicy;
use longsplice_repair::{TcpInfo, set_receive_growth, tcp_info};
use tokio::{net::TcpStream, time::Instant};

use super::{body::Passage, clock::Late, front::Front, request::Goal, session::Session, wire::Wire};
use crate::upstream::{Ask, Lease, Reuse, ServerId, Tenure, Unavailable};

/// A leased connection and what has passed over it.
#[derive(Debug)]
pub(super) struct AtServer {
    pub(super) wire: Wire<TcpStream>,
    pub(super) tenure: Tenure,
    /// It has served a request before, and may be dead without our knowing.
    pub(super) reused: bool,
    /// The body of the request.
    pub(super) upload: Passage,
    /// The server takes no more of it.
    pub(super) refuses: bool,
    /// So many bytes at the front of the client's buffer are the request, while it may be sent again.
    pub(super) kept: usize,
    pub(super) sent_at: Instant,
}

impl AtServer {
    pub(super) fn new(lease: Lease, body: Body) -> AtServer {
        AtServer {
            wire: Wire::new(lease.stream, Vec::new()),
            tenure: lease.tenure,
            reused: lease.reused,
            upload: Passage::new(body),
            refuses: false,
            kept: 0,
            sent_at: Instant::now(),
        }
    }

    /// Nothing more of the request will be sent.
    pub(super) fn is_sent(&self) -> bool {
        self.upload.is_done() || self.refuses
    }
}

/// A server that is nearer than this is as fast with a small window.
const BESIDE: Duration = Duration::from_millis(1);

impl Session<'_> {
    /// A connection for a request, to none of the servers `not`.
    pub(super) async fn lease(
        &mut self,
        client: &Wire<Front>,
        to: &Goal,
        reuse: Reuse,
        not: &[ServerId],
    ) -> Result<Result<Lease, Unavailable>, Late> {
        let settings = Arc::clone(&self.settings);
        let (upstream, key, sticky) = match to {
            Goal::Upstream {
                upstream,
                key,
                sticky,
            } => (Some(upstream), key.as_deref(), sticky.as_deref()),
            Goal::Original => (None, None, None),
        };
        // One that is lost needs no server.
        let socket = client.stream.socket().ok_or(Late)?;
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
        let lease = pin!(settings.lease(upstream, &ask, splicer));
        let leased = self.clock.told(lease).await;
        if let Ok(Ok(lease)) = &leased
            && !lease.reused
            && self.may_splice(client)
        {
            // Not before the first long reply: see below.
            let _ = set_receive_growth(&lease.stream, false);
        }
        leased
    }

    /// Lets the window at the server of a long reply grow, or keeps it small: all that it takes has come before a splice can take
    /// hold, and is relayed. Of what is spliced it is the client's window that counts.
    pub(super) fn choose_window(&self, client: &Wire<Front>, server: &TcpStream) {
        let is_beside = |info: TcpInfo| {
            let least = info.min_rtt_us().unwrap_or_else(|| info.rtt_us());
            Duration::from_micros(least.into()) < BESIDE
        };
        let is_small = self.may_splice(client) && tcp_info(server).is_ok_and(is_beside);
        // (It is right either way.)
        let _ = set_receive_growth(server, !is_small);
    }

    /// Whether replies to this client are spliced, if that is worth it.
    pub(super) fn may_splice(&self, client: &Wire<Front>) -> bool {
        client.stream.is_plain() && self.settings.listener.splice != SplicePolicy::Never
    }

    /// For the log, and for `on_change`.
    pub(super) fn tell_server(&mut self, at: &AtServer) {
        let server = at.tenure.server();
        if let Some(decided) = &mut self.decided {
            decided.server = Some(server.clone());
            self.open.decide(Some(decided.clone()));
        }
        self.note(|told| told.at_server(server));
    }
}
