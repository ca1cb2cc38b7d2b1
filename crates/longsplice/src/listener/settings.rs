//! What a configuration says of a listener, and where it sends a connection.

use std::{io, sync::Arc};

use longsplice_core::route::{Action, Facts, Redirect, Route};
use longsplice_engine::{Splicer, intercept::is_local};

use crate::{
    config::ListenerConfig,
    tls::Terminator,
    upstream::{Ask, Lease, Unavailable, Upstream, Upstreams, lease_original},
};

/// What a configuration says of a listener. A connection keeps the settings under which it was accepted; a session of HTTP asks
/// for those of each request.
#[derive(Debug)]
pub struct Settings {
    /// Which configuration of this process it is, from 1.
    pub generation: u64,
    /// The listener.
    pub listener: Arc<ListenerConfig>,
    /// All upstreams.
    pub upstreams: Arc<Upstreams>,
    /// Its certificates and what belongs to them, where it terminates TLS.
    pub terminator: Option<Arc<Terminator>>,
}

/// Where something goes.
#[derive(Debug, Clone, Copy)]
pub enum Destination<'a> {
    /// To a server of this upstream.
    Upstream(&'a Arc<Upstream>),
    /// To where it was going when it was intercepted.
    Original,
    /// Nowhere: it is answered with this status.
    Status(u16),
    /// Nowhere: it is told to go there.
    Redirect(&'a Redirect),
}

impl Settings {
    /// What these facts decide: the route that takes it, and where it goes.
    pub fn decide(&self, facts: &Facts<'_>) -> (Option<&Route>, Destination<'_>) {
        let taken = self.listener.routes.decide(facts);
        let route = taken.map(|(_, route)| route);
        (route, self.destination(route))
    }

    /// Where what this route takes goes; `None`: what no route takes.
    pub fn destination<'a>(&'a self, route: Option<&'a Route>) -> Destination<'a> {
        let upstream = match route.map(|route| &route.action) {
            None => self.upstreams.of_listener(&self.listener),
            Some(Action::Upstream(name)) => match self.upstreams.get(name) {
                // No configuration is like that.
                None => return Destination::Status(503),
                upstream => upstream,
            },
            Some(Action::Original) => None,
            Some(Action::Status(status)) => return Destination::Status(*status),
            Some(Action::Redirect(to)) => return Destination::Redirect(to),
        };
        upstream.map_or(Destination::Original, Destination::Upstream)
    }

    /// A connection of the client to a server: of this upstream, or, without one, to where the client was going.
    ///
    /// # Errors
    /// What was tried.
    pub async fn lease(
        &self,
        upstream: Option<&Arc<Upstream>>,
        ask: &Ask<'_>,
        splicer: &Splicer,
    ) -> Result<Lease, Unavailable> {
        if let Some(upstream) = upstream {
            return upstream.lease(ask).await;
        }
        let (listener, to) = (&self.listener, ask.local);
        // Connected to, it would connect to itself, and that again.
        if listener.listen.iter().any(|l| l.port() == to.port()) && is_local(to.ip()) {
            let itself =
                "the connection is addressed to the listener itself, which is only there to intercept others";
            return Err(Unavailable::Original(to, io::Error::other(itself)));
        }
        lease_original(splicer, ask, to, listener.connect_timeout).await
    }
}
