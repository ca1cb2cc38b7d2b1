//! Holds the settings of a listener, and applies them to a connection.

use std::{io, sync::Arc};

use longsplice_core::route::{Action, Facts, Redirect, Route};
use longsplice_engine::{Splicer, intercept::is_local};

use crate::{
    config::ListenerConfig,
    tls::Terminator,
    upstream::{Ask, Lease, Unavailable, Upstream, Upstreams, lease_original},
};

/// Settings of a listener in one configuration. A connection keeps the settings that decided about it, once what precedes
/// its protocol was read; an HTTP session takes the current settings for each request.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Number of the configuration in this process, from 1.
    pub generation: u64,
    pub listener: Arc<ListenerConfig>,
    /// All upstreams.
    pub upstreams: Arc<Upstreams>,
    /// Certificates and TLS settings, if it terminates TLS.
    pub terminator: Option<Arc<Terminator>>,
}

/// Destination of a connection or request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination<'a> {
    /// A server of this upstream.
    Upstream(&'a Arc<Upstream>),
    /// The original destination of an intercepted connection.
    Original,
    /// None: the request is answered with this status.
    Status(u16),
    /// None: the request is answered with this redirect.
    Redirect(&'a Redirect),
}

impl Settings {
    /// Decides by these facts: returns the route that matches, with its index, and the destination.
    pub(crate) fn decide(&self, facts: &Facts<'_>) -> (Option<(usize, &Route)>, Destination<'_>) {
        let taken = self.listener.routes.decide(facts);
        (taken, self.destination(taken.map(|(_, route)| route)))
    }

    /// Returns the destination for this route; `None` means that no route matched.
    pub(crate) fn destination<'a>(&'a self, route: Option<&'a Route>) -> Destination<'a> {
        let upstream = match route.map(|route| &route.action) {
            None => self.upstreams.of_listener(&self.listener),
            Some(Action::Upstream(name)) => match self.upstreams.get(name) {
                // Checked configurations do not lack an upstream.
                None => return Destination::Status(503),
                upstream => upstream,
            },
            Some(Action::Original) => None,
            Some(Action::Status(status)) => return Destination::Status(*status),
            Some(Action::Redirect(to)) => return Destination::Redirect(to),
        };
        upstream.map_or(Destination::Original, Destination::Upstream)
    }

    /// Connects to a server of this upstream, or, without an upstream, to the client's original destination. Fails with
    /// the attempts.
    pub(crate) async fn lease(
        &self,
        upstream: Option<&Arc<Upstream>>,
        ask: &Ask<'_>,
        splicer: &Splicer,
    ) -> Result<Lease, Unavailable> {
        if let Some(upstream) = upstream {
            return upstream.lease(ask).await;
        }
        let (listener, to) = (&self.listener, ask.local);
        // Refuse a connection to the listener itself: it would connect to itself without end.
        if listener.listen.iter().any(|l| l.port() == to.port()) && is_local(to.ip()) {
            let itself =
                "the connection is addressed to the listener itself, which is only there to intercept others";
            return Err(Unavailable::Original(to, io::Error::other(itself)));
        }
        if listener.is_guarded(to.ip()) {
            let guarded = "it is link-local, a metadata service's or this host's own, and `to` of `intercept` does not name it";
            return Err(Unavailable::Original(to, io::Error::other(guarded)));
        }
        lease_original(splicer, ask, to, listener.connect_timeout).await
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, path::Path};

    use longsplice_engine::{OpenError, SplicerConfig};
    use tokio::net::UdpSocket;

    use super::*;
    use crate::config;

    #[tokio::test]
    async fn nothing_is_connected_to_a_metadata_service_that_is_not_named() {
        let text = "[[listener]]\nlisten = \"0.0.0.0:8080\"\nintercept = { interface = \"eth9\" }\n";
        let config = config::parse(Path::new("t"), text).unwrap();
        let why = OpenError::Unsupported("a test".into());
        let splicer = Splicer::relay_only(SplicerConfig::default(), why);
        let settings = Settings {
            generation: 1,
            listener: Arc::new(config.listeners[0].clone()),
            upstreams: Arc::new(Upstreams::new(&config, &splicer)),
            terminator: None,
        };
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for to in [
            "169.254.169.254:80",
            "[fd00:ec2::254]:80",
            "[::ffff:127.0.0.1]:22",
        ] {
            let ask = Ask {
                client: client.as_fd(),
                peer: "198.18.0.1:1".parse().unwrap(),
                local: to.parse().unwrap(),
                ipv4: true,
                source: settings.listener.source(),
                key: None,
                sticky: None,
                reuse: false,
                not: &[],
            };
            let refused = settings
                .lease(None, &ask, &splicer)
                .await
                .unwrap_err()
                .to_string();
            assert!(refused.contains("does not name it"), "{to}: {refused}");
        }
    }
}
